"""The JAX primitive of epd's exchanges, and how JAX transforms it.

An ``Exchange`` is a static, hashable description of a collective operation; ``bind`` applies it. The routing plan and the
like are its *residuals*: it need not be linear in them and has no derivative with respect to them. It is linear in its
*operands*, so that its tangent is the same exchange of the operands' tangents, and reverse mode is the exchange that
``transpose`` names. shard_map lies inside the primitive: JAX never transposes it, and so adds no collectives of its own.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import jax
import numpy as np
from jax._src import api
from jax._src.api_util import InternalFloatingPointError
from jax.dtypes import float0
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jax.sharding import AbstractMesh, NamedSharding

from epd.jax import _held_groups, _place, _scopes, _source_order
from epd.jax._call import Static
from epd.jax.config import DTYPE_CODES
from epd.jax.mesh import active_device_mesh

Arrays = Sequence[jax.Array]


@dataclass(frozen=True)
class Exchange:
    """Hashable and equal by value, without anything of this process. An exchange without operands has no transpose."""

    target: ClassVar[str]  # XLA's custom call.
    static: Static

    @property
    def label(self) -> str:
        """Its name for people."""
        return self.target.replace("epd1.", "ep_")

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        """The results as the caller sees them."""
        raise NotImplementedError

    def transpose(self) -> "Exchange":
        """The transpose in the operands, with the same residuals."""
        raise NotImplementedError

    def after(self, residuals: Arrays, results: Arrays) -> tuple["Exchange", Arrays]:
        """The exchange of the tangents, and its residuals, once ``results`` are there.

        It may have fewer results: the first ones of this exchange then do not depend on the operands.
        """
        del results
        return self, residuals


_exchange = Primitive("epd_exchange")
_exchange.multiple_results = True


def bind(exchange: Exchange, residuals: Arrays, operands: Arrays) -> list[jax.Array]:
    """The exchange's results, differentiable in the operands, forwards and backwards. It runs at the current place."""
    _held_groups.check_current(exchange.static.group.alias)
    place = _place.current()
    if place is None:
        return _bind(exchange, residuals, operands)
    return _bind(_Placed(exchange.static, exchange), [*place, *residuals], operands)


def _bind(exchange: Exchange, residuals: Arrays, operands: Arrays) -> list[jax.Array]:
    jaxpr = jax.make_jaxpr(exchange.run)(list(residuals), list(operands))
    return _exchange.bind(
        *residuals, *operands, exchange=exchange, num_residuals=len(residuals), jaxpr=jaxpr
    )


@_exchange.def_abstract_eval
def _results(*avals: Any, exchange: Exchange, num_residuals: int, jaxpr: Any) -> list[Any]:
    del avals, exchange, num_residuals
    return list(jaxpr.out_avals)


@partial(jax.jit, static_argnums=0)
def _compiled(exchange: Exchange, residuals: Arrays, operands: Arrays) -> list[jax.Array]:
    return list(exchange.run(residuals, operands))


@contextlib.contextmanager
def _checks_kept() -> Iterator[None]:
    """What is inside may leave ``jax.debug_nans(False)``. With that JAX forgets for good, in this thread, to look at the results of
    jitted functions where the program has set ``jax_debug_nans`` or ``jax_debug_infs`` for all threads."""
    before = api._post_hook_state.get_local()
    try:
        yield
    finally:
        api._post_hook_state.set_local(before)


def _refuse_to_run_alone(exchange: Exchange, everywhere: bool) -> None:
    """FloatingPointError where JAX, which has found a NaN in what a jitted function returned, runs it once more line by line to see
    where it came from: this process does, and the others, whose results may be sound, go on to their next step.

    Args:
        everywhere: all ranks of a group along a mesh are of this process.
    """
    cause, group = sys.exc_info()[1], exchange.static.group
    if not isinstance(cause, InternalFloatingPointError):
        return
    if group.joined_by_rank:
        everywhere = group.ranks_here == group.config.ep_size
    if everywhere and not group.of_roles:
        return
    raise FloatingPointError(
        f"invalid value ({cause.ty}) in the results of a jitted function with exchanges of group {group.alias!r}. JAX ran it again"
        f" line by line to find where, and got as far as {exchange.label}: an exchange is not made again by this process alone."
        " To find it behind the exchange, look at the values (jax.debug.print), or run the step with all ranks in one process"
    )


