"""The functional API: prepare, dispatch and combine in the default group, with their gradients."""

from typing import Any, Literal, TypeAlias, overload

import jax

from epd.jax import _checks
from epd.jax._checked_operations import Operation
from epd.jax._out_sharding import SpecLike
from epd.jax.config import EpLayerConfig, bootstrapped
from epd.jax.started_exchange import StartedExchange

# recv_tokens, recv_topk_weights, handle_mem, token_counts, total_recv_tokens.
Dispatched: TypeAlias = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]


def ep_prepare(cfg: EpLayerConfig, topk_idx: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Exchanges how many tokens each rank sends to each expert, and plans where each row goes. Collective.

    Args:
        cfg: static; the layer.
        topk_idx: int32 or int64 ``[leading, top_k]``, traced; experts of each token, in [0, num_experts); negative: none.
            "leading" is ``[T]`` or more dimensions; the first one is split over the ranks.

    Returns:
        ``token_counts`` int32 ``[R, num_local_experts]``: slots of each expert's zone, padding included, before any drop.
        ``total_recv_tokens`` int32 ``[R, 1]``: their sum.
        ``handle_mem`` uint8 ``[R, ep_handle_mem_size(cfg)]``: the routing plan, for the other operations.

    Raises:
        RuntimeError: not bootstrapped.
        TypeError: ``topk_idx`` is not int32 or int64.
        ValueError: while tracing, shapes that do not fit; all of them in one error.
        At run time, on every rank, see ``epd.jax.errors``: INVALID_ARGUMENT, an index of num_experts or more; UNAVAILABLE,
        a rank or the daemon is gone; DEADLINE_EXCEEDED, a rank is late.
    """
    return Operation(bootstrapped(), "ep_prepare").prepare(cfg, topk_idx)


@overload
def ep_dispatch(
    cfg: EpLayerConfig,
    topk_idx: jax.Array,
    tokens: jax.Array,
    topk_weights: jax.Array,
    recv_capacity_per_rank: int,
    *,
    start: Literal[False] = False,
) -> Dispatched: ...
@overload
def ep_dispatch(
    cfg: EpLayerConfig,
    topk_idx: jax.Array,
    tokens: jax.Array,
    topk_weights: jax.Array,
    recv_capacity_per_rank: int,
    *,
    start: Literal[True],
) -> StartedExchange[Dispatched]: ...
def ep_dispatch(
    cfg: EpLayerConfig,
    topk_idx: jax.Array,
    tokens: jax.Array,
    topk_weights: jax.Array,
    recv_capacity_per_rank: int,
    *,
    start: bool = False,
) -> Any:
    """Sends each token's row and weight to the ranks of its experts. Collective; differentiable.

    Args:
        cfg: static; the layer.
        topk_idx: int32 or int64 ``[leading, K]``, traced; experts in [0, num_experts), negative: none.
        tokens: ``[leading, H]`` of any dtype of 1, 2, 4 or 8 bytes, traced; at most as wide as max_token_dtype. Or a
            pytree of arrays ``[leading, h]`` that travel under one plan, such as quantised rows and their scales: each
            of any dtype and h, with rows of at most ``hidden_dim`` x ``max_token_dtype`` bytes.
        topk_weights: floating ``[leading, K]``, traced; travels as float32.
        recv_capacity_per_rank: static; slots of this call's receive buffer, C, at most the bootstrapped capacity.
        start: static; True: returns a StartedExchange, whose ``done()`` returns what follows, so that something else can be
            computed while rows travel. On CPUs; not in a group of roles.

    Returns:
        ``(recv_tokens [R, C, H], recv_topk_weights f32 [R, C], handle_mem u8 [R, size], token_counts i32 [R, n],
        total_recv_tokens i32 [R, 1])``; recv_tokens is a pytree if tokens is one. The receive buffer is expert-major: one zone per local expert, padded to the
        alignment with zeros; inside a zone by source rank, then token, then k.

    Gradients, in the primals' dtypes: of a token the sum over its slots, of a weight its slot's. None for ``topk_idx``. Rows
    of other dtypes than float32, bfloat16 and float16 cannot be summed: they need ``jax.lax.stop_gradient`` in a function
    that is differentiated with respect to them.

    Raises:
        RuntimeError: not bootstrapped.
        TypeError: weights that are not floating, indices that are not int32 or int64, a traced capacity, a start that is no
            bool, tokens without arrays, a gradient of rows that cannot be summed.
        ValueError: while tracing, shapes and sizes that do not fit; all of them in one error.
        At run time, on every rank, see ``epd.jax.errors``: RESOURCE_EXHAUSTED, overflow without drop_on_overflow, naming
        rank, demand and capacity; INVALID_ARGUMENT, an index of num_experts or more; UNAVAILABLE; DEADLINE_EXCEEDED.
    """
    given = (cfg, topk_idx, tokens, topk_weights, recv_capacity_per_rank)
    return Operation(bootstrapped(), "ep_dispatch").dispatch(*given, start=start)


@overload
def ep_combine(
    cfg: EpLayerConfig,
    handle_mem: jax.Array,
    token_counts: jax.Array,
    expert_out: jax.Array,
    num_local_tokens: int | tuple[int, ...],
    out_sharding: SpecLike = None,
    *,
    start: Literal[False] = False,
) -> jax.Array: ...
@overload
def ep_combine(
    cfg: EpLayerConfig,
    handle_mem: jax.Array,
    token_counts: jax.Array,
    expert_out: jax.Array,
    num_local_tokens: int | tuple[int, ...],
    out_sharding: SpecLike = None,
    *,
    start: Literal[True],
) -> StartedExchange[jax.Array]: ...
def ep_combine(
    cfg: EpLayerConfig,
    handle_mem: jax.Array,
    token_counts: jax.Array,
    expert_out: jax.Array,
    num_local_tokens: int | tuple[int, ...],
    out_sharding: SpecLike = None,
    *,
    start: bool = False,
) -> Any:
    """Sums the rows that the experts made of a token, back on the token's rank. Unweighted. Collective; differentiable.

    Multiply ``expert_out`` by ``recv_topk_weights`` first: the gradient of the weights flows through that product. The sum
    is taken in float32, in k order, and rounded once; a dropped route adds nothing; slots that hold no row are not read.

    Args:
        cfg: static; the layer.
        handle_mem: uint8 ``[R, size]`` of the layer's ep_dispatch, traced.
        token_counts: of the layer's ep_dispatch. Not needed: the plan holds the counts.
        expert_out: float32, bfloat16 or float16 ``[R, C, H]``, traced.
        num_local_tokens: static; the leading shape of the result as the caller sees it: an int for ``[T, H]``, a tuple
            for ``[B, S, H]``. Global in a jit; the shard's inside a shard_map of the caller's.
        out_sharding: static; tuple or PartitionSpec, padded with None. Default: the leading dimension over (outer, ep).
        start: static; as of ep_dispatch.

    Returns:
        ``[leading, H]`` in the dtype of ``expert_out``.

    Gradient: ``grad_expert_out[slot(t, k)] = g[t]``, zeros everywhere else. None for ``handle_mem`` and ``token_counts``.

    Raises:
        RuntimeError: not bootstrapped.
        TypeError: a traced ``num_local_tokens``, a start that is no bool.
        ValueError: while tracing, shapes and sizes that do not fit; all of them in one error.
        At run time, on every rank, see ``epd.jax.errors``.
    """
    del token_counts
    given = (cfg, handle_mem, expert_out, num_local_tokens, out_sharding)
    return Operation(bootstrapped(), "ep_combine").combine(*given, start=start)


def ep_handle_mem_size(cfg: EpLayerConfig) -> int:
    """Bytes of one rank's routing plan, the same on all ranks.

    Raises:
        RuntimeError: not bootstrapped.
        TypeError: ``cfg`` is no EpLayerConfig.
    """
    spec = bootstrapped()
    return spec.handle_mem_size(_checks.layer("ep_handle_mem_size", cfg).top_k)
