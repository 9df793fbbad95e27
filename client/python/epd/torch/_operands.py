"""The operands of an operation, each checked and brought into its final form. ``function`` is for messages."""

from typing import TYPE_CHECKING

import torch

from epd._arguments import integer
from epd.torch import _tensors
from epd.torch._exchange import Execution
from epd.torch.plan import Plan

if TYPE_CHECKING:
    from epd.torch.group import GroupSpec

MOST_NAME_BYTES = 120


class Told:
    """What is refused inside is told to the other ranks, which would wait for this one."""

    __slots__ = ("_execution", "_operation")

    def __init__(self, execution: Execution, operation: str):
        self._execution = execution
        self._operation = operation

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, TypeError | ValueError):
            # The end tells client/program/api_words.cc that these are the public names.
            text = f"{error}; correct it on this rank, and call again on all ranks"
            self._execution.refuse(self._operation, text)


# Before torch 2.1 it is _dynamo's, and before 2.0 nothing compiles.
_is_compiling = getattr(
    getattr(torch, "compiler", None) or getattr(torch, "_dynamo", None), "is_compiling", bool
)


def check_untraced(function: str) -> None:
    """TypeError where the call is recorded by what would keep this step's results, or by a compiler that knows no custom ops."""
    if torch.jit.is_tracing():
        raise TypeError(
            f"{function}: exchanges cannot be recorded by torch.jit.trace; use torch.compile, or keep the call out of it"
        )
    if _is_compiling():
        raise TypeError(
            f"{function}: torch {torch.__version__} cannot compile exchanges; expected 2.4 or newer, or torch.compiler.disable"
            " around the layer"
        )


def plan_of(function: str, plan: object, group: str) -> Plan:
    if not isinstance(plan, Plan):
        raise TypeError(f"{function}: plan must be a Plan of prepare, got {type(plan).__name__}")
    if plan.group != group:
        raise ValueError(f"{function}: plan is of group {plan.group!r}; this is group {group!r}")
    return plan


def _tensor(function: str, name: str, value: object) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{function}: {name} must be a torch.Tensor, got {type(value).__name__}")
    if wrong := _tensors.wrong_place(value):
        raise ValueError(f"{function}: {name} {wrong}")
    return value


def _check_shape(function: str, name: str, value: torch.Tensor, *expected: object) -> None:
    """``expected``: sizes, or words for those that may be any."""
    shape = value.shape
    if shape == expected:
        return
    fits = len(shape) == len(expected) and all(
        isinstance(want, str) or have == want for have, want in zip(shape, expected, strict=True)
    )
    if not fits:
        text = ", ".join(map(str, expected))
        raise ValueError(f"{function}: {name} has shape {list(value.shape)}, expected [{text}]")


def _check_rows(function: str, name: str, value: torch.Tensor, spec: "GroupSpec") -> None:
    if value.dtype not in _tensors.SUMMED and value.dtype not in _tensors.MOVED:
        raise TypeError(
            f"{function}: {name} has dtype {value.dtype}, expected one of 1, 2, 4 or 8 bytes"
        )
    widest = spec.max_token_dtype
    if value.element_size() > _tensors.width_of(widest):
        raise ValueError(
            f"{function}: {name} has dtype {value.dtype}, wider than max_token_dtype {widest} of Group.join"
        )


def alignment(function: str, value: object) -> int:
    number = integer(function, "alignment", value)
    if number < 0 or number & (number - 1):
        raise ValueError(f"{function}: alignment is {number}; it must be 0 or a power of two")
    return number


def indices(function: str, value: object, spec: "GroupSpec") -> torch.Tensor:
    """``[T, K]``, packed."""
    idx = _tensor(function, "topk_idx", value)
    if idx.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{function}: topk_idx must be int32 or int64, got {idx.dtype}")
    if idx.dim() < 2:
        raise ValueError(f"{function}: topk_idx has shape {list(idx.shape)}, expected [T, K]")
    num_tokens, top_k = idx.shape[:-1].numel(), idx.shape[-1]
    if not 1 <= top_k <= spec.max_top_k:
        raise ValueError(
            f"{function}: topk_idx has {top_k} experts per token; expected 1 to {spec.max_top_k}, max_top_k of Group.join"
        )
    if num_tokens > spec.config.max_tokens_per_rank:
        raise ValueError(
            f"{function}: topk_idx has {num_tokens} tokens, more than max_tokens_per_rank"
            f" {spec.config.max_tokens_per_rank} of Group.join"
        )
    return _tensors.packed(idx)


