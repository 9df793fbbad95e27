"""The operations as autograd sees them.

Dispatch and its backward are each other's transpose, and so are combine and its backward: one function for all, whose gradient
is the function again.

Which operation a call is, ranks must say alike. A rank's calls of a group's prepare, dispatch and combine without a name are
one sequence: the n-th call of each rank is the same operation, and ranks that differ in it are told so at once, since the
kind, the sizes and the plan of a call are compared. Gradients come in autograd's order, which need not be that of the other
ranks: each is a further call of the execution that its forward call began, at the next site.
"""

import ctypes
import hashlib
import threading
from dataclasses import dataclass, field
from typing import Any

import torch

from epd._errors import EpError
from epd._operation_structs import GatherArgs, PrepareArgs, ScatterArgs
from epd._program import Begun, Call
from epd.torch import _tensors
from epd.torch._library import library

_PROGRAM = hashlib.blake2b(b"epd.torch", digest_size=16).digest()
_REFUSAL_SECONDS = 2  # That a failing call waits until its peers are told; afterwards it goes on in the background.
_REFUSAL_BYTES = 440
_MOST_DERIVATIVES = 8
_BEGUN_WORDS = ctypes.sizeof(Begun) // 8
STATE_WORDS = _BEGUN_WORDS + _MOST_DERIVATIVES


_State = ctypes.c_int64 * STATE_WORDS


def _new_words() -> ctypes.Array[ctypes.c_int64]:
    """When an execution began, as the library keeps it, and how often each of its sites was called."""
    return _State(ctypes.sizeof(Begun))


def new_state() -> torch.Tensor:
    """int64 ``[STATE_WORDS]``, the same as a tensor, which compiled programs carry from a call to its gradients."""
    return torch.tensor(list(_new_words()), dtype=torch.int64, device=_tensors.CPU)


def root(requires_grad: bool) -> torch.Tensor:
    """What comes before a plan's first exchange, see ExchangeFunction: of no elements."""
    return torch.empty(0, dtype=torch.float32, device=_tensors.CPU, requires_grad=requires_grad)


@dataclass(frozen=True)
class Execution:
    """A forward call and its gradients. With a name, the library counts the uses of ``<name>/<operation>``."""

    alias: str
    rank: int
    name: str | None
    state: "torch.Tensor | ctypes.Array[ctypes.c_int64]" = field(default_factory=_new_words)

    def call(self, operation: str, site: int = 0) -> Call:
        """The next call of ``operation``, which is the site-th derivative of the forward call."""
        call = Call(
            struct_size=ctypes.sizeof(Call),
            alias=self.alias.encode(),
            position=self.rank,
            site=site,
        )
        if self.name is not None:
            call.name = f"{self.name}/{operation.replace('_', ' ')}".encode()
            return call
        if site >= _MOST_DERIVATIVES:
            raise ValueError(
                f"{operation} of group {self.alias!r}: derivative {site}; expected at most {_MOST_DERIVATIVES - 1}"
            )
        words = self.state
        if isinstance(words, torch.Tensor):
            words = _State.from_address(words.data_ptr())
        words[_BEGUN_WORDS + site] += 1
        ctypes.memmove(call.program, _PROGRAM, len(_PROGRAM))
        call.occurrence = words[_BEGUN_WORDS + site]
        call.begun = ctypes.pointer(Begun.from_buffer(words))
        return call

    def refuse(self, operation: str, text: str) -> None:
        """Tells the other ranks, which wait for this call, why this rank cannot make it."""
        call = self.call(operation)

        def tell() -> None:
            try:
                library.refuse(
                    call, "INVALID_ARGUMENT", text.encode()[:_REFUSAL_BYTES].decode(errors="ignore")
                )
            except EpError:
                pass  # The refusal itself, or why nobody waits.

        thread = threading.Thread(target=tell, daemon=True, name="epd refuses")
        thread.start()
        thread.join(_REFUSAL_SECONDS)


@dataclass(frozen=True)
class PlanSizes:
    """What a routing plan of a group is made for. ``local_experts``: of this rank."""

    ranks: int
    experts: int
    local_experts: int
    max_tokens: int

    def plan_bytes(self, top_k: int) -> int:
        """Bytes of one rank's plan."""
        return library.handle_mem_size(self.ranks, self.experts, self.max_tokens, top_k)


