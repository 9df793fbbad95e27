"""ep_prepare: exchange how many tokens go where, and plan."""

import functools
import math

import jax
import jax.numpy as jnp

from epd.jax import _checks, _ffi
from epd.jax._call import Static, align_varying, ffi_call, mapped
from epd.jax._open_sharding import open_sharding
from epd.jax.config import EpLayerConfig, bootstrapped
from epd.jax.mesh import current_layout


def integer_indices(function: str, topk_idx: jax.Array) -> jax.Array:
    """TypeError unless int32 or int64."""
    topk_idx = jnp.asarray(topk_idx)
    if topk_idx.dtype not in (jnp.int32, jnp.int64):
        raise TypeError(f"{function}: topk_idx must be int32 or int64, got {topk_idx.dtype}")
    return topk_idx


def _shard(static: Static, topk_idx: jax.Array):
    config = static.group.config
    return tuple(
        ffi_call(
            static,
            _ffi.PREPARE,
            [
                ((1, config.num_local_experts), jnp.int32),
                ((1, 1), jnp.int32),
                ((1, static.handle_mem_size), jnp.uint8),
            ],
            [topk_idx],
            tokens=math.prod(topk_idx.shape[:-1]),
        )
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def prepare(static: Static, topk_idx: jax.Array):
    """The checked operation; integers in, integers out: it has no gradient."""
    results = mapped(static, functools.partial(_shard, static), topk_idx)
    return tuple(open_sharding(static.layout, result) for result in results)


def _forward(static: Static, topk_idx: jax.Array):
    return prepare(static, topk_idx), None


def _backward(static: Static, residual: None, cotangents):
    del static, residual, cotangents
    return (None,)


prepare.defvjp(_forward, _backward)


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
    group, cfg = bootstrapped(), _checks.layer("ep_prepare", cfg)
    topk_idx = integer_indices("ep_prepare", topk_idx)
    layout = current_layout(topk_idx)
    check = _checks.CallCheck("ep_prepare", group, layout, cfg)
    check.leading("topk_idx", topk_idx.shape[:-1])
    check.shape("topk_idx", topk_idx, (*topk_idx.shape[:-1], cfg.top_k))
    check.done()
    (topk_idx,) = align_varying(layout, [topk_idx])
    return prepare(Static(group, layout, cfg), topk_idx)
