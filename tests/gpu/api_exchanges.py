"""The implementations that api_bench.py compares: a dispatch and a combine of all ranks' rows over the mesh's axis "ep"."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import epd.jax as ep
import jax
import jax.numpy as jnp
from bench_shapes import LOCAL_EXPERTS, TOP_K
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P


@dataclasses.dataclass(frozen=True)
class Exchange:
    """An implementation: dispatch gives the rows, and what combine wants to know beside them."""

    dispatch: Callable[[jax.Array, jax.Array], tuple[jax.Array, Any]]
    combine: Callable[[jax.Array, Any], jax.Array]

    def pair(self, tokens: jax.Array, idx: jax.Array) -> jax.Array:
        return self.combine(*self.dispatch(tokens, idx))


def _exclusive(sizes: jax.Array, axis: int = 0) -> jax.Array:
    return jnp.cumsum(sizes, axis) - sizes


def _ragged_dispatch(tokens: jax.Array, idx: jax.Array, capacity: int, ranks: int) -> tuple:
    """What a user would write without epd, of one device: rows to their experts, expert-major, and the way back."""
    me, experts = jax.lax.axis_index("ep"), ranks * LOCAL_EXPERTS
    flat = idx.reshape(-1)
    order = jnp.argsort(flat, stable=True)
    counts = jnp.bincount(flat, length=experts).astype(jnp.int32)
    everybodys = jax.lax.all_gather(counts, "ep")
    before = _exclusive(everybodys)
    zones = _exclusive(everybodys.sum(0).reshape(ranks, LOCAL_EXPERTS), 1).reshape(-1)
    here = me * LOCAL_EXPERTS
    mine = functools.partial(jax.lax.dynamic_slice_in_dim, start_index=here, axis=1)
    came = mine(everybodys, slice_size=LOCAL_EXPERTS).reshape(-1)
    at = mine((zones + before), slice_size=LOCAL_EXPERTS).reshape(-1)
    at_home = mine(_exclusive(everybodys, 1), slice_size=LOCAL_EXPERTS).reshape(-1)
    recv = jax.lax.ragged_all_to_all(
        tokens[order // TOP_K],
        jnp.zeros((capacity, tokens.shape[1]), tokens.dtype),
        _exclusive(counts),
        counts,
        zones + before[me],
        came,
        axis_name="ep",
    )
    return recv, (order, counts, at, came, at_home)


def _ragged_combine(recv: jax.Array, way_back: tuple) -> jax.Array:
    """And the sums back."""
    order, counts, at, came, at_home = way_back
    rows = jnp.zeros((order.size, recv.shape[1]), recv.dtype)
    back = jax.lax.ragged_all_to_all(recv, rows, at, came, at_home, counts, axis_name="ep")
    sums = jnp.zeros((order.size // TOP_K, recv.shape[1]), jnp.float32)
    return sums.at[order // TOP_K].add(back.astype(jnp.float32)).astype(recv.dtype)


def through_xla(mesh: Mesh, capacity: int) -> Exchange:
    spec = P("ep")
    on_mesh = functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(spec, spec), out_specs=spec, check_vma=False
    )
    dispatch = functools.partial(_ragged_dispatch, capacity=capacity, ranks=mesh.size)
    return Exchange(on_mesh(dispatch), on_mesh(_ragged_combine))


def through_epd(group: ep.Group, count: int, capacity: int) -> Exchange:
    """`count`: tokens of all ranks."""
    layer = ep.EpLayerConfig(top_k=TOP_K)

    def dispatch(tokens: jax.Array, idx: jax.Array) -> tuple[jax.Array, Any]:
        weights = jnp.ones(idx.shape, jnp.float32)
        recv, _, handle, _, _ = group.dispatch(layer, idx, tokens, weights, capacity)
        return recv, handle

    def combine(recv: jax.Array, handle: Any) -> jax.Array:
        return group.combine(layer, handle, recv, count)

    return Exchange(dispatch, combine)
