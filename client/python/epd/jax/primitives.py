"""The single operations: ep_dispatch and ep_combine are made of them. Each is linear in its rows and weights, and JAX can
differentiate it forwards, backwards and again."""

import jax

from epd.jax._checked_operations import Operation
from epd.jax._out_sharding import SpecLike
from epd.jax.config import EpConfig, EpLayerConfig, bootstrapped, get_ep_config
from epd.jax.functional import ep_prepare
from epd.jax.mesh import _ep_domain_for_rank

__all__ = [
    "EpConfig",
    "EpLayerConfig",
    "_ep_domain_for_rank",
    "ep_combine_bwd",
    "ep_combine_fwd",
    "ep_dispatch_bwd",
    "ep_dispatch_fwd",
    "ep_prepare",
    "get_ep_config",
]


def ep_dispatch_fwd(
    cfg: EpLayerConfig,
    handle_mem: jax.Array,
    topk_idx: jax.Array,
    tokens: jax.Array,
    topk_weights: jax.Array,
    recv_capacity_per_rank: int,
) -> tuple[jax.Array, jax.Array]:
    """Sends each token's row and weight to its experts' ranks, by the plan in ``handle_mem``. Collective.

    Args:
        cfg: static; the layer.
        handle_mem: uint8 ``[R, size]`` of ``ep_prepare``, traced.
        topk_idx: int32 or int64 ``[leading, K]``, traced: what the plan was made of. Only its shape is looked at.
        tokens: ``[leading, H]`` of any dtype of 1, 2, 4 or 8 bytes, or a pytree of payloads, traced; as for ep_dispatch.
        topk_weights: floating ``[leading, K]``, traced; converted to float32.
        recv_capacity_per_rank: static; slots of this call's receive buffer, C, at most the bootstrapped capacity.

    Returns:
        ``recv_tokens [R, C, H]`` in the tokens' dtype; ``recv_topk_weights`` float32 ``[R, C]``. Padding and tail are zeros.

    Raises:
        RuntimeError: not bootstrapped.
        TypeError: indices or weights of a wrong kind, a traced capacity.
        ValueError: while tracing, shapes and sizes that do not fit; all of them in one error.
        At run time, on every rank, see ``epd.jax.errors``: RESOURCE_EXHAUSTED, overflow without drop; INVALID_ARGUMENT,
        a plan of another group or call; DATA_LOSS, a damaged plan; ABORTED, a plan from before the group was re-formed.
    """
    given = (cfg, handle_mem, topk_idx, tokens, topk_weights, recv_capacity_per_rank)
    return Operation(bootstrapped(), "ep_dispatch_fwd").dispatch_fwd(*given)


def ep_combine_fwd(
    cfg: EpLayerConfig,
    handle_mem: jax.Array,
    expert_out: jax.Array,
    num_local_tokens: int | tuple[int, ...],
    out_partition_spec: SpecLike = None,
) -> jax.Array:
    """Sums each token's expert rows back, unweighted, in float32 and in k order. Collective.

    Args:
        cfg: static; the layer.
        handle_mem: uint8 ``[R, size]``, traced.
        expert_out: ``[R, C, H]``, traced; only live slots are read.
        num_local_tokens: static; the leading shape of the result as the caller sees it: an int for ``[T, H]``, a tuple
            for ``[B, S, H]``. Global in a jit; the shard's inside a shard_map of the caller's.
        out_partition_spec: static; tuple or PartitionSpec, padded with None. Default: the leading dimension over
            (outer, ep).

    Returns:
        ``[leading, H]`` in the dtype of ``expert_out``.

    Raises:
        As ep_dispatch_fwd.
    """
    given = (cfg, handle_mem, expert_out, num_local_tokens, out_partition_spec)
    return Operation(bootstrapped(), "ep_combine_fwd").combine(*given, names=("combine",))


def ep_dispatch_bwd(
    cfg: EpLayerConfig,
    handle_mem: jax.Array,
    grad: jax.Array,
    g_recv_topk_weights: jax.Array,
    num_local_tokens: int | tuple[int, ...],
    out_partition_spec: SpecLike = None,
) -> tuple[jax.Array, jax.Array]:
    """Gradients of dispatch: of a token, the sum over its slots; of a weight, its slot's. Collective.

    Args:
        cfg: static; the layer.
        handle_mem: uint8 ``[R, size]``, traced.
        grad: ``[R, C, H]``, traced: the cotangent of ``recv_tokens``.
        g_recv_topk_weights: floating ``[R, C]``, traced: the cotangent of ``recv_topk_weights``.
        num_local_tokens, out_partition_spec: static; as for ep_combine_fwd.

    Returns:
        ``grad_tokens [leading, H]`` in the dtype of ``grad``; ``grad_topk_weights`` float32 ``[leading, K]``.

    Raises:
        As ep_dispatch_fwd.
    """
    given = (cfg, handle_mem, grad, g_recv_topk_weights, num_local_tokens, out_partition_spec)
    return Operation(bootstrapped(), "ep_dispatch_bwd").dispatch_bwd(*given)


def ep_combine_bwd(
    cfg: EpLayerConfig, handle_mem: jax.Array, grad: jax.Array, recv_capacity_per_rank: int
) -> jax.Array:
    """Gradient of combine: each live slot gets its token's row, every other slot zeros. Collective.

    Args:
        cfg: static; the layer.
        handle_mem: uint8 ``[R, size]``, traced.
        grad: ``[leading, H]``, traced: the cotangent of combine's result. Of any dtype of 1, 2, 4 or 8 bytes.
        recv_capacity_per_rank: static; C of the ``expert_out`` that was combined.

    Returns:
        ``[R, C, H]`` in the dtype of ``grad``.

    Raises:
        As ep_dispatch_fwd.
    """
    given = (cfg, handle_mem, grad, recv_capacity_per_rank)
    return Operation(bootstrapped(), "ep_combine_bwd").combine_bwd(*given)
