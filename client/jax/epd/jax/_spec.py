"""The sharding that a caller asks for with out_sharding or out_partition_spec."""

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from epd.jax.mesh import Layout


def _axes(entry) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def normalize(spec, rank: int) -> tuple | None:
    """``spec`` (a tuple or PartitionSpec, or None) as a tuple of ``rank`` entries.

    Raises:
        ValueError: more entries than dimensions.
    """
    if spec is None:
        return None
    entries = tuple(tuple(entry) if isinstance(entry, list) else entry for entry in tuple(spec))
    if len(entries) > rank:
        raise ValueError(
            f"the spec {spec} has {len(entries)} entries, but the result has {rank} dimensions"
        )
    return entries + (None,) * (rank - len(entries))


def mismatch(spec: tuple | None, layout: Layout) -> str | None:
    """What is wrong with a normalized spec on this mesh, or None."""
    if spec is None:
        return None
    unknown = [axis for entry in spec for axis in _axes(entry) if axis not in layout.axis_names]
    return (
        f"the spec {spec} names {unknown}, but the mesh's axes are {layout.axis_names}"
        if unknown
        else None
    )


def constrain(array: jax.Array, spec: tuple | None, layout: Layout) -> jax.Array:
    """``array``, which lies as ``layout.spec``, laid out as ``spec``; no operation where that is the same."""
    if spec is None or layout.mesh is None:
        return array
    sizes = dict(zip(layout.axis_names, layout.mesh_shape, strict=True))
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
