"""One custom call of epd, mapped over the shards of the mesh."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding
from jax.typing import DTypeLike

from epd.jax import _place, _source_order
from epd.jax._kept_call import custom_call
from epd.jax.config import EpLayerConfig, GroupSpec
from epd.jax.mesh import Layout, current_layout, layout_without_mesh


@dataclass(frozen=True)
class Static:
    """All that a traced operation holds besides its operands: names and sizes, nothing of this process. Hashable."""

    group: GroupSpec
    layout: Layout
    cfg: EpLayerConfig
    name: str = ""  # By which ranks find each other; "": by the program.

    @property
    def in_source_order(self) -> bool:
        """Calls without a name in a group joined by rank, see ``_source_order``."""
        return self.group.joined_by_rank and not self.name

    @property
    def handle_mem_size(self) -> int:
        return self.group.handle_mem_size(self.cfg.top_k)


def layout_for(group: GroupSpec, *operands: jax.Array) -> Layout:
    """The layout for an operation of ``group`` traced here and now; ValueError as of ``current_layout``."""
    if group.of_roles:
        return layout_without_mesh("a role's function runs on each rank for itself")
    if group.ranks_here == 1:
        return layout_without_mesh()
    return current_layout(*operands, resource=group.resource, fallback=group.mesh)


def varying(array: jax.Array) -> frozenset[str]:
    """Mesh axes over which the value may differ, as an enclosing shard_map with check_vma=True tracks them."""
    aval = jax.typeof(array)
    manual = getattr(aval, "manual_axis_type", None)
    return frozenset(manual.varying) if manual is not None else frozenset(getattr(aval, "vma", ()))


def widened(array: jax.Array, axes: frozenset[str]) -> jax.Array:
    """``array``, varying over ``axes`` too."""
    missing = tuple(sorted(axes - varying(array)))
    return jax.lax.pcast(array, missing, to="varying") if missing else array


def align_varying(layout: Layout, arrays: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Inside a shard_map of the caller's: gives all operands the same varying axes, those of the tokens among them.

    Also where none varies: equal routes on all ranks still give each rank counts of its own. Nothing without check_vma.
    Outside of the exchange, so that JAX transposes the change itself.
    """
    if not layout.checks_manual:
        return tuple(arrays)
    manual = set(layout.axis_names) - set(layout.free)
    axes = frozenset().union(*map(varying, arrays)) | (set(layout.carriers) & manual)
    return tuple(widened(array, axes) for array in arrays)


def call(
    static: Static,
    target: str,
    results: Sequence[tuple[Sequence[int], DTypeLike]],
    operands: Sequence[jax.Array],
    *,
    tokens: int,
    width: int = 0,
    capacity: int = 0,
    after: Sequence[jax.Array] = (),
) -> tuple[jax.Array, ...]:
    """Calls ``target`` on this shard. ``results``: (shape, dtype) of each; sizes count this shard, ``width`` a row.

    A group joined by rank has a program per process, whose tokens differ in number, so XLA must leave all its calls alone.
    Results that are all empty come with one row then and without tokens on any rank, see ``_kept_call``; ``cut`` takes it
    off. The call is made once ``after`` is there, float arrays.
    """
    config = static.group.config
    place = _place.current() or static.layout.domain_and_position()
    domain, position = _place.after(place, after)
    attributes: dict[str, int | str] = {
        "alias": static.group.alias,
        "name": static.name,
        "by_rank": int(static.group.joined_by_rank),
        "ranks": config.ep_size,
        "experts": config.num_experts,
        "local_experts": config.num_local_experts,
        "owners": static.group.owners_digest,
        "max_tokens": config.max_tokens_per_rank,
        "top_k": static.cfg.top_k,
        "alignment": static.cfg.dispatch_output_per_expert_alignment,
        "hidden": config.hidden_dim if width else 0,
        "width": width,
        "tokens": tokens,
        "shards": static.layout.num_shards,
        "capacity": capacity,
    }
    kept = static.group.joined_by_rank or all(math.prod(shape) == 0 for shape, _ in results)
    before = _source_order.current() if kept else None
    given = operands if before is None else [*operands, before]
    return tuple(custom_call(target, results, kept, domain, position, *given, **attributes))


def _placed(layout: Layout, operand: jax.Array) -> jax.Array:
    """On one device an operand lies as it must, whatever its type says; with Explicit axes JAX wants that said."""
    assert layout.mesh is not None
    types = dict(zip(layout.mesh.axis_names, layout.mesh.axis_types, strict=True))
    if layout.num_shards > 1 or all(types[axis] != AxisType.Explicit for axis in layout.lead):
        return operand
    return jax.sharding.reshard(operand, NamedSharding(layout.mesh, layout.spec))


def mapped(layout: Layout, shard: Callable[..., Any], *operands: jax.Array) -> Any:
    """Runs ``shard`` on every shard: leading dimensions split over (outer, ep), replicated over all other axes.

    Empty operands are made inside: XLA makes constants of them, and with jaxlib 0.11 the process ends in a segmentation
    fault while it removes the operands that then nobody uses.
    """
    if layout.mesh is None:
        return shard(*operands)
    before = _source_order.current()

    def run(*present: jax.Array) -> Any:
        given = iter(present)

        def of_shard(operand: jax.Array) -> jax.Array:
            if operand.size:
                return next(given)
            shape = (operand.shape[0] // layout.num_shards, *operand.shape[1:])
            return jax.numpy.zeros(shape, operand.dtype)

        with _source_order.after(None if before is None else present[-1]):
            return shard(*map(of_shard, operands))

    present = [_placed(layout, operand) for operand in operands if operand.size]
    present += [] if before is None else [before]
    return jax.shard_map(
        run,
        mesh=layout.mesh,
        in_specs=(layout.spec,) * len(present),
        out_specs=layout.spec,
        axis_names=set(layout.free),
        check_vma=False,
    )(*present)