def capacity(function: str, value: object, plan: Plan, spec: "GroupSpec") -> int:
    most = spec.config.recv_capacity_per_rank
    if value is None:
        return min(max(1, plan.total_recv), most)
    number = integer(function, "recv_capacity", value)
    if not 1 <= number <= most:
        raise ValueError(
            f"{function}: recv_capacity is {number}; expected 1 to recv_capacity_per_rank {most} of Group.join"
        )
    return number


def tokens(function: str, value: object, plan: Plan, spec: "GroupSpec") -> torch.Tensor:
    """``[T, H]``."""
    rows = _tensor(function, "tokens", value)
    _check_shape(function, "tokens", rows, *plan.leading, spec.config.hidden_dim)
    _check_rows(function, "tokens", rows, spec)
    if rows.dim() == 2:
        return rows
    return rows.reshape(plan.routing.num_tokens, spec.config.hidden_dim)


def weights(function: str, value: object, plan: Plan) -> torch.Tensor:
    """float32 ``[T, K]``."""
    given = _tensor(function, "topk_weights", value)
    if not given.is_floating_point():
        raise TypeError(f"{function}: topk_weights must have a floating dtype, got {given.dtype}")
    _check_shape(function, "topk_weights", given, *plan.leading, plan.routing.top_k)
    if given.dim() != 2:
        given = given.reshape(plan.routing.num_tokens, plan.routing.top_k)
    return given if given.dtype is torch.float32 else given.to(torch.float32)


def expert_rows(function: str, value: object, spec: "GroupSpec", least: int) -> torch.Tensor:
    """``[C, H]``, of ``least`` rows or more: those of later slots would not come back."""
    rows = _tensor(function, "expert_out", value)
    _check_shape(function, "expert_out", rows, "C", spec.config.hidden_dim)
    if rows.dtype not in _tensors.SUMMED:
        raise TypeError(
            f"{function}: expert_out has dtype {rows.dtype}, expected float32, bfloat16 or float16, which can be summed"
        )
    _check_rows(function, "expert_out", rows, spec)
    if rows.shape[0] < least:
        raise ValueError(
            f"{function}: expert_out has {rows.shape[0]} rows, fewer than the {least} that the plan's dispatch fills"
        )
    if rows.shape[0] > spec.config.recv_capacity_per_rank:
        raise ValueError(
            f"{function}: expert_out has {rows.shape[0]} rows, more than recv_capacity_per_rank"
            f" {spec.config.recv_capacity_per_rank} of Group.join"
        )
    return rows


def check_no_output(function: str, value: object) -> None:
    """TypeError where a compiler, which places results itself, is given a buffer for one."""
    if value is not None:
        raise TypeError(
            f"{function}: out is for calls that are not compiled; leave it away inside torch.compile"
        )


def output(
    function: str, value: object, rows: torch.Tensor, leading: tuple[object, ...]
) -> torch.Tensor | None:
    """``[..., H]``, packed memory that rows like ``rows`` are to be written into, or None."""
    if value is None:
        return None
    out = _tensor(function, "out", value)
    if torch.is_grad_enabled():
        raise TypeError(
            f"{function}: out is for calls without gradients; call under torch.no_grad(), or leave out away"
        )
    _check_shape(function, "out", out, *leading, rows.shape[1])
    if out.dtype != rows.dtype:
        raise TypeError(f"{function}: out has dtype {out.dtype}, expected {rows.dtype}")
    if not out.is_contiguous():
        raise ValueError(
            f"{function}: out has strides {list(out.stride())}; expected a contiguous tensor"
        )
    if out.numel() and _overlap(out, rows):
        raise ValueError(f"{function}: out shares memory with the rows that are sent")
    _tensors.mark_written(out)
    return out


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not other.numel():
        return False
    last = sum((size - 1) * step for size, step in zip(other.shape, other.stride(), strict=True))
    first, second = one.data_ptr(), other.data_ptr()
    return (
        first < second + (last + 1) * other.element_size()
        and second < first + one.numel() * one.element_size()
    )
