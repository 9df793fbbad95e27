"""ep_prepare: exchange how many tokens go where, and plan."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from epd.jax import _checks, _exchange_primitive, _ffi, _names
from epd.jax._call import Static, align_varying, ffi_call, layout_for, mapped
from epd.jax._exchange_primitive import Arrays
from epd.jax._open_sharding import open_sharding
from epd.jax.config import EpLayerConfig, GroupSpec, bootstrapped


def integer_indices(function: str, topk_idx: jax.Array) -> jax.Array:
    """TypeError unless int32 or int64."""
    topk_idx = jnp.asarray(topk_idx)
    if topk_idx.dtype not in (jnp.int32, jnp.int64):
        raise TypeError(f"{function}: topk_idx must be int32 or int64, got {topk_idx.dtype}")
    return topk_idx


@dataclass(frozen=True)
class _Prepare:
    """topk_idx, a residual -> the counts, their sum, the plan. Integers: nothing to differentiate."""

    static: Static
    label = "ep_prepare"

    @property
    def carriers(self) -> tuple[str, ...]:
        return self.static.layout.carriers

    @property
    def mesh(self) -> Mesh | AbstractMesh | None:
        return self.static.layout.mesh

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        del operands
        return tuple(mapped(self.static, self._shard, *residuals))

    def transpose(self) -> "_Prepare":
        raise NotImplementedError  # It has no operands.

    def after(self, residuals: Arrays, results: Arrays) -> tuple["_Prepare", Arrays]:
        del results
        return self, residuals

    def _shard(self, topk_idx: jax.Array) -> tuple[jax.Array, ...]:
        config = self.static.group.config
        return tuple(
            ffi_call(
                self.static,
                _ffi.PREPARE,
                [
                    ((1, config.num_local_experts), jnp.int32),
                    ((1, 1), jnp.int32),
                    ((1, self.static.handle_mem_size), jnp.uint8),
                ],
                [topk_idx],
                tokens=math.prod(topk_idx.shape[:-1]),
            )
        )


def prepare(static: Static, topk_idx: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The checked operation; integers in, integers out: it has no gradient."""
    results = _exchange_primitive.bind(_Prepare(static), [topk_idx], [])
    counts, total, plan = (open_sharding(static.layout, result) for result in results)
    return counts, total, plan


def checked_prepare(
    group: GroupSpec,
    function: str,
    cfg: EpLayerConfig,
    topk_idx: jax.Array,
    name: str | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """ep_prepare in ``group``; ``function`` is what the caller called."""
    cfg = _checks.layer(function, cfg)
    topk_idx = integer_indices(function, topk_idx)
    layout = layout_for(group, topk_idx)
    check = _checks.CallCheck(function, group, layout, cfg)
    check.leading("topk_idx", topk_idx.shape[:-1])
    check.shape("topk_idx", topk_idx, (*topk_idx.shape[:-1], cfg.top_k))
    check.done()
    name = _names.take(function, group, name, ("prepare",))
    (topk_idx,) = align_varying(layout, [topk_idx])
    return prepare(Static(group, layout, cfg, name), topk_idx)


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
    return checked_prepare(bootstrapped(), "ep_prepare", cfg, topk_idx)
