"""The four operations that move rows, checked by their callers. Each takes and returns arrays as the caller sees them.

``leading`` is the leading shape of the tokens as the caller sees it, ``capacity`` the slots of one rank. Dispatch and its
backward are each other's transpose, and so are combine and its backward. The residual of all is the routing plan.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh
from jax.typing import DTypeLike

from epd.jax import _exchange_primitive, _ffi
from epd.jax._call import Static, ffi_call, mapped
from epd.jax._exchange_primitive import Arrays, Exchange
from epd.jax._kept_call import cut
from epd.jax.config import DTYPE_CODES

# Shape and dtype of each of a call's results.
_Results: TypeAlias = Sequence[tuple[Sequence[int], DTypeLike]]


@dataclass(frozen=True)
class _Rows:
    """One operation on rows: its sizes, and what is the same for all four."""

    label: ClassVar[str]
    static: Static
    leading: tuple[int, ...]
    capacity: int

    @property
    def carriers(self) -> tuple[str, ...]:
        return self.static.layout.carriers

    @property
    def mesh(self) -> Mesh | AbstractMesh | None:
        return self.static.layout.mesh

    @property
    def shard_leading(self) -> tuple[int, ...]:
        return (self.leading[0] // self.static.layout.num_shards, *self.leading[1:])

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        raise NotImplementedError

    def transpose(self) -> Exchange:
        raise NotImplementedError

    def after(self, residuals: Arrays, results: Arrays) -> tuple[Exchange, Arrays]:
        del results
        return self, residuals

    def call(
        self,
        target: str,
        results: _Results,
        operands: Arrays,
        hidden: int,
        after: jax.Array | None = None,
    ) -> tuple[jax.Array, ...]:
        return tuple(
            ffi_call(
                self.static,
                target,
                results,
                operands,
                tokens=math.prod(self.shard_leading),
                width=hidden,
                capacity=self.capacity,
                after=after,
            )
        )


@dataclass(frozen=True)
class _Dispatch(_Rows):
    """tokens [leading, H], weights f32 [leading, K] -> [R, C, H], f32 [R, C]."""

    label = "ep_dispatch"

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        return tuple(mapped(self.static, self._shard, *residuals, *operands))

    def _shard(
        self, handle_mem: jax.Array, tokens: jax.Array, weights: jax.Array
    ) -> tuple[jax.Array, ...]:
        hidden = tokens.shape[-1]
        results: _Results = [
            ((1, self.capacity, hidden), tokens.dtype),
            ((1, self.capacity), jnp.float32),
        ]
        return self.call(_ffi.DISPATCH, results, [handle_mem, tokens, weights], hidden)

    def transpose(self) -> Exchange:
        return _DispatchBackward(self.static, self.leading, self.capacity)


@dataclass(frozen=True)
class _DispatchBytes(_Dispatch):
    """A dispatch whose rows, a residual, cannot be summed and so have no gradient. Linear in the weights alone."""

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        handle_mem, tokens = residuals
        return tuple(mapped(self.static, self._shard, handle_mem, tokens, *operands))

    def after(self, residuals: Arrays, results: Arrays) -> tuple[Exchange, Arrays]:
        return _DispatchWeights(self.static, self.leading, self.capacity), residuals[:1]

    def transpose(self) -> Exchange:
        raise NotImplementedError  # Of _DispatchWeights, which its tangents are.


def _no_rows(*shape: int) -> jax.Array:
    """The narrowest rows that there are: what goes with weights alone."""
    return jnp.zeros((*shape, 1), jnp.bfloat16)


@dataclass(frozen=True)
class _DispatchWeights(_Dispatch):
    """weights f32 [leading, K] -> f32 [R, C]."""

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        (weights,) = operands
        rows = _no_rows(*weights.shape[:-1])
        return tuple(mapped(self.static, self._shard, *residuals, rows, weights)[1:])

    def transpose(self) -> Exchange:
        return _DispatchWeightsBackward(self.static, self.leading, self.capacity)


@dataclass(frozen=True)
class _DispatchBackward(_Rows):
    """[R, C, H], f32 [R, C] -> [leading, H], f32 [leading, K]."""

    label = "ep_dispatch_bwd"

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        top_k = self.static.cfg.top_k
        rows, weights = mapped(self.static, self._shard, *residuals, *operands)
        return cut(rows, (*self.leading, rows.shape[-1])), cut(weights, (*self.leading, top_k))

    def _shard(
        self, handle_mem: jax.Array, grad: jax.Array, weights: jax.Array
    ) -> tuple[jax.Array, ...]:
        hidden, leading = grad.shape[-1], self.shard_leading
        results: _Results = [
            ((*leading, hidden), grad.dtype),
            ((*leading, self.static.cfg.top_k), jnp.float32),
        ]
        return self.call(_ffi.DISPATCH_BWD, results, [handle_mem, grad, weights], hidden)

    def transpose(self) -> Exchange:
        return _Dispatch(self.static, self.leading, self.capacity)


@dataclass(frozen=True)
class _DispatchWeightsBackward(_DispatchBackward):
    """f32 [R, C] -> f32 [leading, K]."""

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        (weights,) = operands
        rows = _no_rows(*weights.shape)
        results = mapped(self.static, self._shard, *residuals, rows, weights)
        return (cut(results[1], (*self.leading, self.static.cfg.top_k)),)

    def transpose(self) -> Exchange:
        return _DispatchWeights(self.static, self.leading, self.capacity)


@dataclass(frozen=True)
class _Combine(_Rows):
    """[R, C, H] -> [leading, H], with the rows that a kept call gives beyond it (see _kept_call).

    Without tokens only these rows lead from a combine to its backward; XLA keeps the two in order by them. So they are
    a second residual of all that follows such a combine, which nobody reads. The same where roles have different
    programs: in one of them XLA might make the backward first, or merge what leads to combine with what follows its
    backward, and in another one not; each would wait for the other. In a group joined by rank the calls are in order
    anyway, and there this rank's combine must not be needed where the others' is not.
    """

    label = "ep_combine"

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        (expert_out,) = operands
        return (mapped(self.static, self._shard, residuals[0], expert_out),)

    def _shard(self, handle_mem: jax.Array, expert_out: jax.Array) -> jax.Array:
        hidden = expert_out.shape[-1]
        results = [((*self.shard_leading, hidden), expert_out.dtype)]
        return self.call(_ffi.COMBINE, results, [handle_mem, expert_out], hidden)[0]

    def after(self, residuals: Arrays, results: Arrays) -> tuple[Exchange, Arrays]:
        group = self.static.group
        in_order = group.of_roles or not (math.prod(self.leading) or group.joined_by_rank)
        return self, [residuals[0], *(results if in_order else [])]

    def transpose(self) -> Exchange:
        return _CombineBackward(self.static, self.leading, self.capacity)


@dataclass(frozen=True)
class _CombineBackward(_Rows):
    """[leading, H] -> [R, C, H]. Without tokens the operand is not read."""

    label = "ep_combine_bwd"

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        handle_mem, *rows = residuals
        if math.prod(self.leading) and operands:
            return (mapped(self.static, self._shard, handle_mem, *operands, *rows),)
        return (mapped(self.static, self._shard, handle_mem, *(rows or operands)),)

    def _shard(
        self, handle_mem: jax.Array, grad: jax.Array, after: jax.Array | None = None
    ) -> jax.Array:
        hidden = grad.shape[-1]
        results = [((1, self.capacity, hidden), grad.dtype)]
        return self.call(_ffi.COMBINE_BWD, results, [handle_mem, grad], hidden, after)[0]

    def transpose(self) -> Exchange:
        return _Combine(self.static, self.leading, self.capacity)


def dispatch(
    static: Static, capacity: int, handle_mem: jax.Array, tokens: jax.Array, topk_weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """-> recv_tokens [R, capacity, H], recv_topk_weights f32 [R, capacity]. The weights are float32."""
    leading = tuple(tokens.shape[:-1])
    if np.dtype(tokens.dtype) not in DTYPE_CODES:
        exchange = _DispatchBytes(static, leading, capacity)
        rows, weights = _exchange_primitive.bind(exchange, [handle_mem, tokens], [topk_weights])
    else:
        summed = _Dispatch(static, leading, capacity)
        rows, weights = _exchange_primitive.bind(summed, [handle_mem], [tokens, topk_weights])
    return rows, weights


def combine(
    static: Static, leading: tuple[int, ...], handle_mem: jax.Array, expert_out: jax.Array
) -> jax.Array:
    """-> [leading, H]."""
    exchange = _Combine(static, leading, expert_out.shape[1])
    (rows,) = _exchange_primitive.bind(exchange, [handle_mem], [expert_out])
    return cut(rows, (*leading, expert_out.shape[-1]))


def dispatch_backward(
    static: Static,
    leading: tuple[int, ...],
    handle_mem: jax.Array,
    grad: jax.Array,
    g_recv_topk_weights: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """-> grad_tokens [leading, H], grad_topk_weights f32 [leading, K]."""
    exchange = _DispatchBackward(static, leading, grad.shape[1])
    rows, weights = _exchange_primitive.bind(exchange, [handle_mem], [grad, g_recv_topk_weights])
    return rows, weights


def combine_backward(
    static: Static,
    leading: tuple[int, ...],
    capacity: int,
    handle_mem: jax.Array,
    grad: jax.Array,
) -> jax.Array:
    """-> grad_expert_out [R, capacity, H]."""
    exchange = _CombineBackward(static, leading, capacity)
    if np.dtype(grad.dtype) not in DTYPE_CODES:  # Such rows have no gradient themselves.
        return _exchange_primitive.bind(exchange, [handle_mem, grad], [])[0]
    return _exchange_primitive.bind(exchange, [handle_mem], [grad])[0]
