"""The five exchanges, checked by their callers. Each function takes and returns arrays as the caller sees them.

``leading`` is the leading shape of the tokens as the caller sees it, ``capacity`` the slots of one rank. Dispatch and its
backward are each other's transpose, and so are combine and its backward. The residual of these four is the routing plan.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

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
class _Rows(Exchange):
    """One operation on rows, with weights or not: from the tokens to the experts' slots, or back."""

    to_experts: ClassVar[bool]
    with_weights: ClassVar[bool]
    leading: tuple[int, ...]
    capacity: int

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        return tuple(mapped(self.static.layout, self._shard, *residuals, *operands))

    def transpose(self) -> Exchange:
        return _TRANSPOSES[type(self)](self.static, self.leading, self.capacity)

    def _shard(self, handle_mem: jax.Array, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """``operands``: the rows, weights if there are any, and an array after which the call is made, or none."""
        num_read = 2 + self.with_weights
        given, after = [handle_mem, *operands][:num_read], operands[num_read - 1 :]
        shard_leading = (self.leading[0] // self.static.layout.num_shards, *self.leading[1:])
        lead = (1, self.capacity) if self.to_experts else shard_leading
        rows = operands[0]
        results: list[tuple[tuple[int, ...], np.dtype]] = [((*lead, rows.shape[-1]), rows.dtype)]
        if self.with_weights:
            top_k = () if self.to_experts else (self.static.cfg.top_k,)
            results.append(((*lead, *top_k), np.dtype(np.float32)))
        return call(
            self.static,
            self.target,
            results,
            given,
            tokens=math.prod(shard_leading),
            width=rows.shape[-1],
            capacity=self.capacity,
            after=after,
        )


@dataclass(frozen=True)
class _Dispatch(_Rows):
    """tokens [leading, H], weights f32 [leading, K] -> [R, C, H], f32 [R, C]."""

    target, to_experts, with_weights = _ffi.DISPATCH, True, True


@dataclass(frozen=True)
class _DispatchBytes(_Dispatch):
    """A dispatch whose rows, a residual, cannot be summed and so have no gradient. Linear in the weights alone."""

    def after(self, residuals: Arrays, results: Arrays) -> tuple[Exchange, Arrays]:
        return _DispatchWeights(self.static, self.leading, self.capacity), residuals[:1]


def _no_rows(weights: jax.Array, *shape: int) -> Arrays:
    """The weights behind the narrowest rows that there are."""
    return [jnp.zeros((*shape, 1), jnp.bfloat16), weights]


@dataclass(frozen=True)
class _DispatchWeights(_Dispatch):
    """weights f32 [leading, K] -> f32 [R, C]."""

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        (weights,) = operands
        return super().run(residuals, _no_rows(weights, *weights.shape[:-1]))[1:]


@dataclass(frozen=True)
class _DispatchBackward(_Rows):
    """[R, C, H], f32 [R, C] -> [leading, H], f32 [leading, K]."""

    target, to_experts, with_weights = _ffi.DISPATCH_BWD, False, True

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        return self._cut(super().run(residuals, operands))

    def _cut(self, results: Arrays) -> tuple[jax.Array, ...]:
        return tuple(cut(result, (*self.leading, result.shape[-1])) for result in results)


@dataclass(frozen=True)
class _DispatchWeightsBackward(_DispatchBackward):
    """f32 [R, C] -> f32 [leading, K]."""

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        (weights,) = operands
        rows_too = _Rows.run(self, residuals, _no_rows(weights, *weights.shape))
        return self._cut(rows_too[1:])


@dataclass(frozen=True)
class _Combine(_Rows):
    """[R, C, H] -> [leading, H], with the rows that a kept call gives beyond it (see _kept_call).

    Without tokens only these rows lead from a combine to its backward; XLA keeps the two in order by them. So they are
    a second residual of all that follows such a combine, which nobody reads. The same where roles have different
    programs: in one of them XLA might make the backward first, or merge what leads to combine with what follows its
    backward, and in another one not; each would wait for the other. In a group joined by rank the calls are in order
    anyway, and there this rank's combine must not be needed where the others' is not.
    """

    target, to_experts, with_weights = _ffi.COMBINE, False, False

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        return super().run(residuals[:1], operands)

    def after(self, residuals: Arrays, results: Arrays) -> tuple[Exchange, Arrays]:
        group = self.static.group
        in_order = group.of_roles or not (math.prod(self.leading) or group.joined_by_rank)
        return self, [residuals[0], *(results if in_order else [])]


@dataclass(frozen=True)
class _CombineBackward(_Rows):
    """[leading, H] -> [R, C, H]. Without tokens the operand is not read."""

    target, to_experts, with_weights = _ffi.COMBINE_BWD, True, False

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        handle_mem, *rows = residuals
        if math.prod(self.leading) and operands:
            return super().run([handle_mem], [*operands, *rows])
        return super().run([handle_mem], rows or operands)


_TRANSPOSES: dict[type[_Rows], type[_Rows]] = {
    _Dispatch: _DispatchBackward,
    _DispatchBackward: _Dispatch,
    _DispatchWeights: _DispatchWeightsBackward,
    _DispatchWeightsBackward: _DispatchWeights,
    _Combine: _CombineBackward,
    _CombineBackward: _Combine,
}


def prepare(static: Static, topk_idx: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """-> token_counts i32 [R, n], total_recv_tokens i32 [R, 1], handle_mem u8 [R, size]."""
    results = bind(_Prepare(static), [topk_idx], [])
    counts, total, plan = (open_sharding(static.layout, result) for result in results)
    return counts, total, plan


def dispatch(
    static: Static, capacity: int, handle_mem: jax.Array, tokens: jax.Array, topk_weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """-> recv_tokens [R, capacity, H], recv_topk_weights f32 [R, capacity]. The weights are float32."""
    sizes = (static, tuple(tokens.shape[:-1]), capacity)
    if np.dtype(tokens.dtype) not in DTYPE_CODES:
        rows, weights = bind(_DispatchBytes(*sizes), [handle_mem, tokens], [topk_weights])
    else:
        rows, weights = bind(_Dispatch(*sizes), [handle_mem], [tokens, topk_weights])
    return rows, weights


def combine(
    static: Static, leading: tuple[int, ...], handle_mem: jax.Array, expert_out: jax.Array
) -> jax.Array:
    """-> [leading, H]."""
    exchange = _Combine(static, leading, expert_out.shape[1])
    (rows,) = bind(exchange, [handle_mem], [expert_out])
    return cut(rows, (*leading, expert_out.shape[-1]))


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
