"""What torch lets a program set for the whole process changes no row: default dtype, default device, a mode that the group is joined in."""

import contextlib

import torch
from epd.torch import through_experts
from torch_problem import (
    assert_close,
    assert_gradients,
    dense_gradients,
    exchanged,
    loss_of,
    main,
    problem,
)


@contextlib.contextmanager
def _dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _device(name):
    """From torch 2.0 on."""
    if not hasattr(torch, "set_default_device"):
        return contextlib.nullcontext()
    return torch.device(name)


@contextlib.contextmanager
def _both(dtype, device):
    with _dtype(dtype), _device(device):
        yield


def _contexts():
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        yield f"{dtype}", lambda dtype=dtype: _dtype(dtype)
    yield "meta", lambda: _device("meta")
    yield "meta and float64", lambda: _both(torch.float64, "meta")


def _dispatched(group, given):
    plan = group.prepare(given.idx)
    recv, weights = group.dispatch(plan, given.tokens.detach(), given.weights.detach())
    assert weights.dtype == torch.float32 and weights.is_cpu and recv.is_cpu
    assert plan.token_counts.dtype == torch.int32 and plan.token_counts.is_cpu
    return recv, weights


def check_rows_and_weights_under_another_default(world):
    given = problem(world)
    with world.join("defaults") as group:
        want = _dispatched(group, given)
        for name, context in _contexts():
            for _ in range(5):
                with context():
                    got = _dispatched(group, given)
                assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True)), name


def check_training_steps_in_a_group_joined_under_another_default(world):
    """What a group and a plan hold from then on: they are used where the program's settings are others."""
    out, gradients = dense_gradients(world)
    for number, (_, context) in enumerate(_contexts()):
        with context():
            group = world.join(f"joined{number}")
        with group:
            given = problem(world)
            with context():
                plan = group.prepare(given.idx)
            assert_close(exchanged(group, given, plan), out, "out")
            loss_of(exchanged(group, given)).backward()
            assert_gradients(world, group, given, gradients)


def check_gradients_come_back_under_another_default(world):
    """Of float32 rows and of rows that only move, whose gradient takes rows that epd makes."""
    with world.join("backward") as group:
        results = []
        for context in (contextlib.nullcontext, *(context for _, context in _contexts())):
            given = problem(world)
            with context():
                plan = group.prepare(given.idx)
                recv, weights = group.dispatch(plan, given.tokens, given.weights)
                _, moved = group.dispatch(
                    plan, given.idx.new_ones(given.tokens.shape).int(), given.weights
                )
                out = group.combine(plan, recv * weights[:, None])
                (out.sum() + moved.sum()).backward()
            results.append((out.detach(), given.tokens.grad, given.weights.grad))
        for result in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


def check_a_layer_that_receives_nothing_under_another_default(world):
    with world.join("nothing") as group:
        for _, context in _contexts():
            given = problem(world)
            with context():
                out = through_experts(
                    group,
                    lambda rows, experts, weights: rows * weights * (1 + 0 * experts),
                    given.tokens,
                    given.idx.new_full(given.idx.shape, -1),
                    given.weights,
                )
            assert out.dtype == torch.float32 and not out.detach().any()


def check_a_group_joined_under_inference_mode_trains(world):
    """And so does a plan that was made under it, whose tensors a graph keeps."""
    out, gradients = dense_gradients(world)
    with torch.inference_mode():
        group = world.join("inference")
    with group:
        with torch.inference_mode():
            assert_close(exchanged(group, problem(world)), out, "inference")
            plan = group.prepare(problem(world).idx)
        for made in (plan, None):
            given = problem(world)
            loss_of(exchanged(group, given, made)).backward()
            assert_gradients(world, group, given, gradients)
        scale = torch.ones(len(plan.token_counts), requires_grad=True)
        (scale * plan.token_counts).sum().backward()  # A program's own graph keeps the counts.
        assert torch.equal(scale.grad, plan.token_counts.float())


if __name__ == "__main__":
    main(dict(globals()))
