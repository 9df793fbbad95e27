"""The mixture of experts through epd: route, dispatch, the local experts, combine."""

import functools

import epd.jax as ep
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from model import Moe, Sizes, route

TOKENS = P(("dp", "ep"))  # Batches, and everything with one row per rank.
EXPERTS = P("ep")


def capacity(sizes: Sizes, ranks: int, ep_size: int, alignment: int) -> int:
    """Receive slots that suffice for any routing: all routes of a domain to one rank, and each zone's padding."""
    tokens = sizes.batch // ranks * sizes.sequence
    return ep_size * tokens * sizes.top_k + alignment * sizes.experts // ep_size


def _route(router: jax.Array, x: jax.Array, sizes: Sizes):
    # Inside shard_map: XLA gathers the whole operand of top_k otherwise.
    def shard(router, x):
        chosen, weights = route(router, x, sizes.top_k)
        load = jnp.zeros((sizes.experts,), jnp.int32).at[chosen.reshape(-1)].add(1)
        return chosen, weights, jax.lax.psum(load, ("dp", "ep"))

    return jax.shard_map(shard, in_specs=(P(), TOKENS), out_specs=(TOKENS, TOKENS, P()))(router, x)


def _experts(recv: jax.Array, weights: jax.Array, counts: jax.Array, experts: dict) -> jax.Array:
    """Each zone through its expert, times the routes' weights. Padding and tail stay zeros."""

    def shard(recv, weights, counts, up, down):
        product = functools.partial(
            jax.lax.ragged_dot, group_sizes=counts[0], preferred_element_type=jnp.float32
        )
        hidden = jax.nn.gelu(product(recv[0], up)).astype(recv.dtype)
        return (product(hidden, down) * weights[0][:, None]).astype(recv.dtype)[None]

    return jax.shard_map(
        shard, in_specs=(TOKENS, TOKENS, TOKENS, EXPERTS, EXPERTS), out_specs=TOKENS
    )(recv, weights, counts, experts["up"], experts["down"])


def epd_moe(sizes: Sizes, slots: int, alignment: int, received=lambda recv, index: recv) -> Moe:
    """A Moe for model.forward. ``slots``: receive capacity of a rank. ``received``: of a block's rows, as they came."""
    layer = ep.EpLayerConfig(top_k=sizes.top_k, dispatch_output_per_expert_alignment=alignment)

    def moe(block: dict, x: jax.Array, index: int):
        chosen, weights, load = _route(block["router"], x, sizes)
        recv, recv_weights, handle, counts, _ = ep.ep_dispatch(layer, chosen, x, weights, slots)
        rows = _experts(received(recv, index), recv_weights, counts, block["experts"])
        return ep.ep_combine(layer, handle, counts, rows, x.shape[:2]), chosen, load

    return moe