@_exchange.def_impl
def _eager(
    *arrays: jax.Array, exchange: Exchange, num_residuals: int, jaxpr: Any
) -> list[jax.Array]:
    del jaxpr
    _check_mesh(exchange, arrays)
    _refuse_to_run_alone(exchange, all(array.is_fully_addressable for array in arrays))
    # One call of XLA's, as every primitive is, also where JAX runs a program line by line.
    with _checks_kept(), jax.disable_jit(False), jax.debug_nans(False), jax.debug_infs(False):
        results = _compiled(exchange, list(arrays[:num_residuals]), list(arrays[num_residuals:]))
    for result in results:
        _check_values(exchange, result)
    return results


def _check_mesh(exchange: Exchange, arrays: Arrays) -> None:
    """ValueError if there are no devices to run on: outside jit, an abstract mesh takes them from the operands."""
    mesh = exchange.static.layout.mesh
    if not isinstance(mesh, AbstractMesh) or mesh.size == 1 or active_device_mesh() is not None:
        return
    shardings = [getattr(array, "sharding", None) for array in arrays]
    found = [sharding.mesh for sharding in shardings if isinstance(sharding, NamedSharding)]
    if not found:
        raise ValueError(
            f"{exchange.label}: outside jit, with the abstract mesh {dict(mesh.shape)}, pass jax.Arrays with a NamedSharding"
            " (they say which devices), or enter jax.set_mesh(mesh) with a mesh of devices"
        )
    for other in found:
        if other.shape_tuple != mesh.shape_tuple:
            raise ValueError(
                f"{exchange.label}: the mesh of an operand, {dict(other.shape)}, does not match the abstract mesh"
                f" {dict(mesh.shape)}"
            )


def _check_values(exchange: Exchange, result: jax.Array) -> None:
    """FloatingPointError for what jax_debug_nans and jax_debug_infs look for, in the rows of this process."""
    if not jax.numpy.issubdtype(result.dtype, jax.numpy.floating):
        return
    for name, found, wanted in (
        ("nan", np.isnan, jax.config.jax_debug_nans),
        ("inf", np.isinf, jax.config.jax_debug_infs),
    ):
        shards = result.addressable_shards if wanted else ()
        if any(found(np.asarray(shard.data).astype(np.float32)).any() for shard in shards):
            raise FloatingPointError(f"invalid value ({name}) encountered in {exchange.label}")


def _lower(
    ctx: mlir.LoweringRuleContext,
    *arrays: Any,
    exchange: Exchange,
    num_residuals: int,
    jaxpr: Any,
) -> Any:
    _refuse_to_run_alone(exchange, jax.process_count() == 1)
    _held_groups.keep_with(ctx.module_context.module, exchange.static.group)
    with _scopes.lowered_in(ctx.name_stack):
        return _lower_here(
            ctx, *arrays, exchange=exchange, num_residuals=num_residuals, jaxpr=jaxpr
        )


def _lower_here(
    ctx: mlir.LoweringRuleContext,
    *arrays: Any,
    exchange: Exchange,
    num_residuals: int,
    jaxpr: Any,
) -> Any:
    before = None
    if exchange.static.in_source_order:
        sharded = exchange.static.layout.mesh is not None
        before = _source_order.last_result(exchange.static.layout.num_shards if sharded else None)
    if before is None:
        with _checks_kept():
            return mlir.lower_fun(jaxpr_as_fun(jaxpr), multiple_results=True)(ctx, *arrays)

    def after(first: jax.Array, *arrays: jax.Array) -> tuple[jax.Array, ...]:
        with _source_order.after(first):
            return exchange.run(arrays[:num_residuals], arrays[num_residuals:])

    value, aval = before
    ctx = ctx.replace(avals_in=[aval, *ctx.avals_in])
    return mlir.lower_fun(after, multiple_results=True)(ctx, value, *arrays)


_source_order.register_inline(_exchange, _lower)


def _jvp(
    primals: Arrays,
    tangents: Sequence[Any],
    *,
    exchange: Exchange,
    num_residuals: int,
    jaxpr: Any,
) -> tuple[list[jax.Array], list[Any]]:
    results = _exchange.bind(*primals, exchange=exchange, num_residuals=num_residuals, jaxpr=jaxpr)
    for residual, tangent in zip(primals, tangents[:num_residuals], strict=False):
        if type(tangent) is ad.Zero or tangent.dtype == float0:
            continue
        if np.dtype(residual.dtype) not in DTYPE_CODES:
            raise TypeError(
                f"epd moves rows of {residual.dtype}, but cannot sum them, so they have no gradient; use"
                " jax.lax.stop_gradient on them, or rows of float32, bfloat16 or float16"
            )
    moved, residuals = exchange.after(primals[:num_residuals], results)
    operands = [ad.instantiate_zeros(tangent) for tangent in tangents[num_residuals:]]
    moved_results = _bind(moved, residuals, operands)
    constant = results[: len(results) - len(moved_results)]
    return results, [
        ad.Zero(jax.typeof(result).to_tangent_aval()) for result in constant
    ] + moved_results


