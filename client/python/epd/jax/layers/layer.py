"""moe: a mixture-of-experts layer as a plain function of its parameters and tokens."""

import functools
import math
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from epd.jax._call import layout_for
from epd.jax._checked_operations import Operation
from epd.jax._checks import of_kind, static_int
from epd.jax.config import EpLayerConfig, bootstrapped
from epd.jax.group import Group
from epd.jax.layers import _rank_computation, parameters
from epd.jax.layers._check import checked_shards
from epd.jax.layers._mesh_mapping import Shards
from epd.jax.layers.config import MoeConfig, floating


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MoeAux:
    """What a layer says of itself, a row per rank, so that nothing is communicated which nobody reads.

    ``loss`` float32 ``[R]``: the configured losses times their coefficients; add ``loss.mean()`` to yours.
    ``balance_loss`` and ``z_loss`` float32 ``[R]``: the same before the coefficients, zeros where both of those are 0.
    ``load`` int32 ``[R, E]``: routes that the rank's tokens took to each expert.
    ``demand`` int32 ``[R]``: receive slots that the rank needed, padding included; more than ``capacity`` (static): some
    routes were dropped.
    """

    loss: jax.Array
    balance_loss: jax.Array
    z_loss: jax.Array
    load: jax.Array
    demand: jax.Array
    capacity: int = field(metadata={"static": True})


