"""What one rank computes in a layer: routes, its experts' rows, the shared experts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp

from epd.jax._call import varying, widened
from epd.jax.layers import router
from epd.jax.layers._mesh_mapping import Shards
from epd.jax.layers.config import MoeConfig
from epd.jax.layers.grouped_gemm import rows_of_groups, sizes_within

_F32 = jnp.float32

# One part of the parameters: "router", "experts" or "shared".
Part: TypeAlias = dict[str, jax.Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Statistics:
    """Of each set of a rank's tokens over which losses are taken: ``load`` i32 [sets, E]; sums over the tokens of
    ``shares`` [sets, E] and of the squares of ``logsumexp(logits)`` [sets]; how many ``tokens`` [sets]."""

    load: jax.Array
    shares: jax.Array
    squares: jax.Array
    tokens: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Routed:
    """A rank's routes: ``chosen`` and ``weights`` [leading, K]; ``load`` i32 [1, E]."""

    chosen: jax.Array
    weights: jax.Array
    load: jax.Array
    statistics: Statistics


def _spread(params: Part, like: jax.Array) -> Part:
    """``params``, varying over ranks as ``like`` does: so their gradients are summed over ranks in the parameters' own dtype,
    before any cast."""
    axes = varying(like)
    return jax.tree.map(lambda array: widened(array, axes), params)


def _exact(rows: jax.Array, matrix: jax.Array) -> jax.Array:
    """The product in float32, also where the hardware would rather round to less."""
    return jnp.matmul(rows.astype(_F32), matrix.astype(_F32), precision=jax.lax.Precision.HIGHEST)


# ---- router ----


def route_tokens(
    config: MoeConfig, params: Part, tokens: jax.Array, token_mask: jax.Array | None
) -> Routed:
    """-> Routed, of this rank's ``tokens`` [leading, H]."""
    cfg, params = config.router, _spread(params, tokens)
    logits = _exact(tokens, params["kernel"])
    routing = router.route(cfg, logits, params.get("selection_bias"), token_mask)
    live = jnp.ones(tokens.shape[:-1], _F32) if token_mask is None else token_mask.astype(_F32)
    sets = live.shape[0] if cfg.balance_over == "sequence" else 1
    length = live.size // max(sets, 1)
    load = router.loads(cfg, routing.chosen.reshape(sets, length, cfg.top_k))
    shares = (routing.shares * live[..., None]).reshape(sets, length, cfg.num_experts).sum(1)
    squares = jnp.square(jax.nn.logsumexp(logits, axis=-1)) * live
    statistics = Statistics(
        load, shares, squares.reshape(sets, length).sum(1), live.reshape(sets, length).sum(1)
    )
    return Routed(
        routing.chosen, routing.weights, load.sum(0, keepdims=True, dtype=load.dtype), statistics
    )


def losses(
    config: MoeConfig, num_ranks: int, statistics: Statistics, all_load: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """-> loss, balance loss, z loss, each [1], of this rank, so that the means over ranks are the losses meant.

    ``all_load`` i32 [E]: of all ``num_ranks`` ranks, or None where a rank's own counts. The mean over ranks of
    ``E * sum_e f_e P_e(rank)`` is the loss over all tokens if f is of all ranks and each divides by the mean number of
    tokens: so integers are summed over ranks, and no gradient is.
    """
    cfg, load, tokens = config.router, statistics.load, statistics.tokens
    if all_load is not None:
        load = all_load[None]
        tokens = load.astype(_F32).sum(-1) / (cfg.top_k * num_ranks)
    sets = max(tokens.shape[0], 1)
    balance = router.balance_loss(load, statistics.shares, tokens).sum() / sets
    z = (statistics.squares / jnp.maximum(tokens, 1e-9)).sum() / sets
    return (cfg.balance_loss * balance + cfg.z_loss * z)[None], balance[None], z[None]


# ---- experts ----


def _ffn(
    config: MoeConfig,
    params: Part,
    rows: jax.Array,
    product: Callable[[jax.Array, jax.Array], jax.Array],
    bias: Callable[[jax.Array], jax.Array],
    weights: jax.Array | None,
) -> jax.Array:
    """``down(activation(gate(rows)) * up(rows))`` in float32, without the last bias."""

    def linear(name: str) -> jax.Array:
        out = product(rows, params[name])
        return out + bias(params[f"{name}_bias"]) if f"{name}_bias" in params else out

    inner = (
        config.activate(linear("gate")) * linear("up")
        if config.gated
        else config.activate(linear("up"))
    )
    if weights is not None:
        inner = inner * weights[:, None]
    return product(inner.astype(rows.dtype), params["down"])


def apply_experts(
    config: MoeConfig,
    shards: Shards,
    params: Part,
    recv: jax.Array,
    weights: jax.Array,
    counts: jax.Array,
) -> jax.Array:
    """Each zone of ``recv`` [1, C, H] through its expert, times the routes' ``weights`` [1, C]; ``counts`` [1, n]."""
    rows, weights, sizes = recv[0], weights[0], sizes_within(counts[0], recv.shape[1])
    params = _spread(params, recv)
    dtype, num_rows = rows.dtype, rows.shape[0]

    def product(rows: jax.Array, matrices: jax.Array) -> jax.Array:
        return config.gemm.function(
            rows,
            matrices.astype(dtype),
            group_sizes=sizes,
            preferred_element_type=_F32,
            precision=config.precision,
        )

    def bias(vectors: jax.Array) -> jax.Array:
        return rows_of_groups(vectors.astype(_F32), sizes, num_rows)

    early = weights if config.apply_weights == "early" else None
    out = _whole(shards, _ffn(config, params, rows, product, bias, early))
    if "down_bias" in params:
        added = bias(params["down_bias"])
        out = out + (added if early is None else added * weights[:, None])
    if early is None:
        out = out * weights[:, None]
    return out.astype(dtype)[None]


def _whole(shards: Shards, rows: jax.Array) -> jax.Array:
    """The sum over the parts of a split inner dimension."""
    return rows if shards.mlp is None else jax.lax.psum(rows, shards.mlp)


def add_shared_experts(
    config: MoeConfig, shards: Shards, params: Part, tokens: jax.Array, out: jax.Array
) -> jax.Array:
    """``out`` [leading, H] plus what the shared experts make of ``tokens``."""
    params = _spread(params, tokens)
    dtype = tokens.dtype

    def product(rows: jax.Array, matrix: jax.Array) -> jax.Array:
        return jnp.matmul(
            rows, matrix.astype(dtype), precision=config.precision, preferred_element_type=_F32
        )

    shared = _whole(shards, _ffn(config, params, tokens, product, lambda vector: vector, None))
    if "mix" in params:
        logit = _exact(tokens, params["mix"])
        shared = shared * jax.nn.sigmoid(logit)
    return (out.astype(_F32) + shared).astype(dtype)