ad.primitive_jvps[_exchange] = _jvp


def _transpose(
    cotangents: Sequence[Any],
    *arrays: Any,
    exchange: Exchange,
    num_residuals: int,
    jaxpr: Any,
) -> list[jax.Array | None]:
    del jaxpr
    residuals, operands = arrays[:num_residuals], arrays[num_residuals:]
    gradients = _bind(
        exchange.transpose(), residuals, [ad.instantiate_zeros(ct) for ct in cotangents]
    )
    none: list[jax.Array | None] = [None] * num_residuals
    return none + [
        gradient if ad.is_undefined_primal(operand) else None
        for gradient, operand in zip(gradients, operands, strict=True)
    ]


ad.primitive_transposes[_exchange] = _transpose


@dataclass(frozen=True)
class _Wrapped(Exchange):
    """An exchange that is made in another way."""

    exchange: Exchange

    @property
    def label(self) -> str:
        return self.exchange.label

    def transpose(self) -> "_Wrapped":
        return replace(self, exchange=self.exchange.transpose())


@dataclass(frozen=True)
class _Placed(_Wrapped):
    """An exchange whose first two residuals are the place where it runs, its domain and its position in it."""

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        domain, position, *rest = residuals
        with _place.at((domain, position)):
            return self.exchange.run(rest, operands)

    def after(self, residuals: Arrays, results: Arrays) -> tuple["_Placed", Arrays]:
        moved, rest = self.exchange.after(residuals[2:], results)
        return replace(self, exchange=moved), [*residuals[:2], *rest]


@dataclass(frozen=True)
class _Batched(_Wrapped):
    """``size`` exchanges, one after another; with ``spmd_axes`` each device of them makes its own share."""

    size: int
    residuals_batched: tuple[bool, ...]
    spmd_axes: tuple[str, ...]

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        axes = [0 if batched else None for batched in self.residuals_batched]
        run = jax.vmap(
            self.exchange.run,
            in_axes=(axes, 0),
            axis_size=self.size,
            spmd_axis_name=self.spmd_axes or None,
        )
        return tuple(run(list(residuals), list(operands)))

    def after(self, residuals: Arrays, results: Arrays) -> tuple["_Batched", Arrays]:
        moved, all_residuals = self.exchange.after(residuals, results)
        known = self.residuals_batched[: len(all_residuals)]
        batched = known + (True,) * (len(all_residuals) - len(known))
        return replace(self, exchange=moved, residuals_batched=batched), all_residuals


def _to_front(axis_size: int, array: jax.Array, dim: int | None) -> jax.Array:
    if dim is None:
        return jax.numpy.broadcast_to(array, (axis_size, *array.shape))
    return jax.numpy.moveaxis(array, dim, 0)


def _vmapped(
    axis: Any,
    arrays: Arrays,
    dims: Sequence[int | None],
    *,
    exchange: Exchange,
    num_residuals: int,
    jaxpr: Any,
) -> tuple[list[jax.Array], list[int]]:
    del jaxpr
    batched = tuple(dim is not None for dim in dims[:num_residuals])
    pairs = list(zip(arrays, dims, strict=True))
    residuals = [
        array if dim is None else jax.numpy.moveaxis(array, dim, 0)
        for array, dim in pairs[:num_residuals]
    ]
    operands = [_to_front(axis.size, array, dim) for array, dim in pairs[num_residuals:]]
    spmd = axis.spmd_name
    spmd = () if spmd is None else (spmd,) if isinstance(spmd, str) else tuple(spmd)
    carriers = exchange.static.layout.carriers
    if taken := [name for name in spmd if name in carriers]:
        raise ValueError(
            f"vmap over an operation of epd: spmd_axis_name is {spmd}, but {taken} carries tokens already, as do all of"
            f" {carriers}; name a mesh axis beside them, or none"
        )
    results = _bind(
        _Batched(exchange.static, exchange, axis.size, batched, spmd), residuals, operands
    )
    return results, [0] * len(results)


batching.fancy_primitive_batchers[_exchange] = _vmapped
