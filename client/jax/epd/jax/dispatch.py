"""ep_dispatch: prepare and dispatch in one, with its gradient."""

import jax
import jax.numpy as jnp

from epd.jax import _checks, _names
from epd.jax._call import Static, layout_for
from epd.jax._checked_operations import (
    Payload,
    align_payload,
    arrays_of,
    check_tokens,
    dispatch_payload,
)
from epd.jax.config import EpLayerConfig, GroupSpec, bootstrapped
from epd.jax.prepare import integer_indices, prepare


def ep_dispatch(
    cfg: EpLayerConfig,
    topk_idx: jax.Array,
    tokens: jax.Array,
    topk_weights: jax.Array,
    recv_capacity_per_rank: int,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """Sends each token's row and weight to the ranks of its experts. Collective; differentiable.

    Args:
        cfg: static; the layer.
        topk_idx: int32 or int64 ``[leading, K]``, traced; experts in [0, num_experts), negative: none.
        tokens: ``[leading, H]`` of any dtype of 1, 2, 4 or 8 bytes, traced; at most as wide as max_token_dtype. Or a
            pytree of arrays ``[leading, h]`` that travel under one plan, such as quantised rows and their scales: each
            of any dtype and h, with rows of at most ``hidden_dim`` x ``max_token_dtype`` bytes.
        topk_weights: floating ``[leading, K]``, traced; travels as float32.
        recv_capacity_per_rank: static; slots of this call's receive buffer, C, at most the bootstrapped capacity.

    Returns:
        ``(recv_tokens [R, C, H], recv_topk_weights f32 [R, C], handle_mem u8 [R, size], token_counts i32 [R, n],
        total_recv_tokens i32 [R, 1])``; recv_tokens is a pytree if tokens is one. The receive buffer is expert-major: one zone per local expert, padded to the
        alignment with zeros; inside a zone by source rank, then token, then k.

    Gradients, in the primals' dtypes: of a token the sum over its slots, of a weight its slot's. None for ``topk_idx``. Rows
    of other dtypes than float32, bfloat16 and float16 cannot be summed: they need ``jax.lax.stop_gradient`` in a function
    that is differentiated with respect to them.

    Raises:
        RuntimeError: not bootstrapped.
        TypeError: weights that are not floating, indices that are not int32 or int64, a traced capacity, tokens without
            arrays, a gradient of rows that cannot be summed.
        ValueError: while tracing, shapes and sizes that do not fit; all of them in one error.
        At run time, on every rank, see ``epd.jax.errors``: RESOURCE_EXHAUSTED, overflow without drop_on_overflow, naming
        rank, demand and capacity; INVALID_ARGUMENT, an index of num_experts or more; UNAVAILABLE; DEADLINE_EXCEEDED.
    """
    return checked_dispatch(
        bootstrapped(), "ep_dispatch", cfg, topk_idx, tokens, topk_weights, recv_capacity_per_rank
    )


def checked_dispatch(
    group: GroupSpec,
    function: str,
    cfg: EpLayerConfig,
    topk_idx: jax.Array,
    tokens: Payload,
    topk_weights: jax.Array,
    recv_capacity_per_rank: int,
    name: str | None = None,
) -> tuple[Payload, jax.Array, jax.Array, jax.Array, jax.Array]:
    """ep_dispatch in ``group``; ``function`` is what the caller called."""
    cfg = _checks.layer(function, cfg)
    tokens, topk_weights = arrays_of(function, tokens), jnp.asarray(topk_weights)
    _checks.floating_weights(function, "topk_weights", topk_weights)
    topk_idx = integer_indices(function, topk_idx)
    capacity = _checks.static_int(function, "recv_capacity_per_rank", recv_capacity_per_rank)
    layout = layout_for(group, *jax.tree.leaves(tokens), topk_idx)
    check = _checks.CallCheck(function, group, layout, cfg)
    check_tokens(check, cfg, topk_idx, tokens, topk_weights, group.config.hidden_dim)
    check.capacity(capacity)
    check.done()
    name = _names.take(function, group, name, ("prepare", "dispatch", "dispatch backward"))
    static = Static(group, layout, cfg, name)
    topk_idx, tokens, topk_weights = align_payload(layout, topk_idx, tokens, topk_weights)
    token_counts, total_recv_tokens, handle_mem = prepare(static, topk_idx)
    recv_tokens, recv_topk_weights = dispatch_payload(
        static, capacity, handle_mem, tokens, topk_weights.astype(jnp.float32)
    )
    return recv_tokens, recv_topk_weights, handle_mem, token_counts, total_recv_tokens
