"""The five exchanges, checked by their callers. Each function takes and returns arrays as the caller sees them.

``leading`` is the leading shape of the tokens as the caller sees it, ``capacity`` the slots of one rank. Dispatch and its
backward are each other's transpose, and so are combine and its backward. The residual of these four is the routing plan.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from epd.jax import _ffi
from epd.jax._call import Static, call, mapped
from epd.jax._exchange_primitive import Arrays, Exchange, bind
from epd.jax._kept_call import cut
from epd.jax._open_sharding import open_sharding
from epd.jax.config import DTYPE_CODES


@dataclass(frozen=True)
class _Prepare(Exchange):
    """topk_idx, a residual -> the counts, their sum, the plan. Integers: nothing to differentiate."""

    target = _ffi.PREPARE

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        return tuple(mapped(self.static.layout, self._shard, *residuals))

    def _shard(self, topk_idx: jax.Array) -> tuple[jax.Array, ...]:
        results = [
            ((1, self.static.group.config.num_local_experts), jnp.int32),
            ((1, 1), jnp.int32),
            ((1, self.static.handle_mem_size), jnp.uint8),
        ]
        tokens = math.prod(topk_idx.shape[:-1])
        return call(self.static, self.target, results, [topk_idx], tokens=tokens)


@dataclass(frozen=True)
class Rows(Exchange):
    """One operation on rows, with weights or not: from the tokens to the experts' slots, or back."""

    to_experts: ClassVar[bool]
    with_weights: ClassVar[bool]
    leading: tuple[int, ...]
    capacity: int

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        given = self.given(residuals, operands)
        return self.taken(mapped(self.static.layout, self._shard, *given))

    def transpose(self) -> "Rows":
        return _TRANSPOSES[type(self)](self.static, self.leading, self.capacity)

    def given(self, residuals: Arrays, operands: Arrays) -> Arrays:
        """What the call is handed: the plan, rows, weights if it has any, and an array after which it is made, or none."""
        return [*residuals, *operands]

    def taken(self, results: Arrays) -> tuple[jax.Array, ...]:
        """What is left of the call's rows and weights."""
        return tuple(results)

    def row(self, width: int, dtype: np.dtype) -> tuple[int, np.dtype]:
        """The rows that the call moves, where the operands' are these."""
        return width, dtype

    def make(
        self,
        target: str,
        results: Sequence[tuple[Sequence[int], DTypeLike]],
        given: Arrays,
        width: int,
        after: Arrays,
    ) -> tuple[jax.Array, ...]:
        """Calls ``target``, this operation or a half of it, on a shard."""
        return call(
            self.static,
            target,
            results,
            given,
            tokens=math.prod(self._shard_leading),
            width=width,
            capacity=self.capacity,
            after=after,
        )

    def results(self, width: int, dtype: np.dtype) -> list[tuple[tuple[int, ...], np.dtype]]:
        """Shapes and dtypes on a shard."""
        lead = (1, self.capacity) if self.to_experts else self._shard_leading
        results: list[tuple[tuple[int, ...], np.dtype]] = [((*lead, width), dtype)]
        if self.with_weights:
            top_k = () if self.to_experts else (self.static.cfg.top_k,)
            results.append(((*lead, *top_k), np.dtype(np.float32)))
        return results

    def split(self, given: Arrays) -> tuple[Arrays, Arrays]:
        """What the call reads of what it was given, and what it comes after."""
        num_read = 2 + self.with_weights
        return given[:num_read], given[num_read:]

    @property
    def _shard_leading(self) -> tuple[int, ...]:
        return (self.leading[0] // self.static.layout.num_shards, *self.leading[1:])

    def _shard(self, *given: jax.Array) -> tuple[jax.Array, ...]:
        read, after = self.split(given)
        width, dtype = read[1].shape[-1], read[1].dtype
        return self.make(self.target, self.results(width, dtype), read, width, after)


@dataclass(frozen=True)
class Dispatch(Rows):
    """tokens [leading, H], weights f32 [leading, K] -> [R, C, H], f32 [R, C]."""

    target, to_experts, with_weights = _ffi.DISPATCH, True, True


@dataclass(frozen=True)
class _DispatchBytes(Dispatch):
    """A dispatch whose rows, a residual, cannot be summed and so have no gradient. Linear in the weights alone."""

    def after(self, residuals: Arrays, results: Arrays) -> tuple[Exchange, Arrays]:
        return DispatchWeights(self.static, self.leading, self.capacity), residuals[:1]


_NO_ROW = (1, np.dtype(jnp.bfloat16))  # The narrowest that there is.


def _no_rows(weights: jax.Array, *shape: int) -> Arrays:
    """The weights behind the narrowest rows."""
    width, dtype = _NO_ROW
    return [jnp.zeros((*shape, width), dtype), weights]


@dataclass(frozen=True)
class DispatchWeights(Dispatch):
    """weights f32 [leading, K] -> f32 [R, C]."""

    def given(self, residuals: Arrays, operands: Arrays) -> Arrays:
        (weights,) = operands
        return [*residuals, *_no_rows(weights, *weights.shape[:-1])]

    def taken(self, results: Arrays) -> tuple[jax.Array, ...]:
        return super().taken(results)[1:]

    def row(self, width: int, dtype: np.dtype) -> tuple[int, np.dtype]:
        return _NO_ROW


@dataclass(frozen=True)
class _DispatchBackward(Rows):
    """[R, C, H], f32 [R, C] -> [leading, H], f32 [leading, K]."""

    target, to_experts, with_weights = _ffi.DISPATCH_BWD, False, True

    def taken(self, results: Arrays) -> tuple[jax.Array, ...]:
        return tuple(cut(result, (*self.leading, result.shape[-1])) for result in results)


@dataclass(frozen=True)
class _DispatchWeightsBackward(_DispatchBackward):
    """f32 [R, C] -> f32 [leading, K]."""

    def given(self, residuals: Arrays, operands: Arrays) -> Arrays:
        (weights,) = operands
        return [*residuals, *_no_rows(weights, *weights.shape)]

    def taken(self, results: Arrays) -> tuple[jax.Array, ...]:
        return super().taken(results)[1:]

    def row(self, width: int, dtype: np.dtype) -> tuple[int, np.dtype]:
        return _NO_ROW


@dataclass(frozen=True)
class _Combine(Rows):
    """[R, C, H] -> [leading, H], with the rows that a kept call gives beyond it (see _kept_call).

    Without tokens only these rows lead from a combine to its backward; XLA keeps the two in order by them. So they are
    a second residual of all that follows such a combine, which nobody reads. The same where roles have different
    programs: in one of them XLA might make the backward first, or merge what leads to combine with what follows its
    backward, and in another one not; each would wait for the other. In a group joined by rank the calls are in order
    anyway, and there this rank's combine must not be needed where the others' is not.
    """

    target, to_experts, with_weights = _ffi.COMBINE, False, False

    def given(self, residuals: Arrays, operands: Arrays) -> Arrays:
        return [*residuals[:1], *operands]

    def after(self, residuals: Arrays, results: Arrays) -> tuple[Exchange, Arrays]:
        group = self.static.group
        in_order = group.of_roles or not (math.prod(self.leading) or group.joined_by_rank)
        return self, [residuals[0], *(results if in_order else [])]


@dataclass(frozen=True)
class _CombineBackward(Rows):
    """[leading, H] -> [R, C, H]. Without tokens the operand is not read."""

    target, to_experts, with_weights = _ffi.COMBINE_BWD, True, False

    def given(self, residuals: Arrays, operands: Arrays) -> Arrays:
        handle_mem, *rows = residuals
        if math.prod(self.leading) and operands:
            return [handle_mem, *operands, *rows]
        return [handle_mem, *(rows or operands)]


_TRANSPOSES: dict[type[Rows], type[Rows]] = {
    Dispatch: _DispatchBackward,
    _DispatchBackward: Dispatch,
    DispatchWeights: _DispatchWeightsBackward,
    _DispatchWeightsBackward: DispatchWeights,
    _Combine: _CombineBackward,
    _CombineBackward: _Combine,
}


def prepare(static: Static, topk_idx: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """-> token_counts i32 [R, n], total_recv_tokens i32 [R, 1], handle_mem u8 [R, size]."""
    results = bind(_Prepare(static), [topk_idx], [])
    counts, total, plan = (open_sharding(static.layout, result) for result in results)
    return counts, total, plan


def dispatch_exchange(
    static: Static, capacity: int, handle_mem: jax.Array, tokens: jax.Array, topk_weights: jax.Array
) -> tuple[Rows, Arrays, Arrays]:
    """A dispatch, its residuals and its operands."""
    sizes = (static, tuple(tokens.shape[:-1]), capacity)
    if np.dtype(tokens.dtype) not in DTYPE_CODES:
        return _DispatchBytes(*sizes), [handle_mem, tokens], [topk_weights]
    return Dispatch(*sizes), [handle_mem], [tokens, topk_weights]


def dispatch(
    static: Static, capacity: int, handle_mem: jax.Array, tokens: jax.Array, topk_weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """-> recv_tokens [R, capacity, H], recv_topk_weights f32 [R, capacity]. The weights are float32."""
    rows, weights = bind(*dispatch_exchange(static, capacity, handle_mem, tokens, topk_weights))
    return rows, weights


def combine_exchange(
    static: Static, leading: tuple[int, ...], handle_mem: jax.Array, expert_out: jax.Array
) -> tuple[Rows, Arrays, Arrays]:
    """A combine, its residuals and its operands. Its result may have rows to ``cut``."""
    return _Combine(static, leading, expert_out.shape[1]), [handle_mem], [expert_out]


def dispatch_backward(
    static: Static, leading: tuple[int, ...], handle_mem: jax.Array, *grads: jax.Array
) -> list[jax.Array]:
    """``grads``: of the rows [R, C, H] and f32 of the weights [R, C] -> [leading, H], f32 [leading, K]."""
    return bind(_DispatchBackward(static, leading, grads[0].shape[1]), [handle_mem], grads)


def combine_backward(
    static: Static, capacity: int, handle_mem: jax.Array, grad: jax.Array
) -> jax.Array:
    """-> grad_expert_out [R, capacity, H]."""
    exchange = _CombineBackward(static, tuple(grad.shape[:-1]), capacity)
    if np.dtype(grad.dtype) not in DTYPE_CODES:  # Such rows have no gradient themselves.
        return bind(exchange, [handle_mem, grad], [])[0]
    return bind(exchange, [handle_mem], [grad])[0]
