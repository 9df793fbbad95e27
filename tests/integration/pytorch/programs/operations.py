"""The operations on several ranks: values, gradients, memory layouts, element types, several groups."""

import threading

import torch
from epd.torch import EpError
from torch_problem import (
    EXPERTS,
    HIDDEN,
    TOP_K,
    assert_close,
    assert_gradients,
    dense,
    dense_gradients,
    exchanged,
    loss_of,
    main,
    problem,
)


def check_a_layer_and_its_gradients_equal_the_dense_ones(world):
    want, gradients = dense_gradients(world)
    with world.join("layer") as group:
        for _ in range(3):
            given = problem(world)
            out = exchanged(group, given)
            assert_close(out, want, "out")
            loss_of(out).backward()
            assert_gradients(world, group, given, gradients)


def check_layers_one_after_another(world):
    def twice(layer, given):
        first = layer(given)
        given.tokens = given.tokens + first
        return layer(given)

    def dense_twice(given):
        leaves = given.tokens
        out = twice(dense, given)
        given.tokens = leaves
        return out

    want, gradients = dense_gradients(world, layer=dense_twice)
    with world.join("two-layers") as group:
        given = problem(world)
        leaf = given.tokens
        out = twice(lambda one: exchanged(group, one), given)
        given.tokens = leaf
        assert_close(out, want, "out")
        loss_of(out).backward()
        assert_gradients(world, group, given, gradients)


def check_gradients_are_those_of_finite_differences(world):
    with world.join("differences") as group:
        given = problem(world)
        loss_of(exchanged(group, given)).backward()
        direction = torch.randn(given.tokens.shape, generator=torch.Generator().manual_seed(7))
        losses = []
        for step in (-1e-2, 1e-2):
            moved = problem(world)
            moved.tokens = given.tokens.detach() + step * direction
            losses.append(float(loss_of(exchanged(group, moved))))
        slope = (losses[1] - losses[0]) / 2e-2
        along = float((given.tokens.grad * direction).sum()) if len(direction) else 0.0
        assert abs(slope - along) <= 1e-2 * max(1.0, abs(along)), (slope, along)


def check_second_derivatives(world):
    """The gradient of a gradient's norm, which the dense layer has too."""

    def norm(out, given):
        (grad,) = torch.autograd.grad(loss_of(out), given.tokens, create_graph=True)
        grad.pow(2).sum().backward()

    want = problem(world)
    norm(dense(want), want)
    with world.join("second") as group:
        given = problem(world)
        norm(exchanged(group, given), given)
        assert_close(given.tokens.grad, want.tokens.grad, "tokens", 1e-4)
        assert_close(given.weights.grad, want.weights.grad, "weights", 1e-4)


def check_a_graph_may_be_gone_through_twice(world):
    _, gradients = dense_gradients(world)
    with world.join("retained") as group:
        given = problem(world)
        loss = loss_of(exchanged(group, given))
        loss.backward(retain_graph=True)
        loss.backward()
        assert_close(given.tokens.grad, 2 * gradients[0], "tokens")


def check_graphs_are_gone_through_in_any_order(world):
    wants = [dense_gradients(world, seed=seed)[1] for seed in range(3)]
    with world.join("orders") as group:
        givens = [problem(world, seed=seed) for seed in range(3)]
        losses = [loss_of(exchanged(group, given)) for given in givens]
        for number in (1, 0, 2):
            losses[number].backward()
        for given, want in zip(givens, wants, strict=True):
            assert_gradients(world, group, given, want)


def check_threads_may_go_through_graphs_in_another_order_on_each_rank(world):
    wants = [dense_gradients(world, seed=seed)[1] for seed in range(3)]
    with world.join("threads") as group:
        givens = [problem(world, seed=seed) for seed in range(3)]
        losses = [loss_of(exchanged(group, given)) for given in givens]
        order = [(world.rank + n) % 3 for n in range(3)]
        threads = [threading.Thread(target=losses[number].backward) for number in order]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for given, want in zip(givens, wants, strict=True):
            assert_gradients(world, group, given, want)


def check_several_groups_and_names(world):
    want, gradients = dense_gradients(world)
    owners = [world.ranks - 1 - expert % world.ranks for expert in range(EXPERTS)]
    with world.join("first") as first, world.join("second", expert_owner=owners) as second:
        assert second.experts == [e for e, owner in enumerate(owners) if owner == world.rank]
        named, other = problem(world), problem(world)
        outs = [exchanged(first, named, name="layer"), exchanged(second, other, alignment=4)]
        for out in outs:
            assert_close(out, want, "out")
        for out in outs:
            loss_of(out).backward()
        assert_gradients(world, first, named, gradients)
        assert_gradients(world, second, other, gradients)


