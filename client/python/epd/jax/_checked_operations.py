"""The operations, with their arguments checked while tracing; for the arguments see ``functional`` and ``primitives``."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from epd.jax import _checks, _exchanges, _halves, _names, _out_sharding, _payload_exchange
from epd.jax._call import Static, align_varying, layout_for
from epd.jax._exchange_primitive import bind
from epd.jax._kept_call import cut
from epd.jax._out_sharding import SpecLike
from epd.jax._payload_exchange import Payload
from epd.jax.config import EpLayerConfig, GroupSpec
from epd.jax.started_exchange import StartedExchange


def _indices(function: str, topk_idx: jax.Array) -> jax.Array:
    """TypeError unless int32 or int64."""
    topk_idx = jnp.asarray(topk_idx)
    if topk_idx.dtype not in (jnp.int32, jnp.int64):
        raise TypeError(f"{function}: topk_idx must be int32 or int64, got {topk_idx.dtype}")
    return topk_idx


def _floating(function: str, name: str, weights: jax.Array) -> jax.Array:
    """TypeError unless floating."""
    weights = jnp.asarray(weights)
    if not jnp.issubdtype(weights.dtype, jnp.floating):
        raise TypeError(f"{function}: {name} must have a floating dtype, got {weights.dtype}")
    return weights


def _arrays(function: str, tokens: Payload) -> Payload:
    """The payload's leaves as arrays; TypeError if there are none or one is no array."""
    if not jax.tree.leaves(tokens):
        raise TypeError(f"{function}: tokens has no arrays; expected an array or a pytree of them")
    return jax.tree.map(jnp.asarray, tokens)


def _check_tokens(
    check: _checks.CallCheck, topk_idx: jax.Array, tokens: Payload, topk_weights: jax.Array
) -> None:
    """The operands of a dispatch against each other and the bootstrapped sizes."""
    leading = topk_idx.shape[:-1]
    check.leading("topk_idx", leading)
    if isinstance(tokens, jax.Array):
        check.rows("tokens", tokens, (*leading, check.hidden), summed=False)
    else:
        for path, rows in jax.tree_util.tree_leaves_with_path(tokens):
            name = "tokens" + jax.tree_util.keystr(path)
            check.shape(name, rows, (*leading, "H"))
            if rows.ndim == len(leading) + 1:
                check.payload(name, rows)
    check.shape("topk_idx", topk_idx, (*leading, check.top_k))
    check.shape("topk_weights", topk_weights, (*leading, check.top_k))


