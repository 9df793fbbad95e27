"""The four operations that move rows, checked by their callers. Each takes and returns arrays as the caller sees them.

``leading`` is the leading shape of the tokens as the caller sees it, ``capacity`` the slots of one rank.
"""

import functools
import math

import jax
import jax.numpy as jnp

from epd.jax import _ffi
from epd.jax._call import Static, ffi_call, mapped
from epd.jax._empty_call import cut


def _shard_leading(static: Static, leading: tuple[int, ...]) -> tuple[int, ...]:
    return (leading[0] // static.layout.num_shards, *leading[1:])


def _dispatch_shard(static: Static, capacity: int, handle_mem, tokens, topk_weights):
    hidden = tokens.shape[-1]
    return tuple(
        ffi_call(
            static,
            _ffi.DISPATCH,
            [((1, capacity, hidden), tokens.dtype), ((1, capacity), jnp.float32)],
            [handle_mem, tokens, topk_weights],
            tokens=math.prod(tokens.shape[:-1]),
            hidden=hidden,
            capacity=capacity,
        )
    )


def dispatch(
    static: Static, capacity: int, handle_mem: jax.Array, tokens: jax.Array, topk_weights: jax.Array
):
    """-> recv_tokens [R, capacity, H], recv_topk_weights f32 [R, capacity]."""
    return mapped(
        static,
        functools.partial(_dispatch_shard, static, capacity),
        handle_mem,
        tokens,
        topk_weights,
    )


def _combine_shard(static: Static, leading: tuple[int, ...], handle_mem, expert_out):
    capacity, hidden = expert_out.shape[-2:]
    (tokens,) = ffi_call(
        static,
        _ffi.COMBINE,
        [((*leading, hidden), expert_out.dtype)],
        [handle_mem, expert_out],
        tokens=math.prod(leading),
        hidden=hidden,
        capacity=capacity,
    )
    return tokens


def combine_rows(
    static: Static, leading: tuple[int, ...], handle_mem: jax.Array, expert_out: jax.Array
) -> jax.Array:
    """-> [leading, H], with the rows that an empty call gives beyond it (see _empty_call)."""
    shard = functools.partial(_combine_shard, static, _shard_leading(static, leading))
    return mapped(static, shard, handle_mem, expert_out)


def combine(
    static: Static, leading: tuple[int, ...], handle_mem: jax.Array, expert_out: jax.Array
) -> jax.Array:
    """-> [leading, H]."""
    rows = combine_rows(static, leading, handle_mem, expert_out)
    return cut(rows, (*leading, expert_out.shape[-1]))


def _dispatch_backward_shard(
    static: Static, leading: tuple[int, ...], handle_mem, grad, g_recv_topk_weights
):
    capacity, hidden = grad.shape[-2:]
    return tuple(
        ffi_call(
            static,
            _ffi.DISPATCH_BWD,
            [((*leading, hidden), grad.dtype), ((*leading, static.cfg.top_k), jnp.float32)],
            [handle_mem, grad, g_recv_topk_weights],
            tokens=math.prod(leading),
            hidden=hidden,
            capacity=capacity,
        )
    )


def dispatch_backward(
    static: Static,
    leading: tuple[int, ...],
    handle_mem: jax.Array,
    grad: jax.Array,
    g_recv_topk_weights: jax.Array,
):
    """-> grad_tokens [leading, H], grad_topk_weights f32 [leading, K]."""
    shard = functools.partial(_dispatch_backward_shard, static, _shard_leading(static, leading))
    grad_tokens, grad_weights = mapped(static, shard, handle_mem, grad, g_recv_topk_weights)
    return (
        cut(grad_tokens, (*leading, grad.shape[-1])),
        cut(grad_weights, (*leading, static.cfg.top_k)),
    )


def _combine_backward_shard(static: Static, num_tokens: int, capacity: int, handle_mem, grad):
    hidden = grad.shape[-1]
    (grad_expert_out,) = ffi_call(
        static,
        _ffi.COMBINE_BWD,
        [((1, capacity, hidden), grad.dtype)],
        [handle_mem, grad],
        tokens=num_tokens,
        hidden=hidden,
        capacity=capacity,
    )
    return grad_expert_out


def combine_backward(
    static: Static,
    leading: tuple[int, ...],
    capacity: int,
    handle_mem: jax.Array,
    grad: jax.Array,
) -> jax.Array:
    """-> grad_expert_out [R, capacity, H]. Without tokens any ``grad`` will do: it is not read."""
    num_tokens = math.prod(_shard_leading(static, leading))
    shard = functools.partial(_combine_backward_shard, static, num_tokens, capacity)
    return mapped(static, shard, handle_mem, grad)
