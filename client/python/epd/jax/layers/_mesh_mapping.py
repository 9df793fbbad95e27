"""How a layer lies on the mesh while it is traced, and functions of one shard mapped over it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from epd.jax._call import align_varying, varying
from epd.jax.layers.config import Axes
from epd.jax.layers.parameters import Shape
from epd.jax.mesh import Layout


@dataclass(frozen=True)
class Shards:
    """``mlp``: the mesh axis that splits the experts' inner dimension, or None; ``num_ranks``: of a domain, the group's."""

    layout: Layout
    mlp: str | None
    num_ranks: int

    @property
    def tokens(self) -> PartitionSpec:
        return self.layout.spec

    @property
    def num_carriers(self) -> int:
        """Ranks that carry tokens, on all processes."""
        return math.prod(self.layout.sizes[axis] for axis in self.layout.carriers)

    def _axes_of(self, role: str | None) -> str | tuple[str, ...] | None:
        """The mesh axes over which a parameter is split inside the layer; the caller's manual axes are split already."""
        axes: tuple[str | None, ...] = self.layout.ep_axes if role == "expert" else ()
        axes = (self.mlp,) if role == "mlp" else axes
        split = tuple(axis for axis in axes if axis in self.layout.free)
        return split[0] if len(split) == 1 else split or None

    def spec(self, shape: Shape) -> PartitionSpec:
        """How a parameter enters a shard: "embed" is gathered before."""
        return PartitionSpec(*map(self._axes_of, shape.roles))

    def sizes(self, shape: Shape) -> tuple[int, ...]:
        """A parameter's sizes as the caller sees them: all ranks' that this program's mesh splits, else one's."""
        layout = self.layout
        seen = math.prod(layout.sizes[axis] for axis in layout.ep_axes if axis in layout.free)
        split = 1
        if self.mlp is not None and self.mlp not in layout.free:
            split = layout.sizes[self.mlp]

        def size(whole: int, role: str | None) -> int:
            if role == "expert":
                return whole // self.num_ranks * seen
            return whole // split if role == "mlp" else whole

        return tuple(map(size, shape.sizes, shape.roles))

    def run(
        self, function: Callable[..., Any], in_specs: Any, out_specs: Any, *operands: Any
    ) -> Any:
        """``function`` of the shards of ``operands``, trees of arrays, whose specs are trees alike or prefixes.

        The gradient of a parameter that several ranks hold is summed over them once, and nothing else is communicated.
        """
        layout = self.layout
        leaves, structure = jax.tree.flatten(operands)
        aligned = align_varying(layout, leaves)
        operands = jax.tree.unflatten(structure, aligned)
        if layout.mesh is None:
            return function(*operands)
        if layout.checks_manual:
            # What JAX saves of a shard_map for its gradient names all axes, also those that the caller's has made manual,
            # and XLA refuses it. With this nothing but operands is saved.
            function = jax.checkpoint(function)
        return jax.shard_map(
            function,
            mesh=layout.mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names=set(layout.free),
            check_vma=not layout.checks_manual or any(map(varying, aligned)),
        )(*self._placed(layout.mesh, operands, in_specs))

    def total(self, rows: jax.Array) -> jax.Array:
        """The sum [..] over all ranks of their ``rows`` [R, ..]."""
        lead = self.layout.lead
        manual = tuple(axis for axis in self.layout.carriers if axis not in lead)

        def add(rows: jax.Array) -> jax.Array:
            here = rows.sum(0, dtype=rows.dtype)
            return jax.lax.psum(here, lead) if lead else here

        total = self.run(add, (self.tokens,), PartitionSpec(), rows)
        return jax.lax.psum(total, manual) if manual else total

    def _placed(
        self, mesh: Mesh | AbstractMesh, operands: tuple[Any, ...], in_specs: Any
    ) -> tuple[Any, ...]:
        """With Explicit axes, parameters that lie otherwise (embed) must be moved by name."""
        types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
        if all(types[axis] != AxisType.Explicit for axis in self.layout.free):
            return operands
        is_spec = lambda node: isinstance(node, PartitionSpec)  # noqa: E731
        move = lambda spec, tree: jax.tree.map(lambda a: jax.sharding.reshard(a, spec), tree)  # noqa: E731
        return tuple(jax.tree.map(move, in_specs, operands, is_leaf=is_spec))


def shards_of(axes: Axes, layout: Layout, num_ranks: int) -> tuple[Shards, list[str]]:
    """The layer's shards, and what is wrong with the names of its axes."""
    wrong = []
    expert = layout.ep_axes if axes.expert is None else axes.resolve(axes.expert)
    if layout.axis_names and ((expert,) if isinstance(expert, str) else expert) != layout.ep_axes:
        wrong.append(
            f"axes.expert {axes.expert!r} means the axis {expert!r}, but the ep_resource is {layout.ep_title.removeprefix('axis ')}"
        )
    for role in ("mlp", "embed"):
        name = getattr(axes, role)
        axis = axes.resolve(name)
        if axis is not None and axis not in layout.axis_names:
            wrong.append(
                f"axes.{role} {name!r} means {axis!r}, which is no axis of the mesh; its axes are"
                f" {layout.axis_names}; give it a rule or name one of them"
            )
        if role == "mlp" and axis is not None and axis in layout.carriers:
            wrong.append(f"axes.mlp {name!r} means the axis {axis!r}, over which tokens are split")
    return Shards(layout, axes.resolve(axes.mlp), num_ranks), wrong