def check_any_layout_of_memory(world):
    want = dense(problem(world)).detach()
    with world.join("layouts") as group, torch.no_grad():
        given = problem(world)
        idx, tokens, weights = given.idx, given.tokens.detach(), given.weights.detach()
        wide = torch.zeros(len(tokens), 3 * HIDDEN)
        wide[:, 1::3] = tokens
        negated = torch.complex(torch.zeros_like(tokens), -tokens).conj().imag
        assert negated.is_neg() or not len(tokens)
        for rows in (tokens.t().contiguous().t(), wide[:, 1::3], negated):
            given.idx = idx.t().contiguous().t()
            given.tokens, given.weights = rows, weights.repeat(1, 2)[:, :TOP_K]
            assert_close(exchanged(group, given), want, "out")
        given.idx, given.tokens, given.weights = (
            part[None] for part in (idx.int(), tokens, weights)
        )
        assert_close(exchanged(group, given), want[None], "batched")


def check_element_types(world):
    with world.join("types") as group:
        for dtype in (torch.bfloat16, torch.float16):
            given = problem(world, dtype=dtype)
            plan = group.prepare(given.idx)
            recv, weights = group.dispatch(plan, given.tokens, given.weights, 256)
            assert recv.shape == (256, HIDDEN) and recv.dtype == dtype
            assert not recv[plan.total_recv :].any() and not weights[plan.total_recv :].any()
            out = group.combine(plan, recv)
            times = (given.idx >= 0).sum(1, keepdim=True)
            assert torch.equal(out, (given.tokens.float() * times).to(dtype))
            out.float().sum().backward()
            assert torch.equal(given.tokens.grad, times.to(dtype).expand_as(given.tokens))
        given = problem(world)
        for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.bool):
            rows = (given.tokens.detach() * 50).to(torch.int32).to(dtype)
            plan = group.prepare(given.idx)
            recv, weights = group.dispatch(plan, rows, given.weights)
            assert recv.dtype == dtype and not recv.requires_grad
            back = group.combine(plan, recv.float())
            routes = (given.idx >= 0).sum(1, keepdim=True)
            assert torch.equal(back.detach(), rows.float() * routes)
            given.weights.grad = None
            (weights.sum() + back.sum()).backward()
            assert torch.equal(given.weights.grad, (given.idx >= 0).float())


def check_inference_makes_no_graph(world):
    with world.join("inference") as group, torch.no_grad():
        given = problem(world)
        for _ in range(2):
            assert not exchanged(group, given).requires_grad


def check_results_go_into_given_tensors(world):
    given = problem(world)
    tokens, weights = given.tokens.detach()[None], given.weights.detach()[None]
    with world.join("into") as group, torch.no_grad():
        plan = group.prepare(given.idx[None])
        recv, recv_weights = group.dispatch(plan, tokens, weights)
        into = torch.full((len(recv) + 3, HIDDEN), torch.nan)
        got, got_weights = group.dispatch(plan, tokens, weights, out=into)
        assert got is into and len(got_weights) == len(into)
        assert torch.equal(got[: len(recv)], recv) and not got[len(recv) :].any()
        assert torch.equal(got_weights[: len(recv)], recv_weights)
        summed = torch.full_like(tokens, torch.nan)
        assert group.combine(plan, recv, out=summed).data_ptr() == summed.data_ptr()
        assert torch.equal(summed, group.combine(plan, recv))
    if hasattr(torch.autograd.graph, "increment_version"):
        with world.join("kept") as group:
            plan = group.prepare(given.idx)
            kept = torch.ones(world.tokens_here(), HIDDEN, requires_grad=True)
            square = kept * kept
            loss = (square * square).sum()
            with torch.no_grad():
                recv, _ = group.dispatch(plan, given.tokens, given.weights)
                group.combine(plan, recv, out=square)
            try:
                loss.backward()
                raise AssertionError("a graph was not told that what it kept has changed")
            except RuntimeError as error:
                assert "inplace operation" in str(error), error


def check_nobody_has_tokens(world):
    with world.join("nobody") as group:
        given = problem(world)
        for leaf in ("idx", "tokens", "weights"):
            setattr(given, leaf, getattr(given, leaf).detach()[:0])
        out = exchanged(group, given)
        assert out.shape == (0, HIDDEN)
        out.sum().backward()


def check_overflow_is_an_error_on_every_rank_or_drops(world):
    given = problem(world)
    with world.join("overflow") as group:
        plan = group.prepare(given.idx)
        try:
            group.dispatch(plan, given.tokens, given.weights, 1)
            raise AssertionError("it did not overflow")
        except EpError as error:
            assert (error.code, error.retry) == ("RESOURCE_EXHAUSTED", "no"), error
            assert "recv_capacity_per_rank" in str(error), error
        assert_close(exchanged(group, given), dense(given), "the next call")
    with world.join("drops", drop_on_overflow=True) as group:
        plan = group.prepare(given.idx)
        recv, _ = group.dispatch(plan, given.tokens, given.weights, 1)
        assert group.combine(plan, recv).shape == given.tokens.shape


if __name__ == "__main__":
    main(dict(globals()))
