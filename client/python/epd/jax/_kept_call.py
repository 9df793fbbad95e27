"""A custom call of epd's as a JAX primitive. What it knows only when it is lowered: the name of the function that is
compiled, and where in it the call stands.

A *kept* one is made by XLA wherever JAX's program has it: where XLA might drop, merge or move it on some ranks alone.

**Without tokens on any rank** the results of some calls are all empty. XLA replaces empty arrays by constants and so drops
the call. So it gives arrays of one row, which leave shard_map (Shardy makes constants of a computation's empty results, the
flag below notwithstanding) and are cut off by ``cut``, and XLA's side effect flag keeps it. ``jax.ffi.ffi_call`` would tell
JAX of the flag too, which then keeps calls that no one uses (and makes them again under ``jax.checkpoint``): so here XLA
knows of it and JAX does not. Inside a shard_map of the caller's the rows are cut off within it, and the call would be lost
if nothing else leaves it: XLA makes constants of the computation's empty results and then drops its call, side effects and
all. ``_checks`` refuses that while tracing, but for a group of one rank, for which nobody waits.

**In a group joined by rank** every process has a program of its own, of the same source but for the number of its tokens,
which may be none on some. There XLA would find other calls equal, constant in a loop or unneeded, and other orders of those
that do not follow from each other's data. So all calls of these programs have the flag: which of them there are follows from
JAX's program, which is alike; and they are made in the order of the source, see ``_source_order``. That does not reach from
a nested jit's function into another: ranks without tokens may be out of step there, and are told so
(``program_divergence.h``).
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.interpreters import batching, mlir
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from epd.jax import _ffi, _scopes, _source_order

# What a call gives: shape and dtype of each result, and its attributes.
_Results = tuple[tuple[tuple[int, ...], np.dtype], ...]
_Attributes = tuple[tuple[str, int | str], ...]

_call = Primitive("epd_call")
_call.multiple_results = True


def custom_call(
    target: str,
    results: Sequence[tuple[Sequence[int], DTypeLike]],
    kept: bool,
    *operands: jax.Array,
    **attributes: int | str,
) -> list[jax.Array]:
    """As ``jax.ffi.ffi_call(target, ...)(*operands, **attributes)``, with the attributes ``program`` and ``scope``, and with
    one row of unspecified content in empty results of a kept call.

    The results vary as the third operand does.
    """
    least = 1 if kept else 0
    rows = tuple(
        (tuple(max(least, size) for size in shape), np.dtype(dtype)) for shape, dtype in results
    )
    static = tuple(sorted(attributes.items()))
    return _call.bind(*operands, target=target, results=rows, kept=kept, attributes=static)


def cut(array: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """``array``, without the row that a kept call gave it beyond ``shape``."""
    if array.shape == shape:
        return array
    return jax.lax.slice(array, (0,) * array.ndim, shape)


@_call.def_abstract_eval
def _results(
    *avals: Any, target: str, results: _Results, kept: bool, attributes: _Attributes
) -> list[Any]:
    del target, kept, attributes
    like = avals[2]

    def result(shape: tuple[int, ...], dtype: np.dtype) -> Any:
        spec = PartitionSpec(*(None,) * len(shape))
        sharding = NamedSharding(like.sharding.mesh, spec)
        return like.update(shape=shape, dtype=dtype, weak_type=False, sharding=sharding)

    return [result(shape, dtype) for shape, dtype in results]


@_call.def_impl
def _eager(*operands: jax.Array, **params: Any) -> list[jax.Array]:
    return jax.jit(lambda *arrays: _call.bind(*arrays, **params))(*operands)


def _lower(
    ctx: mlir.LoweringRuleContext,
    *operands: Any,
    target: str,
    results: _Results,
    kept: bool,
    attributes: _Attributes,
) -> Any:
    del results
    platforms = set(ctx.module_context.platforms)
    _ffi.enable_cuda_for(platforms)
    others = sorted(platforms - _ffi.PLATFORMS_OF_HALVES)
    if target in _ffi.HALVES and others:
        raise NotImplementedError(
            f"{target.replace('epd1.', 'ep_').removesuffix('_start')}: start=True is for ranks on CPUs, this program is for"
            f" {', '.join(others)}; use start=False there"
        )
    if target == _ffi.DISPATCH_PAYLOAD and platforms - _ffi.PLATFORMS_OF_PAYLOADS:
        return _lower_by_array(ctx, operands, kept, dict(attributes))
    return _lower_one(ctx, operands, target, kept, dict(attributes))


def _lower_one(
    ctx: mlir.LoweringRuleContext,
    operands: Sequence[Any],
    target: str,
    kept: bool,
    attributes: dict[str, int | str],
) -> Any:
    given = {key: np.int64(v) if isinstance(v, int) else v for key, v in attributes.items()}
    program = ir.StringAttr(ctx.module_context.module.operation.attributes["sym_name"]).value
    stack = _scopes.name_stack()
    given |= {"program": program, "scope": _scopes.scope(stack, program)}
    # XLA calls its operation so, and jax.profiler shows it: "epd_dispatch".
    shown = target.replace("epd1.", "epd_").removesuffix("_payload")
    located = ir.Location.name(f"{stack}/{shown}".lstrip("/"), childLoc=ir.Location.current)
    with located:
        return jax.ffi.ffi_lowering(target, has_side_effect=kept)(ctx, *operands, **given)


def _lower_by_array(
    ctx: mlir.LoweringRuleContext,
    operands: Sequence[Any],
    kept: bool,
    attributes: dict[str, int | str],
) -> Any:
    """A payload as a dispatch of each array, one after the other. The weights are those of the first."""
    given: list[tuple[Any, Any]] = list(zip(operands, ctx.avals_in, strict=True))
    domain, position, plan, weights, *others = given
    recv_weights, *received = ctx.avals_out
    arrays, after = others[: len(received)], others[len(received) :]
    results: list[Any] = []
    for number, (rows, recv_rows) in enumerate(zip(arrays, received, strict=True)):
        values, avals = zip(domain, position, plan, rows, weights, *after, strict=True)
        own = ctx.replace(avals_in=list(avals), avals_out=[recv_rows, recv_weights])
        named = _ffi.name_of_leaf(str(attributes["name"]), number)
        changed = {"name": named, "width": rows[1].shape[-1]}
        results.append(_lower_one(own, values, _ffi.DISPATCH, kept, attributes | changed))
        after = [(results[-1][1], recv_weights)]
    return [results[0][1], *(rows for rows, _ in results)]


_source_order.register_inline(_call, _lower)


def _vmapped(
    arrays: Sequence[jax.Array], dims: Sequence[int | None], **params: Any
) -> tuple[list[jax.Array], list[int]]:
    """One call after another, as ``jax.ffi.ffi_call(vmap_method="sequential")`` makes them."""
    fronts = [
        array if dim is None else jax.numpy.moveaxis(array, dim, 0)
        for array, dim in zip(arrays, dims, strict=True)
    ]
    batched = [array for array, dim in zip(fronts, dims, strict=True) if dim is not None]

    def one(shares: Sequence[jax.Array]) -> list[jax.Array]:
        own = iter(shares)
        pairs = zip(fronts, dims, strict=True)
        return _call.bind(*[array if dim is None else next(own) for array, dim in pairs], **params)

    results = jax.lax.map(one, batched)
    return results, [0] * len(results)


batching.primitive_batchers[_call] = _vmapped
