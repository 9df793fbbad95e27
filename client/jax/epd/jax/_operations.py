"""The four operations that move rows, checked by their callers. Each takes and returns arrays as the caller sees them.

``leading`` is the leading shape of the tokens as the caller sees it, ``capacity`` the slots of one rank. Dispatch and its
backward are each other's transpose, and so are combine and its backward. The residual of all is the routing plan.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from epd.jax import _exchange, _ffi
from epd.jax._call import Static, ffi_call, mapped
from epd.jax._empty_call import cut


@dataclass(frozen=True)
class _Rows:
    """One operation on rows: its sizes, and what is the same for all four."""

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

    def after(self, residuals, results):
        del results
        return self, residuals

    def call(self, target: str, results, operands, hidden: int) -> tuple[jax.Array, ...]:
        return tuple(
            ffi_call(
                self.static,
                target,
                results,
                operands,
                tokens=math.prod(self.shard_leading),
                width=hidden,
                capacity=self.capacity,
            )
        )


@dataclass(frozen=True)
class _Dispatch(_Rows):
    """tokens [leading, H], weights f32 [leading, K] -> [R, C, H], f32 [R, C]."""

    label = "ep_dispatch"

    def run(self, residuals, operands):
        return mapped(self.static, self._shard, *residuals, *operands)

    def _shard(self, handle_mem, tokens, weights):
        hidden = tokens.shape[-1]
        results = [
            ((1, self.capacity, hidden), tokens.dtype),
            ((1, self.capacity), jnp.float32),
        ]
        return self.call(_ffi.DISPATCH, results, [handle_mem, tokens, weights], hidden)

    def transpose(self):
        return _DispatchBackward(self.static, self.leading, self.capacity)


@dataclass(frozen=True)
class _DispatchBackward(_Rows):
    """[R, C, H], f32 [R, C] -> [leading, H], f32 [leading, K]."""

    label = "ep_dispatch_bwd"

    def run(self, residuals, operands):
        top_k = self.static.cfg.top_k
        rows, weights = mapped(self.static, self._shard, *residuals, *operands)
        return cut(rows, (*self.leading, rows.shape[-1])), cut(weights, (*self.leading, top_k))

    def _shard(self, handle_mem, grad, weights):
        hidden, leading = grad.shape[-1], self.shard_leading
        results = [
            ((*leading, hidden), grad.dtype),
            ((*leading, self.static.cfg.top_k), jnp.float32),
        ]
        return self.call(_ffi.DISPATCH_BWD, results, [handle_mem, grad, weights], hidden)

    def transpose(self):
        return _Dispatch(self.static, self.leading, self.capacity)


@dataclass(frozen=True)
class _Combine(_Rows):
    """[R, C, H] -> [leading, H], with the rows that an empty call gives beyond it (see _empty_call).

    Without tokens only these rows lead from a combine to its backward; XLA keeps the two in order by them. So they are
    a second residual of all that follows such a combine, which nobody reads.
    """

    label = "ep_combine"

    def run(self, residuals, operands):
        (expert_out,) = operands
        return (mapped(self.static, self._shard, residuals[0], expert_out),)

    def _shard(self, handle_mem, expert_out):
        hidden = expert_out.shape[-1]
        results = [((*self.shard_leading, hidden), expert_out.dtype)]
        return self.call(_ffi.COMBINE, results, [handle_mem, expert_out], hidden)[0]

    def after(self, residuals, results):
        return self, [residuals[0], *([] if math.prod(self.leading) else results)]

    def transpose(self):
        return _CombineBackward(self.static, self.leading, self.capacity)


@dataclass(frozen=True)
class _CombineBackward(_Rows):
    """[leading, H] -> [R, C, H]. Without tokens the operand is not read."""

    label = "ep_combine_bwd"

    def run(self, residuals, operands):
        handle_mem, *rows = residuals
        return (mapped(self.static, self._shard, handle_mem, *(rows or operands)),)

    def _shard(self, handle_mem, grad):
        hidden = grad.shape[-1]
        results = [((1, self.capacity, hidden), grad.dtype)]
        return self.call(_ffi.COMBINE_BWD, results, [handle_mem, grad], hidden)[0]

    def transpose(self):
        return _Combine(self.static, self.leading, self.capacity)


def dispatch(
    static: Static, capacity: int, handle_mem: jax.Array, tokens: jax.Array, topk_weights: jax.Array
):
    """-> recv_tokens [R, capacity, H], recv_topk_weights f32 [R, capacity]. The weights are float32."""
    exchange = _Dispatch(static, tuple(tokens.shape[:-1]), capacity)
    return tuple(_exchange.bind(exchange, [handle_mem], [tokens, topk_weights]))


def combine(
    static: Static, leading: tuple[int, ...], handle_mem: jax.Array, expert_out: jax.Array
) -> jax.Array:
    """-> [leading, H]."""
    exchange = _Combine(static, leading, expert_out.shape[1])
    (rows,) = _exchange.bind(exchange, [handle_mem], [expert_out])
    return cut(rows, (*leading, expert_out.shape[-1]))


def dispatch_backward(
    static: Static,
    leading: tuple[int, ...],
    handle_mem: jax.Array,
    grad: jax.Array,
    g_recv_topk_weights: jax.Array,
):
    """-> grad_tokens [leading, H], grad_topk_weights f32 [leading, K]."""
    exchange = _DispatchBackward(static, leading, grad.shape[1])
    return tuple(_exchange.bind(exchange, [handle_mem], [grad, g_recv_topk_weights]))


def combine_backward(
    static: Static,
    leading: tuple[int, ...],
    capacity: int,
    handle_mem: jax.Array,
    grad: jax.Array,
) -> jax.Array:
    """-> grad_expert_out [R, capacity, H]."""
    exchange = _CombineBackward(static, leading, capacity)
    return _exchange.bind(exchange, [handle_mem], [grad])[0]
