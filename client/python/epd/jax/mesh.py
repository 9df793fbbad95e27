"""Mesh axes and what they mean: which axes are ep, which ones carry tokens beside them, where this process stands."""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax._src import mesh as mesh_internal
from jax._src.core import get_axis_env
from jax.sharding import AbstractMesh, Mesh, PartitionSpec


@dataclass(frozen=True)
class MeshResource:
    """Names of mesh axes by their use; None: there is no such axis.

    Tokens are split over dp, fsdp and ep, in this order, ep innermost: over those of dp and fsdp whose size is over 1, or the
    first that is named. ``ep_resource`` may be a tuple of axes: positions along ep count them row-major, the last fastest.
    """

    dp_resource: str | None = None
    tp_resource: str | None = None
    tpsp_resource: str | None = None
    fsdp_resource: str | None = None
    pp_resource: str | None = None
    cp_resource: str | None = None
    ep_resource: str | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        given: object = self.ep_resource
        if isinstance(given, list):  # Not hashable.
            object.__setattr__(self, "ep_resource", tuple(given))


_resource: contextvars.ContextVar[MeshResource | None] = contextvars.ContextVar(
    "epd_mesh_resource", default=None
)


@contextlib.contextmanager
def global_shard_guard(resource: MeshResource) -> Iterator[None]:
    """Makes ``resource`` the active one; nests, and restores the outer one at the end. TypeError if it is no MeshResource."""
    if not isinstance(resource, MeshResource):
        raise TypeError(
            f"global_shard_guard: resource must be a MeshResource, got {type(resource).__name__}"
        )
    token = _resource.set(resource)
    try:
        yield
    finally:
        _resource.reset(token)


def active_resource_or_none() -> MeshResource | None:
    """The active MeshResource, which may name no ep_resource, or None."""
    return _resource.get()


def active_resource() -> MeshResource:
    """The active MeshResource; ValueError if it names no ep_resource, or if there is none."""
    resource = _resource.get()
    if resource is None or not resource.ep_resource:
        raise ValueError(
            "the active MeshResource has no ep_resource; enter"
            " global_shard_guard(MeshResource(..., ep_resource=<name of the expert-parallel mesh axis>))"
        )
    return resource


def active_device_mesh() -> Mesh | None:
    """The mesh with devices that ``jax.set_mesh(mesh)``, or ``with mesh:`` before it, made active, or None."""
    for mesh in (
        mesh_internal.thread_resources.env.physical_mesh,
        mesh_internal.get_concrete_mesh(),
    ):
        if mesh is not None and not mesh.empty:
            return mesh
    return None


def active_mesh(*operands: jax.Array, fallback: AbstractMesh | None = None) -> Mesh | AbstractMesh:
    """The mesh to trace with: of an enclosing shard_map, ``jax.set_mesh`` or JAX's older ``with mesh:``, else the operands'.

    ``fallback`` where there is none of them.

    Raises:
        ValueError: there is none.
    """
    abstract = jax.sharding.get_abstract_mesh()
    if not abstract.empty:
        return abstract
    physical = mesh_internal.thread_resources.env.physical_mesh
    if not physical.empty:
        return physical
    for operand in operands:
        shardings = [jax.typeof(operand).sharding]
        if not isinstance(operand, jax.core.Tracer):
            shardings.append(getattr(operand, "sharding", None))
        for sharding in shardings:
            mesh = getattr(sharding, "mesh", None)
            if mesh is not None and not mesh.empty:
                return mesh
    if fallback is not None:
        return fallback
    raise ValueError("there is no active mesh; enter `with jax.set_mesh(mesh):` around the call")


def axes_of_vmap(axes: Iterable[str]) -> str:
    """For an error about axes that the mesh does not have: which of them are jax.vmap's; "" if none is."""
    known = get_axis_env().axis_sizes
    mapped = [axis for axis in axes if axis in known]
    if not mapped:
        return ""
    names = ", ".join(map(repr, mapped))
    return (
        f" ({names}: an axis of jax.vmap(axis_name=...), whose elements are on one device; epd exchanges between devices: use"
        " jax.shard_map over an axis of the mesh)"
    )


