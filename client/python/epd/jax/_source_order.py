"""Keeps a program's calls in the order of its source, where the programs of a group's processes are not alike.

Each exchange has an operand more, an array that the one before it gave; nobody reads it. It is found while lowering, in the
block of the module in which the exchange is to stand: an operation that is a call of epd's or holds one, as loops do. So the
order does not reach from one function of the module into another, as those of nested jits are.
"""

import contextlib
import contextvars
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.interpreters import mlir

from epd.jax._ffi import OPERATIONS, STARTS

_DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": jax.numpy.bfloat16, "i32": np.int32}

_before: contextvars.ContextVar[jax.Array | None] = contextvars.ContextVar(
    "epd_before", default=None
)


@contextlib.contextmanager
def after(array: jax.Array | None) -> Iterator[None]:
    """Exchanges that are traced inside are made once ``array`` is there; None: at once."""
    token = _before.set(array)
    try:
        yield
    finally:
        _before.reset(token)


def current() -> jax.Array | None:
    """The array of the innermost ``after``."""
    return _before.get()


def register_inline(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """A lowering that stands where the program has it. JAX may make a function of others, and use it again."""
    if "cacheable" in inspect.signature(mlir.register_lowering).parameters:
        mlir.register_lowering(primitive, rule, cacheable=False)
    else:
        mlir.register_lowering(primitive, rule)


def last_result(shards: int | None) -> tuple[Any, jax.core.ShapedArray] | None:
    """The smallest result of the last operation before here that is a call of epd's or holds one; None if there is none.

    ``shards``: only an array that an exchange over a mesh gave, whose rows are split over so many shards.
    """
    for operation in reversed(list(ir.InsertionPoint.current.block.operations)):
        if any(_calls(operation.operation)):
            if shards is not None and operation.operation.name != "sdy.manual_computation":
                return None
            arrays = [value for value in operation.results if _size(value)]
            if shards is not None:
                arrays = [value for value in arrays if not value.type.shape[0] % shards]
            if not arrays:
                return None
            value = min(arrays, key=_size)
            dtype = _DTYPES[str(value.type.element_type)]
            return value, jax.core.ShapedArray(tuple(value.type.shape), dtype)
    return None


def _size(value: Any) -> int:
    """Elements of an array of a known dtype; 0 of anything else."""
    array = isinstance(value.type, ir.RankedTensorType)
    if not array or str(value.type.element_type) not in _DTYPES:
        return 0
    return math.prod(value.type.shape)


def _calls(operation: Any) -> Iterator[bool]:
    """An item for each call of epd's in it; those of a function that it calls count as its own."""
    if operation.name == "stablehlo.custom_call":
        target = ir.StringAttr(operation.attributes["call_target_name"]).value
        if target in OPERATIONS or target in STARTS:
            yield True
    if operation.name == "func.call":
        name = ir.FlatSymbolRefAttr(operation.attributes["callee"]).value
        yield from (call for callee in _functions(operation, name) for call in _calls(callee))
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _calls(inner.operation)


def _functions(operation: Any, name: str) -> Iterator[Any]:
    """The functions of that name in the module."""
    while operation.parent is not None:
        operation = operation.parent
    for function in operation.regions[0].blocks[0].operations:
        if ir.StringAttr(function.attributes["sym_name"]).value == name:
            yield function.operation
