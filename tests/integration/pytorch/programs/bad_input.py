"""Each bad argument is named where it is given, and told to the other ranks, which go on."""

import inspect
import os
import re
from unittest import mock

import torch
from epd.torch import EpError, Group, _compiled, _operands
from torch_problem import (
    EXPERTS,
    HIDDEN,
    TOP_K,
    assert_close,
    dense,
    exchanged,
    loss_of,
    main,
    problem,
)

_said = []  # By what was refused in this process.


def _raises(kind, part, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        assert part in str(error), (part, error)
        _said.append(str(error))
        return error
    raise AssertionError(f"no {kind.__name__}: {part}")


def _refused(world, group, part, good, bad):
    """Rank 0 makes the ``bad`` call and raises; the others make the ``good`` one, and hear of it; the next call works."""
    if world.rank == 0:
        error = _raises((TypeError, ValueError), part, bad)
        assert not isinstance(error, EpError)
    else:
        error = _raises(EpError, part, good)
        assert error.code == "INVALID_ARGUMENT" and error.retry == "no", error
    given = problem(world)
    assert_close(exchanged(group, given), dense(given), "the next call")


def _check_each_was_refused(function, *but):
    """Each argument of a public function was named by a refusal of it, on every rank; not those of which every value is good."""
    name = function.__qualname__
    refusals = [text.partition(f"{name}: ")[2] for text in _said]
    arguments = set(inspect.signature(function).parameters) - {"self", *but}
    missing = {one for one in arguments if not any(re.search(rf"\b{one}\b", t) for t in refusals)}
    assert not missing, f"no bad {sorted(missing)} of {name} was tried"


class _OfCuda(torch.Tensor):
    """Says that it is on a GPU; what it holds is on none."""

    is_cuda = True
    is_cpu = False
    device = torch.device("cuda", 0)


def _on_cuda(tensor):
    return tensor.detach().as_subclass(_OfCuda)


_CUDA = "is on cuda:0; epd.torch exchanges CPU tensors: move it with .cpu(), and the result back"


def check_arguments_of_join(world):
    good = {
        "name": "g",
        "ranks": 2,
        "rank": world.rank,
        "num_experts": 4,
        "max_tokens_per_rank": 8,
        "recv_capacity_per_rank": 8,
        "hidden_dim": 8,
    }
    for kind, part, bad in [
        (TypeError, "name must be a str", {"name": 7}),
        (ValueError, "name is 'a b'", {"name": "a b"}),
        (ValueError, "name is 'a/b'", {"name": "a/b"}),
        (ValueError, "name is ''; expected 1 to 60", {"name": ""}),
        (ValueError, "expected 1 to 60", {"name": "x" * 61}),
        (ValueError, "ep_bootstrap's", {"name": "default"}),
        (TypeError, "ranks must be an int", {"ranks": 2.0}),
        (ValueError, "ranks is 0", {"ranks": 0}),
        (ValueError, "ranks is 2147483648", {"ranks": 2**31}),
        (ValueError, "rank is 2; expected 0 to 1", {"rank": 2}),
        (TypeError, "rank must be an int", {"rank": [0]}),
        (ValueError, "num_experts is 5, which the 2 ranks", {"num_experts": 5}),
        (ValueError, "max_tokens_per_rank is -1", {"max_tokens_per_rank": -1}),
        (ValueError, "recv_capacity_per_rank is 0", {"recv_capacity_per_rank": 0}),
        (TypeError, "hidden_dim must be an int", {"hidden_dim": "8"}),
        (ValueError, "hidden_dim is 2147483648", {"hidden_dim": 2**31}),
        (TypeError, "max_token_dtype must be a torch.dtype", {"max_token_dtype": "float32"}),
        (ValueError, "max_token_dtype is torch.complex128", {"max_token_dtype": torch.complex128}),
        (ValueError, "max_top_k is 129", {"max_top_k": 129}),
        (ValueError, "max_top_k is 0", {"max_top_k": 0}),
        (TypeError, "max_top_k must be an int", {"max_top_k": "2"}),
        (TypeError, "expert_owner must be a sequence", {"expert_owner": 1}),
        (TypeError, "expert_owner must be an int", {"expert_owner": ["a"] * 4}),
        (ValueError, "expert_owner has 1 entries", {"expert_owner": [0]}),
        (ValueError, "expert_owner names [2]", {"expert_owner": [0, 1, 2, 0]}),
        (TypeError, "job must be a str", {"job": 1}),
        (ValueError, "job is 'a/b'", {"job": "a/b"}),
    ]:
        _raises(kind, part, Group.join, **{**good, **bad})
    job = os.environ.pop("EPD_JOB")
    _raises(ValueError, "job is missing", Group.join, **good)
    os.environ["EPD_JOB"] = job
    _check_each_was_refused(Group.join, "drop_on_overflow")  # A truth value.


def check_ranks_that_join_with_other_sizes(world):
    sizes = {"hidden_dim": 8 + world.rank}
    error = _raises(EpError, "hidden_dim", world.join, "sizes", **sizes)
    assert error.code == "INVALID_ARGUMENT" and "specs differ" in str(error), error


def check_arguments_of_prepare(world):
    idx = problem(world).idx
    with world.join("prepare") as group:
        for part, bad in [
            ("topk_idx must be a torch.Tensor, got list", lambda: group.prepare([[0, 1]])),
            (
                "topk_idx must be int32 or int64, got torch.int16",
                lambda: group.prepare(idx.short()),
            ),
            ("got torch.float32", lambda: group.prepare(idx.float().requires_grad_())),
            ("topk_idx has shape [5], expected [T, K]", lambda: group.prepare(idx[:, 0])),
            ("0 experts per token", lambda: group.prepare(idx[:, :0])),
            ("more than max_tokens_per_rank 64", lambda: group.prepare(idx.repeat(20, 1))),
            ("alignment is 3", lambda: group.prepare(idx, alignment=3)),
            ("alignment must be an int", lambda: group.prepare(idx, alignment=0.5)),
            (f"topk_idx {_CUDA}", lambda: group.prepare(_on_cuda(idx))),
            ("topk_idx is on meta", lambda: group.prepare(idx.to("meta"))),
            ("topk_idx is torch.sparse_coo", lambda: group.prepare(idx.to_sparse())),
        ]:
            _refused(world, group, part, lambda: group.prepare(idx), bad)
        _raises(TypeError, "name must be a str", group.prepare, idx, name=1)
        _raises(ValueError, "name is 'a b'", group.prepare, idx, name="a b")
    _check_each_was_refused(Group.prepare)


def check_arguments_of_dispatch(world):
    given = problem(world)
    tokens, weights = given.tokens.detach(), given.weights.detach()
    with world.join("dispatch", max_token_dtype=torch.bfloat16) as group:
        half = tokens.half()
        for part, bad in [
            ("tokens must be a torch.Tensor, got NoneType", (None, weights)),
            ("tokens has shape [5, 8], expected [5, 16]", (half[:, :8], weights)),
            ("tokens has shape [4, 16], expected [5, 16]", (half[:4], weights)),
            ("wider than max_token_dtype torch.bfloat16", (tokens, weights)),
            ("tokens has dtype torch.complex128", (tokens.to(torch.complex128), weights)),
            (f"tokens {_CUDA}", (_on_cuda(half), weights)),
            (f"topk_weights {_CUDA}", (half, _on_cuda(weights))),
            ("topk_weights must be a torch.Tensor", (half, 1)),
            ("topk_weights must have a floating dtype", (half, weights.long())),
            ("topk_weights has shape [5, 1], expected [5, 2]", (half, weights[:, :1])),
            ("is 0; expected 1 to", (half, weights, 0)),
            ("is 513; expected 1 to", (half, weights, 513)),
            ("must be an int, got float", (half, weights, 1.5)),
        ]:
            plan = group.prepare(given.idx)
            if world.rank == 0:
                _raises((TypeError, ValueError), part, group.dispatch, plan, *bad)
            else:
                error = _raises(EpError, part, group.dispatch, plan, half, weights)
                assert error.code == "INVALID_ARGUMENT", error
        with torch.no_grad():
            for part, out in [
                ("out must be a torch.Tensor, got list", [0]),
                (f"out {_CUDA}", _on_cuda(half)),
                ("out has shape [9, 8], expected [9, 16]", half.new_empty(9, 8)),
                ("out has dtype torch.float32, expected torch.float16", torch.empty(9, 16)),
                ("out has strides [1, 9]", half.new_empty(16, 9).t()),
                ("out shares memory with the rows", half.repeat(9, 1)),
                ("is 0; expected 1 to recv_capacity_per_rank", half.new_empty(0, 16)),
            ]:
                plan = group.prepare(given.idx)
                if world.rank == 0:
                    rows = out[:5] if "shares" in part else half
                    _raises(
                        (TypeError, ValueError), part, group.dispatch, plan, rows, weights, out=out
                    )
                else:
                    error = _raises(EpError, part, group.dispatch, plan, half, weights)
                    assert error.code == "INVALID_ARGUMENT", error
        plan = group.prepare(given.idx)
        recv, _ = group.dispatch(plan, half, weights)
        _raises(TypeError, "plan must be a Plan", group.dispatch, "plan", half, weights)
        assert recv.dtype == torch.float16
    _check_each_was_refused(Group.dispatch)


def check_arguments_of_combine(world):
    given = problem(world)
    with world.join("combine") as group:
        for part, change in [
            ("expert_out must be a torch.Tensor", lambda rows: rows.tolist()),
            (f"expert_out {_CUDA}", _on_cuda),
            ("expected [C, 16]", lambda rows: rows[:, :8]),
            ("float32, bfloat16 or float16, which can be summed", lambda rows: rows.int()),
            ("fewer than the", lambda rows: rows[:-1]),
            ("more than recv_capacity_per_rank 512", lambda rows: rows.repeat(600, 1)),
        ]:
            plan = group.prepare(given.idx)
            recv, _ = group.dispatch(plan, given.tokens, given.weights)
            if world.rank == 0:
                _raises((TypeError, ValueError), part, group.combine, plan, change(recv))
            else:
                _raises(EpError, part, group.combine, plan, recv)
        for part, buffer_of in [
            (
                "out is for calls without gradients; call under torch.no_grad()",
                lambda _: torch.empty(5, HIDDEN),
            ),
            ("out has shape [5], expected [5, 16]", lambda _: torch.empty(5)),
            ("out shares memory with the rows", lambda rows: rows[:5]),
        ]:
            with torch.set_grad_enabled("no_grad" in part):
                plan = group.prepare(given.idx)
                rows, _ = group.dispatch(plan, given.tokens, given.weights)
                if world.rank == 0:
                    bad = buffer_of(rows)
                    _raises((TypeError, ValueError), part, group.combine, plan, rows, out=bad)
                else:
                    _raises(EpError, part, group.combine, plan, rows)
        with world.join("another") as another:
            _raises(ValueError, "plan is of group 'combine'", another.combine, plan, recv)
    _check_each_was_refused(Group.combine)


def check_an_expert_out_of_range_is_an_error_on_every_rank(world):
    given = problem(world)
    with world.join("range") as group:
        if world.rank == 1:
            given.idx[0, 0] = EXPERTS
        error = _raises(EpError, "rank=1", group.prepare, given.idx)
        assert error.code == "INVALID_ARGUMENT", error
        given = problem(world)
        assert_close(exchanged(group, given), dense(given), "the next call")


def check_calls_in_another_order_are_an_error_on_every_rank(world):
    given = problem(world)
    with world.join("order") as group, torch.no_grad():
        plans = [group.prepare(given.idx) for _ in range(2)]
        error = _raises(
            EpError,
            "handle_mem",
            lambda: group.dispatch(plans[world.rank], given.tokens, given.weights),
        )
        assert error.code == "INVALID_ARGUMENT", error
        recv, _ = group.dispatch(plans[0], given.tokens, given.weights)
        calls = [
            lambda: group.combine(plans[0], recv),
            lambda: group.dispatch(plans[0], given.tokens, given.weights),
        ]
        error = _raises(EpError, "kind", calls[world.rank])
        assert error.code == "INVALID_ARGUMENT" and "combine" in str(error), error
        error = _raises(EpError, "top_k", lambda: group.prepare(given.idx[:, : 1 + world.rank]))
        assert_close(exchanged(group, given), dense(given), "the next call")


def check_a_forward_call_that_meets_a_gradient_is_an_error_on_every_rank(world):
    given = problem(world)
    with world.join("crossed") as group:
        loss = loss_of(exchanged(group, given))
        calls = [loss.backward, lambda: exchanged(group, given)]
        error = _raises(EpError, "different programs or executions", calls[world.rank])
        assert error.code == "INVALID_ARGUMENT" and "combine_backward" in str(error), error
        assert_close(exchanged(group, problem(world)), dense(given), "the next call")


def check_ranks_with_other_types(world):
    given = problem(world)
    with world.join("types") as group:
        plan = group.prepare(given.idx)
        rows = given.tokens.half() if world.rank else given.tokens
        error = _raises(EpError, "dtype", group.dispatch, plan, rows, given.weights)
        assert error.code == "INVALID_ARGUMENT" and "float16" in str(error), error


def check_traced_calls_are_refused(world):
    given = problem(world)
    with world.join("traced") as group:
        if world.rank == 0:
            _raises(
                TypeError,
                "torch.compile",
                torch.jit.trace,
                lambda idx: group.prepare(idx).token_counts,
                given.idx,
            )
        else:
            _raises(EpError, "torch.compile", group.prepare, given.idx)


def _compiled_without_custom_ops(function):
    """By torch.compile of a torch from 2.0 to 2.3. Another torch is made to look like one that compiles."""
    if hasattr(torch, "compile") and not _compiled._OFFERED:
        return torch.compile(function, backend="eager")

    def compiling():
        with (
            mock.patch.object(_operands, "_is_compiling", lambda: True),
            mock.patch.object(_compiled, "_OFFERED", False),
        ):
            return function()

    return compiling


def check_a_compiler_without_custom_ops_is_refused_by_name(world):
    given = problem(world)
    tokens, weights = given.tokens.detach(), given.weights.detach()
    part = "cannot compile exchanges; expected 2.4 or newer, or torch.compiler.disable around"
    with world.join("old-compiler") as group:
        plan = group.prepare(given.idx)
        recv, _ = group.dispatch(plan, tokens, weights)
        for call in (
            lambda: group.prepare(given.idx).token_counts + 1,
            lambda: group.dispatch(plan, tokens, weights)[0] + 1,
            lambda: group.combine(plan, recv) + 1,
        ):
            _refused(world, group, part, call, _compiled_without_custom_ops(call))


def check_a_rank_that_another_process_holds(world):
    error = _raises(
        EpError,
        "rank",
        Group.join,
        "twice",
        world.ranks,
        0,
        num_experts=EXPERTS,
        max_tokens_per_rank=8,
        recv_capacity_per_rank=8,
        hidden_dim=HIDDEN,
    )
    print(error)
    assert error.code == "INVALID_ARGUMENT" and "rank=0" in str(error), error


def check_a_left_group_is_named(world):
    given = problem(world)
    group = world.join("left")
    plan = group.prepare(given.idx)
    group.finalize()
    group.finalize()
    assert (group.state, group.epoch) == ("left", 0)
    for call in (
        lambda: group.prepare(given.idx),
        lambda: group.dispatch(plan, given.tokens, given.weights),
        group.wait_ready,
    ):
        error = _raises(EpError, "group=left", call)
        assert (error.code, error.retry) == ("FAILED_PRECONDITION", "connect again"), error
    group.connect()
    assert group.state == "ready"
    group.wait_ready(5)
    _raises(ValueError, "timeout is 0", group.wait_ready, 0)
    error = _raises(EpError, "plan", group.dispatch, plan, given.tokens, given.weights)
    assert error.code == "INVALID_ARGUMENT" and "prepare in this one" in str(error), error
    assert_close(exchanged(group, given), dense(given), "after connect()")
    error = _raises(EpError, "finalize", world.join, "left")
    assert error.code == "FAILED_PRECONDITION", error
    group.finalize()


def check_names(world):
    given = problem(world)
    with world.join("names") as group:
        assert given.idx.shape[1] == TOP_K and given.tokens.shape[1] == HIDDEN
        assert_close(exchanged(group, given, name="layer"), dense(given), "named")


if __name__ == "__main__":
    main(dict(globals()))
