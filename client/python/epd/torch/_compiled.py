"""The operations as torch.compile and torch.export see them: two custom ops, epd::prepare and epd::exchange, from torch 2.4 on.

A compiler may put calls that do not depend on each other in another order, on each rank in its own, while a rank's calls without a
name are one sequence. So each op takes the group's ``chain``, an integer, and gives the next one: it has no gradient, and keeps
all calls, in the program's order. What a gradient belongs to travels as a tensor too, the state of its execution.
"""

import weakref
from typing import TYPE_CHECKING, Any

import torch

from epd.torch import _exchange, _operands, _tensors
from epd.torch._exchange import Exchange, Execution, PlanSizes, Routing
from epd.torch.plan import Plan

if TYPE_CHECKING:
    from epd.torch.group import GroupSpec

_OFFERED = hasattr(torch.library, "custom_op")


def recording() -> bool:
    """Whether this call is one that a compiler records, and may."""
    return _OFFERED and torch.compiler.is_compiling()


class Recorder:
    """One rank's calls of a group where a compiler records them."""

    def __init__(self, spec: "GroupSpec", rank: int, sizes: PlanSizes):
        self.spec = spec
        self._rank, self._sizes = rank, sizes
        with torch.inference_mode(False):  # A group may be joined under it, and train later.
            self._chain = torch.zeros(1, dtype=torch.int64, device=_tensors.CPU)
            # Comes before every exchange, so that all of them are in every rank's graph, see ExchangeFunction.
            self._root = _exchange.root(True)
        _recorders[spec.alias] = self

    def prepare(self, topk_idx: torch.Tensor, alignment: int, name: str | None) -> Plan:
        """As Group.prepare. The sum of the counts stays a tensor."""
        idx, sizes = topk_idx.flatten(end_dim=-2), self._sizes
        handle_mem, counts, total, self._chain = torch.ops.epd.prepare(
            idx,
            self._chain,
            self.spec.alias,
            self._rank,
            name,
            [sizes.ranks, sizes.experts, sizes.local_experts, sizes.max_tokens],
            alignment,
        )
        routing = Routing(handle_mem, idx.shape[1], alignment, idx.shape[0])
        return Plan(counts, total, tuple(topk_idx.shape[:-1]), routing, name, self.spec.alias)

    def dispatch(
        self, plan: Plan, tokens: torch.Tensor, topk_weights: torch.Tensor, capacity: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As Group.dispatch."""
        rows, weights = (given.flatten(end_dim=-2) for given in (tokens, topk_weights))
        return self._exchange(plan, ("dispatch", capacity), rows, weights)

    def combine(self, plan: Plan, expert_out: torch.Tensor) -> torch.Tensor:
        """As Group.combine."""
        out, _ = self._exchange(plan, ("combine", expert_out.shape[0]), expert_out, None)
        return out.reshape(*plan.leading, expert_out.shape[-1])

    def _exchange(
        self, plan: Plan, call: tuple[str, int], rows: torch.Tensor, weights: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``call``: the operation and its capacity."""
        routing = plan.routing
        out, out_weights, plan.after, self._chain, _ = torch.ops.epd.exchange(
            rows,
            weights,
            plan.after if plan.after.requires_grad else self._root,
            self._chain,
            routing.handle_mem,
            None,
            self.spec.alias,
            self._rank,
            plan.name,
            call[0],
            0,
            call[1],
            routing.num_tokens,
            routing.top_k,
            routing.alignment,
        )
        return out, out_weights


# By the group's name. What an op is given is checked where it runs, as where nothing is compiled, so that the other ranks are told.
_recorders: "weakref.WeakValueDictionary[str, Recorder]" = weakref.WeakValueDictionary()

# What an op is told of a call beside its tensors.
_Told = tuple[str, int, str | None, str, int, int, int, int, int]


def _told(call: Exchange) -> _Told:
    routing, execution = call.routing, call.execution
    return (
        execution.alias,
        execution.rank,
        execution.name,
        call.operation,
        call.site,
        call.capacity,
        routing.num_tokens,
        routing.top_k,
        routing.alignment,
    )


def _call(handle_mem: torch.Tensor, state: torch.Tensor, told: _Told) -> Exchange:
    alias, rank, name, operation, site, capacity, num_tokens, top_k, alignment = told
    routing = Routing(handle_mem, top_k, alignment, num_tokens)
    return Exchange(routing, operation, capacity, Execution(alias, rank, name, state), site)


def _checked(
    call: Exchange, rows: torch.Tensor, weights: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The operands of a forward call as the operation takes them. TypeError and ValueError, which the other ranks hear of."""
    execution, routing, function = call.execution, call.routing, f"Group.{call.operation}"
    group = _recorders.get(execution.alias)
    if group is None:  # The library says that it was left.
        return rows, weights
    with _operands.Told(execution, call.operation):
        if not call.to_experts:
            return _operands.expert_rows(function, rows, group.spec, 0), None
        leading = (routing.num_tokens,)
        plan = Plan(routing.handle_mem, 0, leading, routing, execution.name, execution.alias)
        _operands.capacity(function, call.capacity, plan, group.spec)
        rows = _operands.tokens(function, rows, plan, group.spec)
        return rows, _operands.weights(function, weights, plan)


def _define() -> None:
    """Registers the ops with torch."""

    @torch.library.custom_op("epd::prepare", mutates_args=())
    def prepare(
        idx: torch.Tensor,
        chain: torch.Tensor,
        group: str,
        rank: int,
        name: str | None,
        sizes: list[int],
        alignment: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        execution, owner, function = (
            Execution(group, rank, name),
            _recorders.get(group),
            "Group.prepare",
        )
        with _operands.Told(execution, "prepare"):
            alignment = _operands.alignment(function, alignment)
            idx = _operands.indices(function, idx, owner.spec) if owner else _tensors.packed(idx)
        return *_exchange.prepare(execution, idx, PlanSizes(*sizes), alignment), chain + 1

    @prepare.register_fake
    def _(idx: torch.Tensor, chain: torch.Tensor, *told: Any) -> tuple[torch.Tensor, ...]:
        plan = PlanSizes(*told[3])
        return (
            idx.new_empty(plan.plan_bytes(int(idx.shape[1])), dtype=torch.uint8),
            idx.new_empty(plan.local_experts, dtype=torch.int32),
            idx.new_empty((), dtype=torch.int32),
            torch.empty_like(chain),
        )

    @torch.library.custom_op("epd::exchange", mutates_args=())
    def exchange(
        rows: torch.Tensor,
        weights: torch.Tensor | None,
        after: torch.Tensor,
        chain: torch.Tensor,
        handle_mem: torch.Tensor,
        state: torch.Tensor | None,
        group: str,
        rank: int,
        name: str | None,
        operation: str,
        site: int,
        capacity: int,
        num_tokens: int,
        top_k: int,
        alignment: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        told = (group, rank, name, operation, site, capacity, num_tokens, top_k, alignment)
        begun = _exchange.new_state() if state is None else state
        call = _call(handle_mem, begun, told)
        if site == 0:
            rows, weights = _checked(call, rows, weights)
        out, out_weights = call.run(rows, weights)
        if out_weights is None:
            out_weights = torch.empty(0, dtype=torch.float32, device=_tensors.CPU)
        kept = begun if state is None else begun.new_empty(0)
        return out, out_weights, after.new_empty(0), chain + 1, kept

    @exchange.register_fake
    def _(
        rows: torch.Tensor,
        weights: torch.Tensor | None,
        after: torch.Tensor,
        chain: torch.Tensor,
        handle_mem: torch.Tensor,
        state: torch.Tensor | None,
        *told: Any,
    ) -> tuple[torch.Tensor, ...]:
        call = _call(handle_mem, chain, told)
        count = call.num_rows_out
        shape = (count,) if call.to_experts else (count, call.routing.top_k)
        return (
            rows.new_empty((count, rows.shape[1])),
            rows.new_empty(shape if call.with_weights else (0,), dtype=torch.float32),
            after.new_empty(0),
            torch.empty_like(chain),
            chain.new_empty(_exchange.STATE_WORDS if state is None else 0),
        )

    def setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        rows, weights, _, _, handle_mem, state, *told = inputs
        ctx.weights_dtype = torch.float32 if weights is None else weights.dtype
        ctx.told, ctx.summed = tuple(told), rows.dtype in _tensors.SUMMED
        # The chain that was given may be of an earlier call under inference_mode, whose tensors no graph may keep.
        ctx.save_for_backward(output[3], handle_mem, output[-1] if state is None else state)

    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        chain, handle_mem, state = ctx.saved_tensors
        call = _call(handle_mem, state, ctx.told)
        rows, weights, after = grads[:3]
        if not ctx.summed:  # The narrowest rows that there are go with the weights' gradient.
            rows = torch.zeros((call.num_rows_out, 1), dtype=torch.bfloat16, device=_tensors.CPU)
        grad, grad_weights, grad_after, _, _ = torch.ops.epd.exchange(
            rows,
            weights if call.with_weights else None,
            after,
            chain,
            handle_mem,
            state,
            *_told(call.transposed()),
        )
        return (
            grad if ctx.summed else None,
            grad_weights.to(ctx.weights_dtype) if call.with_weights else None,
            grad_after,
            *(None for _ in range(3 + len(ctx.told))),
        )

    exchange.register_autograd(backward, setup_context=setup)


if _OFFERED:
    _define()
