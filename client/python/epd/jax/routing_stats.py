"""What a routing plan says about its step: routes per expert, drops, group sizes for a grouped product."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from epd.jax import _checks
from epd.jax._call import layout_for, mapped
from epd.jax.config import GroupSpec, bootstrapped

# Byte offsets in a plan, see kernels/routing_plan.h.
_RANK, _ALIGNMENT, _EXPERTS = 48, 64, 96
_EXPERT_BYTES = 8


class RoutingStats(NamedTuple):
    """Per rank; R, C, n as for ep_dispatch, S the ranks of a domain. Of ranks with fewer than n experts the rest is zeros.

    ``expert_counts`` int32 ``[R, n]``: routes to each local expert, without padding, before any drop.
    ``group_sizes`` int32 ``[R, n]``: slots of each expert's zone, padding included, cut off at C: they sum to at most C.
    ``drops_per_source`` int32 ``[R, S]``: routes of each source rank that this rank drops.
    """

    expert_counts: jax.Array
    group_sizes: jax.Array
    drops_per_source: jax.Array


def local_experts(spec: GroupSpec) -> np.ndarray:
    """int32 [ep_size, n]: the experts of each rank in ascending order, filled up with -1."""
    sizes = spec.config
    owner = spec.expert_owner
    if owner is None:
        owner = tuple(np.repeat(np.arange(sizes.ep_size), sizes.num_local_experts))
    table = np.full((sizes.ep_size, sizes.num_local_experts), -1, np.int32)
    for rank in range(sizes.ep_size):
        own = np.flatnonzero(np.asarray(owner) == rank)
        table[rank, : len(own)] = own
    return table


def _int32(plan: jax.Array, offset: int, count: int = 1) -> jax.Array:
    """int32 [count] at a byte offset of uint8 [size]."""
    words = jax.lax.slice(plan, (offset,), (offset + 4 * count,)).reshape(count, 4)
    return jax.lax.bitcast_convert_type(words, jnp.int32)


def _sum(counts: jax.Array, axis: int) -> jax.Array:
    """In int32: with jax_enable_x64, sums of integers are int64 by default."""
    return counts.sum(axis, dtype=jnp.int32)


def _cumsum(counts: jax.Array) -> jax.Array:
    """Along the first dimension."""
    return jnp.cumsum(counts, 0, dtype=jnp.int32)


def _zones(spec: GroupSpec, plan: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Of one rank: routes from each source to each local expert [S, n]; where each expert's zone begins, and its size [n]."""
    ranks, experts = spec.config.ep_size, spec.config.num_experts
    own = jnp.asarray(local_experts(spec))[_int32(plan, _RANK)[0]]
    alignment = _int32(plan, _ALIGNMENT)[0]
    counts = _int32(plan, _EXPERTS + _EXPERT_BYTES * experts, ranks * experts)
    counts = counts.reshape(ranks, experts)[:, jnp.maximum(own, 0)]
    counts = jnp.where((own >= 0)[None, :], counts, 0)  # [S, n]
    zones = (_sum(counts, 0) + alignment - 1) // jnp.maximum(alignment, 1) * alignment
    return counts, _cumsum(zones) - zones, zones


def _of_one_rank(spec: GroupSpec, capacity: int, plan: jax.Array) -> RoutingStats:
    counts, zone_begins, zones = _zones(spec, plan)
    begins = zone_begins[None, :] + _cumsum(counts) - counts
    drops = jnp.clip(begins + counts - capacity, 0, counts)
    sizes = jnp.clip(capacity - zone_begins, 0, zones)
    return RoutingStats(_sum(counts, 0), sizes, _sum(drops, 1))


def _experts_of_one_rank(spec: GroupSpec, capacity: int, plan: jax.Array) -> jax.Array:
    counts, begins, _ = _zones(spec, plan)
    slots = jnp.arange(capacity, dtype=jnp.int32)[:, None]
    ends = begins + _sum(counts, 0)
    held = (slots >= begins[None, :]) & (slots < ends[None, :])  # [C, n]: at most one of a row.
    return jnp.where(held.any(1), jnp.argmax(held, 1), -1).astype(jnp.int32)


def _of_plan(
    of_one_rank: Callable[..., Any],
    group: GroupSpec,
    function: str,
    handle_mem: jax.Array,
    recv_capacity_per_rank: int | None,
) -> Any:
    """``of_one_rank`` for each rank's plan, with its arguments checked; ``function`` is what the caller called."""
    handle_mem = jnp.asarray(handle_mem)
    most = group.config.recv_capacity_per_rank
    capacity = most
    if recv_capacity_per_rank is not None:
        capacity = _checks.static_int(function, "recv_capacity_per_rank", recv_capacity_per_rank)
    layout = layout_for(group, handle_mem)
    least = group.handle_mem_size(1)
    wrong = []
    if (
        handle_mem.ndim != 2
        or handle_mem.shape[0] != layout.num_shards
        or handle_mem.shape[1] < least
    ):
        wrong.append(
            f"handle_mem has shape {list(handle_mem.shape)}, expected [{layout.num_shards}, size] of ep_prepare"
        )
    if handle_mem.dtype != jnp.uint8:
        wrong.append(f"handle_mem has dtype {handle_mem.dtype}, expected uint8")
    if not 1 <= capacity <= most:
        wrong.append(
            f"recv_capacity_per_rank is {capacity}, expected 1 to {most}, that of {group.origin}"
        )
    if wrong:
        raise ValueError(f"{function}: " + "; ".join(wrong))
    return mapped(layout, jax.vmap(functools.partial(of_one_rank, group, capacity)), handle_mem)


# What GroupOperations and ``routing_stats`` below have in common, with ``_of_plan``'s arguments.
stats_of: Callable[..., RoutingStats] = functools.partial(_of_plan, _of_one_rank)
experts_of: Callable[..., jax.Array] = functools.partial(_of_plan, _experts_of_one_rank)


def routing_stats(handle_mem: jax.Array, recv_capacity_per_rank: int | None = None) -> RoutingStats:
    """What the plan says about its step, without any communication. Inside or outside of jit.

    Args:
        handle_mem: uint8 ``[R, size]`` of ``ep_prepare`` or ``ep_dispatch``, traced.
        recv_capacity_per_rank: static; C of the dispatch in question. Default: the bootstrapped capacity.

    Returns:
        RoutingStats. ``group_sizes`` fits ``jax.lax.ragged_dot`` over the receive buffer, also where routes were dropped.

    Raises:
        RuntimeError: not bootstrapped.
        TypeError: a traced capacity.
        ValueError: while tracing, a handle_mem or a capacity that does not fit; all of it in one error.
    """
    return stats_of(bootstrapped(), "routing_stats", handle_mem, recv_capacity_per_rank)
