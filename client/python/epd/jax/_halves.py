"""Exchanges in two halves: one that starts it and gives a token, and one that takes the token and gives the results.

Each is linear, and the transpose of an exchange's start is the done of its transpose: so a backward pass has halves, too. What is
to be computed between the two goes through ``fork`` and ``join``, which change nothing but what comes after what: XLA keeps
no other order, and by itself makes what follows a start only once it is done, since arrays share memory. They are each other's
transpose, so the gradient of what lies between two halves lies between those of the gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from epd.jax import _ffi, _place
from epd.jax._call import Static, mapped
from epd.jax._exchange_primitive import Arrays, Exchange, bind
from epd.jax._exchanges import Rows

# Of one rank: the number by which its process knows the exchange.
_TOKEN: tuple[tuple[int, ...], np.dtype] = ((1, 2), np.dtype(np.float32))

_H = TypeVar("_H", bound="_Half")


@dataclass(frozen=True)
class _Half(Exchange):
    """``width`` and ``dtype``: of the rows that the exchange's operands are."""

    exchange: Rows
    width: int
    dtype: np.dtype

    @property
    def label(self) -> str:
        return self.exchange.label

    def after(self, residuals: Arrays, results: Arrays) -> tuple[Exchange, Arrays]:
        del results
        moved, rest = self.exchange.after(residuals, [])
        assert isinstance(moved, Rows)
        return self._half(type(self), moved), rest

    def _half(self, kind: type[_H], exchange: Rows) -> _H:
        width, dtype = exchange.row(self.width, self.dtype)
        return kind(self.static, exchange, width, dtype)


@dataclass(frozen=True)
class Start(_Half):
    """The exchange's residuals and operands -> a token [R, 2]."""

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        given = self.exchange.given(residuals, operands)
        return tuple(mapped(self.static.layout, self._shard, *given))

    def transpose(self) -> Exchange:
        return self._half(Done, self.exchange.transpose())

    def _shard(self, *given: jax.Array) -> tuple[jax.Array, ...]:
        read, after = self.exchange.split(given)
        target = _ffi.start_of(self.exchange.target)
        return self.exchange.make(target, [_TOKEN], read, self.width, after)


@dataclass(frozen=True)
class Done(_Half):
    """The exchange's residuals, a token [R, 2] -> the exchange's results."""

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        return self.exchange.taken(mapped(self.static.layout, self._shard, *operands))

    def transpose(self) -> Exchange:
        return self._half(Start, self.exchange.transpose())

    def _shard(self, token: jax.Array) -> tuple[jax.Array, ...]:
        results = self.exchange.results(self.width, self.dtype)
        return self.exchange.make(_ffi.DONE, results, [token], self.width, [])


@dataclass(frozen=True)
class _Fork(Exchange):
    """Tokens and arrays -> the same. What its transpose gives of the tokens comes after that of the arrays."""

    target = "epd1.fork"
    num_tokens: int

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        return tuple(operands)

    def transpose(self) -> Exchange:
        return _Join(self.static, self.num_tokens)


@dataclass(frozen=True)
class _Join(Exchange):
    """Tokens and arrays [leading, ...] -> the same, the tokens after the arrays."""

    target = "epd1.join"
    num_tokens: int

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        tokens = mapped(self.static.layout, self._shard, *operands)
        return (*tokens, *operands[self.num_tokens :])

    def transpose(self) -> Exchange:
        return _Fork(self.static, self.num_tokens)

    def _shard(self, *operands: jax.Array) -> tuple[jax.Array, ...]:
        zero = _place.zero_after(operands[self.num_tokens :]).astype(jnp.float32)
        return tuple(token + zero for token in operands[: self.num_tokens])


@dataclass(frozen=True)
class UnderWay:
    """An exchange of which only the start was made."""

    half: Done
    residuals: tuple[jax.Array, ...]
    token: jax.Array

    def done(self) -> list[jax.Array]:
        """The exchange's results."""
        return bind(self.half, self.residuals, [self.token])


def start(
    exchange: Rows, residuals: Arrays, operands: Arrays, width: int, dtype: np.dtype
) -> UnderWay:
    """``width`` and ``dtype``: of the rows that go."""
    halves = (exchange.static, exchange, *exchange.row(width, np.dtype(dtype)))
    (token,) = bind(Start(*halves), residuals, operands)
    return UnderWay(Done(*halves), tuple(residuals), token)


def _pass(
    static: Static, kind: type[_Fork] | type[_Join], tokens: Arrays, arrays: Arrays
) -> tuple[list[jax.Array], list[jax.Array]]:
    passed = bind(kind(static, len(tokens)), [], [*tokens, *arrays])
    return passed[: len(tokens)], passed[len(tokens) :]


def _with_tokens(started: Sequence[UnderWay], tokens: Arrays) -> list[UnderWay]:
    return [replace(one, token=token) for one, token in zip(started, tokens, strict=True)]


def fork(started: Sequence[UnderWay], arrays: Arrays) -> tuple[list[UnderWay], list[jax.Array]]:
    """What is to be computed from these arrays begins behind the starts; its gradient has ended in front of their dones."""
    static = started[0].half.static
    tokens, arrays = _pass(static, _Fork, [one.token for one in started], arrays)
    return _with_tokens(started, tokens), arrays


def join(started: Sequence[UnderWay], arrays: Arrays) -> tuple[list[UnderWay], list[jax.Array]]:
    """The dones come after these arrays, and their gradients after the starts of the gradient."""
    static = started[0].half.static
    tokens, arrays = _pass(static, _Join, [one.token for one in started], arrays)
    return _with_tokens(started, tokens), arrays