def prepare(
    execution: Execution, idx: torch.Tensor, sizes: PlanSizes, alignment: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``[T, K]``, packed -> the plan, uint8; ``[local experts]`` rows of each, int32; their sum, int32 ``[]``. EpError with the cause."""
    num_tokens, top_k = idx.shape
    with torch.inference_mode(False):  # Gradients keep a plan, whatever prepare was called under.
        handle_mem = torch.empty(sizes.plan_bytes(top_k), dtype=torch.uint8, device=_tensors.CPU)
        counts = torch.zeros(max(1, sizes.local_experts), dtype=torch.int32, device=_tensors.CPU)
        total = torch.zeros((), dtype=torch.int32, device=_tensors.CPU)
    args = PrepareArgs(
        struct_size=ctypes.sizeof(PrepareArgs),
        topk_idx=idx.data_ptr(),
        idx_bytes=idx.element_size(),
        num_tokens=num_tokens,
        top_k=top_k,
        alignment=alignment,
        token_counts=counts.data_ptr(),
        total_recv=total.data_ptr(),
        handle_mem=handle_mem.data_ptr(),
        handle_mem_bytes=handle_mem.numel(),
    )
    call = execution.call("prepare")
    library.checked(library.c.epd_program_prepare, ctypes.byref(call), ctypes.byref(args))
    return handle_mem, counts[: sizes.local_experts], total


_TRANSPOSE = {
    "dispatch": "dispatch_backward",
    "dispatch_backward": "dispatch",
    "combine": "combine_backward",
    "combine_backward": "combine",
}


@dataclass(frozen=True)
class Routing:
    """A routing plan as the library takes it. Graphs hold it, so it holds no graph."""

    handle_mem: torch.Tensor
    top_k: int
    alignment: int
    num_tokens: int


@dataclass(frozen=True)
class Exchange:
    """One operation on rows: of which plan, with how many slots, and how often it was derived."""

    routing: Routing
    operation: str
    capacity: int
    execution: Execution
    site: int = 0

    @property
    def to_experts(self) -> bool:
        return self.operation in ("dispatch", "combine_backward")

    @property
    def with_weights(self) -> bool:
        return self.operation.startswith("dispatch")

    @property
    def num_rows_out(self) -> int:
        return self.capacity if self.to_experts else self.routing.num_tokens

    def transposed(self) -> "Exchange":
        return Exchange(
            self.routing, _TRANSPOSE[self.operation], self.capacity, self.execution, self.site + 1
        )

    def run(
        self, rows: torch.Tensor, weights: torch.Tensor | None, out: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """``[T, W]``, ``[T, K]`` -> ``[C, W]``, ``[C]``, or the other way round. EpError with the cause.

        ``out``: packed, where the rows go; None: into a new tensor.
        """
        plan = self.routing
        rows = _tensors.packed(rows)
        weights = None if weights is None else _tensors.packed(weights)
        count = self.num_rows_out
        if out is None:
            out = rows.new_empty((count, rows.shape[1]))
        shape = (count,) if self.to_experts else (count, plan.top_k)
        out_weights = (
            torch.empty(shape, dtype=torch.float32, device=_tensors.CPU)
            if self.with_weights
            else None
        )
        args: Any = ScatterArgs() if self.to_experts else GatherArgs()
        args.struct_size = ctypes.sizeof(args)
        args.handle_mem, args.handle_mem_bytes = plan.handle_mem.data_ptr(), plan.handle_mem.numel()
        args.top_k, args.alignment = plan.top_k, plan.alignment
        args.dtype, args.hidden = _tensors.code_of(rows.dtype), rows.shape[1]
        args.num_tokens, args.recv_capacity = plan.num_tokens, self.capacity
        pointers = [None if t is None else t.data_ptr() for t in (rows, weights, out, out_weights)]
        if self.to_experts:
            args.tokens, args.topk_weights, args.recv_tokens, args.recv_topk_weights = pointers
        else:
            args.expert_rows, args.recv_topk_weights, args.tokens, args.topk_weights = pointers
        call = self.execution.call(self.operation, self.site)
        function = getattr(library.c, f"epd_program_{self.operation}")
        library.checked(function, ctypes.byref(call), ctypes.byref(args))
        return out, out_weights


class ExchangeFunction(torch.autograd.Function):  # type: ignore[misc]
    """(exchange, after, rows, weights or None) -> (rows, weights or None, after).

    ``after`` is of no elements and always requires a gradient, and each operation of a plan takes what the one before it gave. So
    every rank's graph has the same exchanges in it, whatever its rows went through: also that of a rank which received
    none, or whose tokens are constants.
    """

    @staticmethod
    def forward(
        ctx: Any,
        exchange: Exchange,
        after: torch.Tensor,
        rows: torch.Tensor,
        weights: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, ...]:
        ctx.exchange, ctx.summed = exchange, rows.dtype in _tensors.SUMMED
        # Activation checkpointing recomputes up to the last tensor that a graph has kept: so every rank comes as far as here.
        ctx.save_for_backward(after)
        out, out_weights = exchange.run(rows, weights)
        if not ctx.summed:
            ctx.mark_non_differentiable(out)
        return out, out_weights, after.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        _ = (
            ctx.saved_tensors
        )  # Recomputes what was checkpointed, on every rank before the exchange.
        rows, weights, after = grads
        if not ctx.summed:  # The narrowest rows that there are go with the weights' gradient.
            rows = torch.zeros(
                (ctx.exchange.num_rows_out, 1), dtype=torch.bfloat16, device=_tensors.CPU
            )
        grad, grad_weights, grad_after = ExchangeFunction.apply(
            ctx.exchange.transposed(), after, rows, weights
        )
        return None, grad_after, grad if ctx.summed else None, grad_weights