@dataclass(frozen=True)
class Operation:
    """A call of one of the operations: in which group, what the caller called, and its static name, if it has one.

    Raises TypeError and, with all mismatches in one, ValueError.
    """

    group: GroupSpec
    function: str
    name: str | None = None

    def _check(self, cfg: EpLayerConfig, *operands: jax.Array) -> _checks.CallCheck:
        _checks.layer(self.function, cfg)
        return _checks.CallCheck(self.function, self.group, layout_for(self.group, *operands), cfg)

    def _static(self, check: _checks.CallCheck, *operations: str) -> Static:
        """Ends the checks, and takes the name for ``operations``."""
        check.done()
        name = _names.take(self.function, self.group, self.name, operations)
        return Static(self.group, check.layout, check.cfg, name)

    def _starts(self, start: bool) -> bool:
        """``start``, checked. TypeError unless a bool; ValueError where no exchange has halves."""
        if not isinstance(start, bool):
            raise TypeError(f"{self.function}: start must be True or False, got {start!r}")
        if start and self.group.of_roles:
            raise ValueError(
                f"{self.function}: start is True in a group of roles, whose calls have one order on all ranks, got the group"
                f" {self.group.alias!r}; use start=False, or a group without roles"
            )
        return start

    def _capacity(self, recv_capacity_per_rank: int) -> int:
        return _checks.static_int(self.function, "recv_capacity_per_rank", recv_capacity_per_rank)

    def prepare(
        self, cfg: EpLayerConfig, topk_idx: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        topk_idx = _indices(self.function, topk_idx)
        check = self._check(cfg, topk_idx)
        check.leading("topk_idx", topk_idx.shape[:-1])
        check.shape("topk_idx", topk_idx, (*topk_idx.shape[:-1], check.top_k))
        static = self._static(check, "prepare")
        return _exchanges.prepare(static, *align_varying(static.layout, [topk_idx]))

    def dispatch(
        self,
        cfg: EpLayerConfig,
        topk_idx: jax.Array,
        tokens: Payload,
        topk_weights: jax.Array,
        recv_capacity_per_rank: int,
        start: bool = False,
    ) -> Any:
        """With ``start``: a StartedExchange."""
        starts = self._starts(start)
        given = (cfg, topk_idx, tokens, topk_weights, recv_capacity_per_rank)
        static, capacity, topk_idx, *payload = self._dispatch(None, *given)
        token_counts, total_recv_tokens, handle_mem = _exchanges.prepare(static, topk_idx)
        planned = (handle_mem, token_counts, total_recv_tokens)
        if not starts:
            return *_payload_exchange.dispatch(static, capacity, handle_mem, *payload), *planned
        if not topk_idx.size:  # Nothing goes from here.
            received = _payload_exchange.dispatch(static, capacity, handle_mem, *payload)
            return StartedExchange([], lambda _: (*received, *planned))
        under_way, received_of = _payload_exchange.start(static, capacity, handle_mem, *payload)
        return StartedExchange(under_way, lambda results: (*received_of(results), *planned))

    def dispatch_fwd(
        self,
        cfg: EpLayerConfig,
        handle_mem: jax.Array,
        topk_idx: jax.Array,
        tokens: Payload,
        topk_weights: jax.Array,
        recv_capacity_per_rank: int,
    ) -> tuple[Payload, jax.Array]:
        given = (cfg, topk_idx, tokens, topk_weights, recv_capacity_per_rank)
        return _payload_exchange.dispatch(*self._dispatch(jnp.asarray(handle_mem), *given))

    def _dispatch(
        self,
        handle_mem: jax.Array | None,
        cfg: EpLayerConfig,
        topk_idx: jax.Array,
        tokens: Payload,
        topk_weights: jax.Array,
        recv_capacity_per_rank: int,
    ) -> tuple[Static, int, jax.Array, Payload, jax.Array]:
        """The checked arguments of a dispatch: the plan (None: still to be made, of the indices that come instead), payload
        and weights."""
        topk_idx = _indices(self.function, topk_idx)
        tokens = _arrays(self.function, tokens)
        topk_weights = _floating(self.function, "topk_weights", topk_weights)
        capacity = self._capacity(recv_capacity_per_rank)
        leaves, tree = jax.tree.flatten(tokens)
        check = self._check(cfg, *leaves, topk_idx)
        _check_tokens(check, topk_idx, tokens, topk_weights)
        if handle_mem is not None:
            check.handle(handle_mem)
        check.capacity(capacity)
        planned = handle_mem is not None
        made = ("dispatch",) if planned else ("prepare", "dispatch", "dispatch backward")
        static = self._static(check, *made)
        first = topk_idx if handle_mem is None else handle_mem
        first, weights, *leaves = align_varying(static.layout, [first, topk_weights, *leaves])
        return static, capacity, first, jax.tree.unflatten(tree, leaves), weights

    def combine(
        self,
        cfg: EpLayerConfig,
        handle_mem: jax.Array,
        expert_out: jax.Array,
        num_local_tokens: int | tuple[int, ...],
        out_sharding: SpecLike = None,
        names: tuple[str, ...] = ("combine", "combine backward"),
        start: bool = False,
    ) -> Any:
        """``names``: of the operations for which the name is taken. With ``start``: a StartedExchange."""
        starts = self._starts(start)
        handle_mem, expert_out = jnp.asarray(handle_mem), jnp.asarray(expert_out)
        leading = _checks.leading_shape(self.function, num_local_tokens)
        spec = _out_sharding.normalize(self.function, out_sharding, len(leading) + 1)
        check = self._check(cfg, expert_out, handle_mem)
        check.expert_rows("expert_out", expert_out)
        check.leading("num_local_tokens", leading)
        check.handle(handle_mem)
        check.out_spec(spec)
        static = self._static(check, *names)
        operands = align_varying(static.layout, [handle_mem, expert_out])

        def of_caller(rows: jax.Array) -> jax.Array:
            out = cut(rows, (*leading, expert_out.shape[-1]))
            return _out_sharding.constrain(out, spec, static.layout)

        exchange = _exchanges.combine_exchange(static, leading, *operands)
        if not starts:
            return of_caller(bind(*exchange)[0])
        if not math.prod(leading):  # Nothing comes back here.
            (rows,) = bind(*exchange)
            return StartedExchange([], lambda _: of_caller(rows))
        started = _halves.start(*exchange, expert_out.shape[-1], expert_out.dtype)
        return StartedExchange([started], lambda results: of_caller(results[0][0]))

    def dispatch_bwd(
        self,
        cfg: EpLayerConfig,
        handle_mem: jax.Array,
        grad: jax.Array,
        g_recv_topk_weights: jax.Array,
        num_local_tokens: int | tuple[int, ...],
        out_partition_spec: SpecLike = None,
    ) -> tuple[jax.Array, jax.Array]:
        handle_mem, grad = jnp.asarray(handle_mem), jnp.asarray(grad)
        weights = _floating(self.function, "g_recv_topk_weights", g_recv_topk_weights)
        leading = _checks.leading_shape(self.function, num_local_tokens)
        spec = _out_sharding.normalize(self.function, out_partition_spec, len(leading) + 1)
        check = self._check(cfg, grad, handle_mem)
        check.expert_rows("grad", grad)
        check.shape("g_recv_topk_weights", weights, grad.shape[:2])
        check.leading("num_local_tokens", leading)
        check.handle(handle_mem)
        check.out_spec(spec)
        static = self._static(check, "dispatch backward")
        operands = align_varying(static.layout, [handle_mem, grad, weights.astype(jnp.float32)])
        grad_tokens, grad_weights = (
            _out_sharding.constrain(gradient, spec, static.layout)
            for gradient in _exchanges.dispatch_backward(static, leading, *operands)
        )
        return grad_tokens, grad_weights

    def combine_bwd(
        self,
        cfg: EpLayerConfig,
        handle_mem: jax.Array,
        grad: jax.Array,
        recv_capacity_per_rank: int,
    ) -> jax.Array:
        handle_mem, grad = jnp.asarray(handle_mem), jnp.asarray(grad)
        capacity = self._capacity(recv_capacity_per_rank)
        check = self._check(cfg, grad, handle_mem)
        check.leading("grad", grad.shape[:-1])
        check.rows("grad", grad, (*grad.shape[:-1], check.hidden), summed=False)
        check.handle(handle_mem)
        check.capacity(capacity)
        static = self._static(check, "combine backward")
        operands = align_varying(static.layout, [handle_mem, grad])
        return _exchanges.combine_backward(static, capacity, *operands)