def recv_capacity(config: MoeConfig, tokens_per_rank: int, ep_size: int, dtype: DTypeLike) -> int:
    """Receive slots of a rank that are enough for any routing: what to give to ep_bootstrap. All arguments are static.

    Args:
        config: the layer; ``recv_capacity``, where it is set, is the answer.
        tokens_per_rank: of one call.
        ep_size: ranks of a domain.
        dtype: of the tokens.

    Raises:
        TypeError: ``config`` is no MoeConfig, a size no static integer, ``dtype`` no dtype.
        ValueError: sizes below 1, experts that the ranks do not divide, a dtype that is not floating.
    """
    of_kind("recv_capacity", "config", config, MoeConfig)
    tokens_per_rank, ep_size = (
        static_int("recv_capacity", name, value)
        for name, value in (("tokens_per_rank", tokens_per_rank), ("ep_size", ep_size))
    )
    dtype = floating("recv_capacity", "dtype", dtype)
    if tokens_per_rank < 0 or ep_size < 1 or config.router.num_experts % ep_size:
        raise ValueError(
            f"recv_capacity: tokens_per_rank is {tokens_per_rank} and ep_size {ep_size}; expected 0 or more, and a divisor of"
            f" num_experts {config.router.num_experts}"
        )
    if config.recv_capacity is not None:
        return config.recv_capacity
    local = config.router.num_experts // ep_size
    tokens, alignment = ep_size * tokens_per_rank, max(1, config.alignment_for(dtype))
    # The experts of a token differ: so at most min(K, local) of them are on one rank, and no expert has more rows than there are
    # tokens.
    routes = tokens * min(config.router.top_k, local) + local * (alignment - 1)
    return max(1, min(routes, local * (-(-tokens // alignment) * alignment)))


def _losses(
    config: MoeConfig, shards: Shards, routed: _rank_computation.Routed
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """-> loss, balance loss, z loss, each [R]."""
    if not config.wants_losses:
        zeros = jnp.zeros_like(routed.load[:, 0], jnp.float32)
        return zeros, zeros, zeros
    over_all = config.router.balance_over == "global"
    loss, balance, z = shards.run(
        functools.partial(_rank_computation.losses, config, shards.num_carriers),
        (shards.tokens, PartitionSpec()),
        shards.tokens,
        routed.statistics,
        shards.total(routed.load) if over_all else None,
    )
    return loss, balance, z


def moe(
    config: MoeConfig,
    params: parameters.Parameters,
    tokens: jax.Array,
    token_mask: jax.Array | None = None,
    *,
    group: Group | None = None,
    name: str | None = None,
) -> tuple[jax.Array, MoeAux]:
    """Routes tokens to experts on all ranks of the domain and sums what they make of them. Collective; differentiable.

    The router and the products with scores are in float32, matrices and rows in the tokens' dtype with sums in float32.
    Forward, XLA communicates nothing but, with a global balance loss, the load of the experts (E integers); backward, the
    gradients of parameters that several ranks hold, over those; with ``axes.mlp`` the rows of split experts, over that axis.
    For policies of ``jax.checkpoint`` the received rows and the layer's result are named "epd_recv" and "epd_moe".

    Args:
        config: static; see MoeConfig.
        params: arrays of ``init_moe``'s shapes, traced; experts split over ep (``partition_specs``), all else on every
            rank. Inside a shard_map of the caller's that is manual over ep, the rank's own experts.
        tokens: float32, bfloat16 or float16 ``[leading, H]``, traced; the first dimension is split over the ranks.
        token_mask: bool ``[leading]``, traced, or None; tokens where it is False (padding of sequences) go to no routed
            expert and count in no loss.
        group: static; None: the default group, of ep_bootstrap.
        name: static; by which ranks of different programs find each other, see Group. Once per program.

    Returns:
        ``[leading, H]`` in the tokens' dtype, and a MoeAux.

    Raises:
        RuntimeError: not bootstrapped.
        TypeError: ``config`` is no MoeConfig, ``group`` no Group.
        ValueError: while tracing, sizes, shapes, dtypes and names of axes that do not fit, each with got and wanted; no mesh.
        At run time, on every rank, what ep_dispatch and ep_combine raise.
    """
    of_kind("moe", "config", config, MoeConfig)
    if not isinstance(group, Group | None):
        raise TypeError(f"moe: group must be a Group or None, got {type(group).__name__}")
    spec, tokens = bootstrapped() if group is None else group.spec, jnp.asarray(tokens)
    token_mask = None if token_mask is None else jnp.asarray(token_mask)
    layout = layout_for(spec, tokens)
    shards = checked_shards(config, params, tokens, token_mask, layout, spec)
    sizes, leading = spec.config, tokens.shape[:-1]
    params = {part: dict(named) for part, named in params.items()}
    layer = EpLayerConfig(config.router.top_k, config.alignment_for(tokens.dtype))
    enough = recv_capacity(
        config, math.prod(leading) // layout.num_shards, sizes.ep_size, tokens.dtype
    )
    capacity = enough if config.recv_capacity else min(enough, sizes.recv_capacity_per_rank)

    shapes = parameters.shapes(config)
    specs = jax.tree.map(shards.spec, shapes, is_leaf=lambda n: isinstance(n, parameters.Shape))
    routed = shards.run(
        functools.partial(_rank_computation.route_tokens, config),
        (specs["router"], shards.tokens, shards.tokens),
        shards.tokens,
        params["router"],
        tokens,
        token_mask,
    )
    operation = Operation(spec, "moe", name)
    recv, weights, handle, counts, total = operation.dispatch(
        layer, routed.chosen, tokens, routed.weights, capacity
    )
    rows = shards.run(
        functools.partial(_rank_computation.apply_experts, config, shards),
        (specs["experts"], shards.tokens, shards.tokens, shards.tokens),
        shards.tokens,
        params["experts"],
        checkpoint_name(recv, "epd_recv"),
        weights,
        counts,
    )
    out = operation.combine(layer, handle, rows, leading)
    if config.shared_ffn_dim:
        out = shards.run(
            functools.partial(_rank_computation.add_shared_experts, config, shards),
            (specs["shared"], shards.tokens, shards.tokens),
            shards.tokens,
            params["shared"],
            tokens,
            out,
        )
    loss, balance, z = _losses(config, shards, routed)
    aux = MoeAux(loss, balance, z, routed.load, demand=total[:, 0], capacity=capacity)
    return checkpoint_name(out, "epd_moe"), aux
