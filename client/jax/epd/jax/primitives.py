"""The single operations: ep_dispatch and ep_combine are made of them. Each is linear in its rows and weights, and JAX can
differentiate it forwards, backwards and again."""

import jax
import jax.numpy as jnp

from epd.jax import _checks, _operations, _spec
from epd.jax._call import Static, align_varying
from epd.jax.config import EpConfig, EpLayerConfig, bootstrapped, get_ep_config
from epd.jax.mesh import _ep_domain_for_rank, current_layout
from epd.jax.prepare import ep_prepare, integer_indices

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
        tokens: float32, bfloat16 or float16 ``[leading, H]``, traced.
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
    name = "ep_dispatch_fwd"
    group, cfg = bootstrapped(), _checks.layer(name, cfg)
    topk_idx, handle_mem = integer_indices(name, topk_idx), jnp.asarray(handle_mem)
    tokens, topk_weights = jnp.asarray(tokens), jnp.asarray(topk_weights)
    _checks.floating_weights(name, "topk_weights", topk_weights)
    capacity = _checks.static_int(name, "recv_capacity_per_rank", recv_capacity_per_rank)
    layout = current_layout(tokens, topk_idx)
    check = _checks.CallCheck(name, group, layout, cfg)
    check_tokens(check, cfg, topk_idx, tokens, topk_weights, group.config.hidden_dim)
    check.handle(handle_mem)
    check.capacity(capacity)
    check.done()
    operands = align_varying(layout, [handle_mem, tokens, topk_weights.astype(jnp.float32)])
    return _operations.dispatch(Static(group, layout, cfg), capacity, *operands)


def check_tokens(
    check: _checks.CallCheck,
    cfg: EpLayerConfig,
    topk_idx: jax.Array,
    tokens: jax.Array,
    topk_weights: jax.Array,
    hidden: int,
) -> None:
    """The operands of a dispatch against each other and the bootstrapped sizes."""
    leading = tokens.shape[:-1]
    check.leading("tokens", leading)
    check.shape("tokens", tokens, (*leading, hidden))
    check.rows("tokens", tokens)
    check.shape("topk_idx", topk_idx, (*leading, cfg.top_k))
    check.shape("topk_weights", topk_weights, (*leading, cfg.top_k))


def ep_combine_fwd(
    cfg: EpLayerConfig,
    handle_mem: jax.Array,
    expert_out: jax.Array,
    num_local_tokens: int | tuple[int, ...],
    out_partition_spec=None,
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
    name = "ep_combine_fwd"
    group, cfg = bootstrapped(), _checks.layer(name, cfg)
    handle_mem, expert_out = jnp.asarray(handle_mem), jnp.asarray(expert_out)
    leading = _checks.leading_shape(name, num_local_tokens)
    spec = _spec.normalize(out_partition_spec, len(leading) + 1)
    layout = current_layout(expert_out, handle_mem)
    check = _checks.CallCheck(name, group, layout, cfg)
    check_expert_rows(check, layout.num_shards, "expert_out", expert_out, group.config.hidden_dim)
    check.leading("num_local_tokens", leading)
    check.handle(handle_mem)
    if wrong := _spec.mismatch(spec, layout):
        check.other(wrong)
    check.done()
    operands = align_varying(layout, [handle_mem, expert_out])
    out = _operations.combine(Static(group, layout, cfg), leading, *operands)
    return _spec.constrain(out, spec, layout)


def check_expert_rows(
    check: _checks.CallCheck, shards: int, name: str, rows: jax.Array, hidden: int
) -> None:
    """[R, C, H] with C at most the bootstrapped capacity."""
    check.shape(name, rows, (shards, "C", hidden))
    check.rows(name, rows)
    if rows.ndim == 3:
        check.capacity(rows.shape[1])


def ep_dispatch_bwd(
    cfg: EpLayerConfig,
    handle_mem: jax.Array,
    grad: jax.Array,
    g_recv_topk_weights: jax.Array,
    num_local_tokens: int | tuple[int, ...],
    out_partition_spec=None,
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
    name = "ep_dispatch_bwd"
    group, cfg = bootstrapped(), _checks.layer(name, cfg)
    handle_mem, grad = jnp.asarray(handle_mem), jnp.asarray(grad)
    g_recv_topk_weights = jnp.asarray(g_recv_topk_weights)
    _checks.floating_weights(name, "g_recv_topk_weights", g_recv_topk_weights)
    leading = _checks.leading_shape(name, num_local_tokens)
    spec = _spec.normalize(out_partition_spec, len(leading) + 1)
    layout = current_layout(grad, handle_mem)
    check = _checks.CallCheck(name, group, layout, cfg)
    check_expert_rows(check, layout.num_shards, "grad", grad, group.config.hidden_dim)
    check.shape("g_recv_topk_weights", g_recv_topk_weights, grad.shape[:2])
    check.leading("num_local_tokens", leading)
    check.handle(handle_mem)
    if wrong := _spec.mismatch(spec, layout):
        check.other(wrong)
    check.done()
    operands = align_varying(layout, [handle_mem, grad, g_recv_topk_weights.astype(jnp.float32)])
    grad_tokens, grad_weights = _operations.dispatch_backward(
        Static(group, layout, cfg), leading, *operands
    )
    return _spec.constrain(grad_tokens, spec, layout), _spec.constrain(grad_weights, spec, layout)


def ep_combine_bwd(
    cfg: EpLayerConfig, handle_mem: jax.Array, grad: jax.Array, recv_capacity_per_rank: int
) -> jax.Array:
    """Gradient of combine: each live slot gets its token's row, every other slot zeros. Collective.

    Args:
        cfg: static; the layer.
        handle_mem: uint8 ``[R, size]``, traced.
        grad: ``[leading, H]``, traced: the cotangent of combine's result.
        recv_capacity_per_rank: static; C of the ``expert_out`` that was combined.

    Returns:
        ``[R, C, H]`` in the dtype of ``grad``.

    Raises:
        As ep_dispatch_fwd.
    """
    name = "ep_combine_bwd"
    group, cfg = bootstrapped(), _checks.layer(name, cfg)
    handle_mem, grad = jnp.asarray(handle_mem), jnp.asarray(grad)
    capacity = _checks.static_int(name, "recv_capacity_per_rank", recv_capacity_per_rank)
    layout = current_layout(grad, handle_mem)
    check = _checks.CallCheck(name, group, layout, cfg)
    check.leading("grad", grad.shape[:-1])
    check.shape("grad", grad, (*grad.shape[:-1], group.config.hidden_dim))
    check.rows("grad", grad)
    check.handle(handle_mem)
    check.capacity(capacity)
    check.done()
    operands = align_varying(layout, [handle_mem, grad])
    static = Static(group, layout, cfg)
    return _operations.combine_backward(static, grad.shape[:-1], capacity, *operands)
