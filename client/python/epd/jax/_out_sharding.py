"""The sharding that a caller asks for with out_sharding or out_partition_spec."""

from collections.abc import Sequence
from typing import TypeAlias

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from epd.jax.mesh import Layout

# The mesh axes of one dimension, as callers give them, and of all dimensions.
Entry: TypeAlias = str | Sequence[str] | None
SpecLike: TypeAlias = PartitionSpec | Sequence[Entry] | None

_SPEC = "the result's spec (out_sharding or out_partition_spec)"


def _axes(entry: Entry) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def normalize(function: str, spec: SpecLike, rank: int) -> tuple[Entry, ...] | None:
    """``spec`` (a tuple or PartitionSpec, or None) as a tuple of ``rank`` entries. ``function``: for messages.

    Raises:
        TypeError: something else.
        ValueError: more entries than dimensions.
    """
    if spec is None:
        return None
    if not isinstance(spec, PartitionSpec | tuple | list):
        raise TypeError(
            f"{function}: {_SPEC} must be a tuple or a PartitionSpec, got {type(spec).__name__}"
        )
    entries = tuple(tuple(entry) if isinstance(entry, list) else entry for entry in tuple(spec))
    if len(entries) > rank:
        raise ValueError(
            f"{function}: {_SPEC} {spec} has {len(entries)} entries, but the result has {rank} dimensions"
        )
    return entries + (None,) * (rank - len(entries))


def mismatch(spec: tuple[Entry, ...] | None, layout: Layout) -> str | None:
    """What is wrong with a normalized spec on this mesh, or None."""
    if spec is None:
        return None
    axes = [axis for entry in spec for axis in _axes(entry)]
    if unknown := [axis for axis in axes if axis not in layout.axis_names]:
        return f"{_SPEC} {spec} names {unknown}, but the mesh's axes are {layout.axis_names}"
    if twice := sorted({axis for axis in axes if axes.count(axis) > 1}):
        return f"{_SPEC} {spec} names {', '.join(map(repr, twice))} twice"
    return None


def wrong_sharding(name: str, array: jax.Array, layout: Layout) -> str | None:
    """How ``array`` lies otherwise than over the leading axes, as far as its type says (Explicit axes), or None.

    One that lies on no mesh is whole on every rank: on a mesh with Explicit axes JAX moves it nowhere by itself.
    """
    sharding = jax.typeof(array).sharding
    mesh = layout.mesh if sharding.mesh.empty and layout.mesh is not None else sharding.mesh
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if AxisType.Explicit not in types.values():
        return None
    sizes = layout.sizes

    def seen(spec: PartitionSpec) -> list[tuple[str, ...]]:
        entries = (*spec, *(None,) * (array.ndim - len(spec)))
        return [
            tuple(
                a for a in _axes(entry) if types.get(a) == AxisType.Explicit and sizes.get(a, 1) > 1
            )
            for entry in entries
        ]

    wanted = PartitionSpec(*layout.spec, *(None,) * (array.ndim - 1))
    if seen(sharding.spec) == seen(wanted):
        return None
    short = [str(spec).replace("PartitionSpec", "P") for spec in (sharding.spec, wanted)]
    return f"{name} is sharded as {short[0]}, expected {short[1]}; use jax.sharding.reshard on it"


def constrain(array: jax.Array, spec: tuple[Entry, ...] | None, layout: Layout) -> jax.Array:
    """``array``, which lies as ``layout.spec``, laid out as ``spec``; no operation where that is the same."""
    if spec is None or layout.mesh is None:
        return array
    sizes = layout.sizes
    wanted = [
        tuple(axis for axis in _axes(entry) if sizes[axis] > 1 and axis in layout.free)
        for entry in spec
    ]
    have = tuple(axis for axis in layout.lead if sizes[axis] > 1)
    if wanted[0] == have and not any(wanted[1:]):
        return array
    sharding = NamedSharding(layout.mesh, PartitionSpec(*[axes or None for axes in wanted]))
    types = dict(zip(layout.mesh.axis_names, layout.mesh.axis_types, strict=True))
    if any(types[axis] == AxisType.Explicit for axis in layout.lead):
        return jax.sharding.reshard(array, sharding)
    return jax.lax.with_sharding_constraint(array, sharding)