def _size(mesh: Mesh | AbstractMesh, axis: str, role: str) -> int:
    if axis not in mesh.shape:
        raise ValueError(
            f"{role} is {axis!r}, which is no axis of the mesh; its axes are {tuple(mesh.axis_names)}{axes_of_vmap([axis])}"
        )
    return mesh.shape[axis]


def token_axes(
    resource: MeshResource, mesh: Mesh | AbstractMesh, function: str = ""
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The axes that carry tokens: the outer ones, see MeshResource, and those of ep.

    Raises:
        ValueError: a name is no axis of the mesh, or an axis is named twice.
    """
    given = resource.ep_resource
    assert given
    ep_axes = (given,) if isinstance(given, str) else given
    for axis in ep_axes:
        _size(mesh, axis, f"{function}ep_resource")
    named = {
        axis: _size(mesh, axis, f"{function}{role}")
        for role in ("dp_resource", "fsdp_resource")
        if (axis := getattr(resource, role)) is not None
    }
    axes = [*named, *ep_axes]
    if twice := sorted({axis for axis in axes if axes.count(axis) > 1}):
        raise ValueError(
            f"{function}ep_resource is {given!r} beside {tuple(named)} of dp and fsdp: name {', '.join(map(repr, twice))} once"
        )
    large = tuple(axis for axis, size in named.items() if size > 1)
    return large or tuple(named)[:1], ep_axes


def product(mesh: Mesh | AbstractMesh, axes: Iterable[str]) -> int:
    """Devices along the axes."""
    return math.prod(mesh.shape[axis] for axis in axes)


def group_sizes(
    resource: MeshResource, mesh: Mesh | AbstractMesh, function: str
) -> tuple[tuple[str, ...], dict[str, int]]:
    """The axes of ep, and the sizes of EpConfig that the mesh gives; ValueError as of ``token_axes``."""
    outer, ep_axes = token_axes(resource, mesh, f"{function}: ")
    return ep_axes, {
        "world_size": mesh.size,
        "ep_size": product(mesh, ep_axes),
        "num_ep_groups": product(mesh, outer),
    }


@dataclass(frozen=True)
class Layout:
    """How an operation lies on the mesh while it is traced. Static and hashable.

    ``mesh``: shard_map over it, or None where the caller is manual over every axis already. ``lead``: the axes of the
    leading dimension that are not manual yet; ``carriers``: all of them. ``num_shards``: rows of an EP tensor as the
    caller sees it.
    """

    mesh: Mesh | AbstractMesh | None = None
    axis_names: tuple[str, ...] = ()
    mesh_shape: tuple[int, ...] = ()
    ep_axes: tuple[str, ...] = ()
    carriers: tuple[str, ...] = ()
    lead: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    checks_manual: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        """Of the mesh's axes."""
        return dict(zip(self.axis_names, self.mesh_shape, strict=True))

    @property
    def num_shards(self) -> int:
        return math.prod(self.sizes[axis] for axis in self.lead)

    @property
    def ep_size(self) -> int:
        return math.prod(self.sizes[axis] for axis in self.ep_axes)

    @property
    def ep_title(self) -> str:
        """Of ep, for messages."""
        axes = ", ".join(map(repr, self.ep_axes))
        return f"axis {axes}" if len(self.ep_axes) == 1 else f"ep ({axes})"

    @property
    def num_devices(self) -> int:
        return math.prod(self.mesh_shape)

    @property
    def spec(self) -> PartitionSpec:
        """Of the leading dimension: (outer, ep), or ep."""
        return PartitionSpec(self.lead[0] if len(self.lead) == 1 else self.lead or None)

    def domain_and_position(self) -> tuple[jax.Array, jax.Array]:
        """int32 scalars of the device that runs this: its index over all axes but ep, and its position along ep."""
        domain = jax.numpy.int32(0)
        if not self.axis_names:
            return domain, jax.numpy.int32(0)
        for axis, size in self.sizes.items():
            if axis not in self.ep_axes and size > 1:
                domain = domain * size + jax.lax.axis_index(axis)
            # An axis of size 1 adds nothing, and asking for its index would only tie the value to it.
        first, *others = [axis for axis in self.ep_axes if self.sizes[axis] > 1] or self.ep_axes
        position = jax.lax.axis_index(first)
        for axis in others:
            position = position * self.sizes[axis] + jax.lax.axis_index(axis)
        return domain, position


def layout_without_mesh(whose: str = "this process joined with one rank") -> Layout:
    """The layout of a program that runs on one rank: arrays are this rank's, and no axis is looked at.

    Raises:
        ValueError: a mesh of several devices is active.
    """
    meshes: list[Mesh | AbstractMesh] = [
        jax.sharding.get_abstract_mesh(),
        mesh_internal.thread_resources.env.physical_mesh,
    ]
    for mesh in meshes:
        if mesh.size > 1:
            raise ValueError(
                f"{whose}, but the active mesh {dict(mesh.shape)} has {mesh.size} devices; join with a rank for each of"
                " them, or leave the mesh around the call"
            )
    return Layout()


def current_layout(
    *operands: jax.Array,
    resource: MeshResource | None = None,
    fallback: AbstractMesh | None = None,
) -> Layout:
    """The layout for an operation traced here and now.

    Args:
        operands: whose mesh is taken if none is active.
        resource: names of the axes; None: the active MeshResource.
        fallback: the mesh if there is no other.

    Raises:
        ValueError: no mesh, no ep_resource, or names that do not fit the mesh.
    """
    resource = resource or active_resource()
    mesh = active_mesh(*operands, fallback=fallback)
    outer, ep_axes = token_axes(resource, mesh)
    carriers = (*outer, *ep_axes)
    manual = set(getattr(mesh, "manual_axes", ()))
    free = tuple(axis for axis in mesh.axis_names if axis not in manual)
    return Layout(
        mesh=mesh if free else None,
        axis_names=tuple(mesh.axis_names),
        mesh_shape=tuple(mesh.shape[axis] for axis in mesh.axis_names),
        ep_axes=ep_axes,
        carriers=carriers,
        lead=tuple(axis for axis in carriers if axis in free),
        free=free,
        checks_manual=bool(manual),
    )


def domain_grid(mesh: Mesh, ep_axes: Sequence[str]) -> np.ndarray:
    """The mesh's devices as [num_domains, ep]: a row is a domain, all of whose other coordinates are equal."""
    places = [mesh.axis_names.index(axis) for axis in ep_axes]
    ep_size = math.prod(mesh.devices.shape[place] for place in places)
    return np.moveaxis(mesh.devices, places, range(-len(places), 0)).reshape(-1, ep_size)


def _ep_domain_for_rank(
    mesh: Mesh,
    ep_axis: str | tuple[str, ...],
    rank: int,
    device_to_rank: Callable[[jax.Device], int] | None = None,
) -> tuple[int, int, int]:
    """Where ``rank`` stands: (rank at ep position 0 of its domain, its position along ep, number of domains).

    Args:
        mesh: the mesh of devices.
        ep_axis: name of the expert-parallel axis, or a tuple of names, see MeshResource.
        rank: a rank that ``device_to_rank`` gives exactly one device.
        device_to_rank: default: the device's process index.

    Raises:
        ValueError: the rank does not occur exactly once; the mesh has no axis of that name.
        TypeError: ``device_to_rank`` cannot be called.
    """
    ep_axes = (ep_axis,) if isinstance(ep_axis, str) else tuple(ep_axis)
    if not ep_axes or not set(ep_axes) <= set(mesh.axis_names):
        raise ValueError(f"ep_axis is {ep_axis!r}, but the mesh's axes are {mesh.axis_names}")
    if device_to_rank is not None and not callable(device_to_rank):
        raise TypeError(
            f"device_to_rank must be a function of a device, got {type(device_to_rank).__name__}"
        )
    device_to_rank = device_to_rank or (lambda device: device.process_index)
    grid = domain_grid(mesh, ep_axes)
    ranks = np.array([[device_to_rank(device) for device in row] for row in grid], dtype=np.int64)
    places = np.argwhere(ranks == rank)
    if len(places) != 1:
        raise ValueError(
            f"rank {rank} must occur exactly once in the mesh, but occurs {len(places)} times; the ranks are"
            f" {sorted(ranks.reshape(-1).tolist())}"
        )
    domain, position = (int(index) for index in places[0])
    return int(ranks[domain, 0]), position, int(grid.shape[0])
