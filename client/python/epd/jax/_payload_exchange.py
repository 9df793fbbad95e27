"""A dispatch of a payload: of several arrays whose rows travel side by side under one plan, in one exchange.

Where it may not be one, each array has a dispatch of its own: in a program of roles and in a group joined by rank, whose calls
are made one after another in an order that is the same on all ranks, while the backward of a payload is several calls at once;
and where the rows together are wider than the group can move. On GPUs the one call is lowered as several, see ``_kept_call``.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from epd.jax import _exchanges, _ffi, _halves, _place
from epd.jax._call import Static, call, mapped
from epd.jax._exchange_primitive import Arrays, Exchange, bind
from epd.jax.config import DTYPE_CODES

# One array, or a pytree of arrays that travel under one plan.
Payload: TypeAlias = Any

_MAX_ARRAYS = 64  # As EPD_MAX_MORE_ROWS has it.
_WIDEST = 8  # Bytes of what a group's hidden_dim counts, where rows are only moved.


def _of_leaf(static: Static, number: int) -> Static:
    """For the dispatch of a payload's leaf: each has a name of its own."""
    return dataclasses.replace(static, name=_ffi.name_of_leaf(static.name, number))


def _row_bytes(rows: jax.Array) -> int:
    return int(rows.shape[-1]) * np.dtype(rows.dtype).itemsize


def _is_summed(rows: jax.Array) -> bool:
    return np.dtype(rows.dtype) in DTYPE_CODES


@dataclass(frozen=True)
class _Payload(Exchange):
    """``leading``: of the tokens; ``capacity``: slots of one rank."""

    leading: tuple[int, ...]
    capacity: int

    @property
    def label(self) -> str:
        return "ep_dispatch"

    def _shard_tokens(self) -> int:
        return int(np.prod(self.leading)) // self.static.layout.num_shards


@dataclass(frozen=True)
class _DispatchPayload(_Payload):
    """The plan and arrays [leading, h] that cannot be summed; arrays [leading, h] that can, weights f32 [leading, K]
    -> [R, C, h] of each, f32 [R, C].
    """

    target = _ffi.DISPATCH_PAYLOAD

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        handle_mem, *moved = residuals
        *summed, weights = operands
        return tuple(mapped(self.static.layout, self._shard, handle_mem, weights, *moved, *summed))

    def _shard(
        self, handle_mem: jax.Array, weights: jax.Array, *arrays: jax.Array
    ) -> tuple[jax.Array, ...]:
        slots = (1, self.capacity)
        received = [((*slots, rows.shape[-1]), rows.dtype) for rows in arrays]
        recv_weights, *recv_arrays = call(
            self.static,
            self.target,
            [(slots, np.dtype(np.float32)), *received],
            [handle_mem, weights, *arrays],
            tokens=self._shard_tokens(),
            width=sum(map(_row_bytes, arrays)),
            capacity=self.capacity,
        )
        return (*recv_arrays, recv_weights)

    def after(self, residuals: Arrays, results: Arrays) -> tuple[Exchange, Arrays]:
        num_summed = len(results) - len(residuals)
        sizes = (self.static, self.leading, self.capacity)
        if num_summed == 0:
            return _exchanges.DispatchWeights(*sizes), residuals[:1]
        if num_summed == 1:
            return _exchanges.Dispatch(*sizes), residuals[:1]
        return self, residuals[:1]

    def transpose(self) -> Exchange:
        return _PayloadBackward(self.static, self.leading, self.capacity)


@dataclass(frozen=True)
class _PayloadBackward(_Payload):
    """[R, C, h] of each array, f32 [R, C] -> [leading, h] of each, f32 [leading, K]: an exchange for each array."""

    target = _ffi.DISPATCH_BWD

    @property
    def label(self) -> str:
        return "ep_dispatch_bwd"

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        *arrays, weights = operands
        gradients = []
        for number, rows in enumerate(arrays):
            static = _of_leaf(self.static, number)
            exchange = _exchanges.Dispatch(static, self.leading, self.capacity).transpose()
            gradients.append(exchange.run(residuals, [rows, weights]))
            weights = jnp.zeros_like(weights)
        return (*(rows for rows, _ in gradients), gradients[0][1])

    def transpose(self) -> Exchange:
        return _DispatchPayload(self.static, self.leading, self.capacity)


def _goes_in_one(static: Static, leaves: Sequence[jax.Array]) -> bool:
    if len(leaves) not in range(2, _MAX_ARRAYS + 1):
        return False
    if static.group.joined_by_rank or _place.current() is not None:
        return False
    return sum(map(_row_bytes, leaves)) <= static.group.config.hidden_dim * _WIDEST


def _in_one(
    static: Static, capacity: int, handle_mem: jax.Array, leaves: Arrays, weights: jax.Array
) -> tuple[list[jax.Array], jax.Array]:
    moved = [rows for rows in leaves if not _is_summed(rows)]
    summed = [rows for rows in leaves if _is_summed(rows)]
    exchange = _DispatchPayload(static, tuple(leaves[0].shape[:-1]), capacity)
    *received, recv_weights = bind(exchange, [handle_mem, *moved], [*summed, weights])
    of_moved, of_summed = iter(received[: len(moved)]), iter(received[len(moved) :])
    return [next(of_summed if _is_summed(rows) else of_moved) for rows in leaves], recv_weights


def _one_by_one(
    static: Static, capacity: int, handle_mem: jax.Array, leaves: Arrays, weights: jax.Array
) -> tuple[list[jax.Array], jax.Array]:
    received: list[tuple[jax.Array, jax.Array]] = []
    for number, rows in enumerate(leaves):
        place = _place.current()
        # Of roles: in one order on all ranks, see _role_order.
        if received and place is not None:
            place = _place.after(place, received[-1][:1])
        with _place.at(place):
            own = _of_leaf(static, number)
            received.append(_exchanges.dispatch(own, capacity, handle_mem, rows, weights))
    return [rows for rows, _ in received], received[0][1]


def dispatch(
    static: Static, capacity: int, handle_mem: jax.Array, tokens: Payload, topk_weights: jax.Array
) -> tuple[Payload, jax.Array]:
    """The payload's rows as they were received, [R, capacity, h] each, and the weights, f32 [R, capacity]."""
    leaves, tree = jax.tree.flatten(tokens)
    weights = topk_weights.astype(jnp.float32)
    send = _in_one if _goes_in_one(static, leaves) else _one_by_one
    received, recv_weights = send(static, capacity, handle_mem, leaves, weights)
    return jax.tree.unflatten(tree, received), recv_weights


def start(
    static: Static, capacity: int, handle_mem: jax.Array, tokens: Payload, topk_weights: jax.Array
) -> tuple[
    list[_halves.UnderWay], Callable[[Sequence[list[jax.Array]]], tuple[Payload, jax.Array]]
]:
    """The same in halves, of each array its own: what is under way, and what is made of its results."""
    leaves, tree = jax.tree.flatten(tokens)
    weights = topk_weights.astype(jnp.float32)
    started = []
    for number, rows in enumerate(leaves):
        given = (_of_leaf(static, number), capacity, handle_mem, rows, weights)
        exchange = _exchanges.dispatch_exchange(*given)
        started.append(_halves.start(*exchange, rows.shape[-1], rows.dtype))
    return started, lambda received: (
        jax.tree.unflatten(tree, [rows for rows, _ in received]),
        received[0][1],
    )
