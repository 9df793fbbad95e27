"""What torch.compile makes of the operations: each rank compiles for itself, with sizes of its own. From torch 2.4 on.

Most checks take the backend that changes nothing but goes through all of tracing and partitioning; one takes the default one.
"""

import torch
from epd.torch import EpError
from torch_problem import (
    EXPERTS,
    HIDDEN,
    assert_close,
    assert_gradients,
    dense,
    dense_gradients,
    exchanged,
    loss_of,
    main,
    problem,
)

CAPACITY = 256


def layer(group, given, **options):
    """The layer with static sizes, as one graph."""
    plan = group.prepare(given.idx, **options)
    recv, recv_weights = group.dispatch(plan, given.tokens, given.weights, CAPACITY)
    if not group.experts:
        return group.combine(plan, recv)
    ends = plan.token_counts.cumsum(0)
    local = torch.bucketize(torch.arange(CAPACITY), ends, right=True).clamp(max=len(ends) - 1)
    own = given.experts[torch.tensor(group.experts)]
    out = torch.tanh(torch.einsum("ch,chj->cj", recv, own[local]))
    return group.combine(plan, out * recv_weights[:, None].to(out.dtype))


def compiled(function, backend="aot_eager"):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend=backend)


def _is_the_dense_layer(world, name, backend):
    wants = [dense_gradients(world, seed=seed) for seed in range(3)]
    with world.join(name) as group:
        run = compiled(lambda given: layer(group, given), backend)
        for seed, (want, gradients) in enumerate(wants):
            given = problem(world, seed=seed)
            out = run(given)
            assert_close(out, want, "out")
            loss_of(out).backward()
            assert_gradients(world, group, given, gradients)


def check_a_layer_is_one_graph_and_equals_the_dense_one(world):
    _is_the_dense_layer(world, "layer", "aot_eager")


def check_the_default_backend(world):
    _is_the_dense_layer(world, "inductor", "inductor")


def check_layers_that_do_not_depend_on_each_other_meet_in_the_order_of_the_program(world):
    """A compiler may reorder them, on each rank another way, where nothing holds their order."""
    wants = [dense_gradients(world, seed=seed) for seed in range(3)]
    with world.join("three") as group:
        run = compiled(lambda *givens: [layer(group, given) for given in givens], "inductor")
        for _ in range(2):
            givens = [problem(world, seed=seed) for seed in range(3)]
            outs = run(*givens)
            sum(loss_of(out) for out in outs).backward()
            for out, given, (want, gradients) in zip(outs, givens, wants, strict=True):
                assert_close(out, want, "out")
                assert_gradients(world, group, given, gradients)


def check_loss_and_layers_in_one_graph_with_other_sizes_each_step(world):
    with world.join("steps") as group:

        def step(given):
            first = layer(group, given)
            given.tokens = given.tokens + first
            return loss_of(layer(group, given))

        run = compiled(step)
        for count in (4, 9, 6):
            losses = []
            for function in (step, run):
                given = problem(world)
                rows = (
                    torch.arange(count) % max(1, len(given.idx)) if len(given.idx) else slice(0, 0)
                )
                given.idx, given.tokens, given.weights = (
                    part.detach()[rows] for part in (given.idx, given.tokens, given.weights)
                )
                loss = function(given)
                loss.backward()
                losses.append((loss.detach(), given.experts.grad))
            assert_close(losses[1][0], losses[0][0], "loss")
            if losses[0][1] is not None:
                assert_close(losses[1][1], losses[0][1], "experts")


def check_compiled_and_eager_calls_mix(world):
    """A graph that breaks, since the sizes are this step's, and calls between that nobody compiled."""
    want, gradients = dense_gradients(world)
    with world.join("mixed") as group:
        torch._dynamo.reset()
        for run in (torch.compile(exchanged, backend="aot_eager"), exchanged) * 2:
            given = problem(world)
            out = run(group, given)
            assert_close(out, want, "out")
            loss_of(out).backward()
            assert_gradients(world, group, given, gradients)


def check_an_eager_rank_meets_a_compiled_one(world):
    want, gradients = dense_gradients(world)
    with world.join("unlike") as group:
        run = compiled(lambda given: layer(group, given))
        if world.rank == 0:

            def run(given):
                return layer(group, given)

        given = problem(world)
        out = run(given)
        assert_close(out, want, "out")
        loss_of(out).backward()
        assert_gradients(world, group, given, gradients)


def check_names_and_several_groups(world):
    want, gradients = dense_gradients(world)
    owners = [world.ranks - 1 - expert % world.ranks for expert in range(EXPERTS)]
    with world.join("first") as first, world.join("second", expert_owner=owners) as second:

        def both(one, other):
            return layer(first, one, name="layer"), layer(second, other, alignment=4)

        givens = [problem(world), problem(world)]
        outs = compiled(both)(*givens)
        for out in outs:
            assert_close(out, want, "out")
        sum(loss_of(out) for out in outs).backward()
        for group, given in zip((first, second), givens, strict=True):
            assert_gradients(world, group, given, gradients)


def check_a_graph_may_be_gone_through_twice(world):
    _, gradients = dense_gradients(world)
    with world.join("retained") as group:
        given = problem(world)
        loss = loss_of(compiled(lambda given: layer(group, given))(given))
        loss.backward(retain_graph=True)
        loss.backward()
        assert_close(given.tokens.grad, 2 * gradients[0], "tokens")


def check_ranks_whose_tokens_are_constants_take_part_in_backward(world):
    with world.join("constants") as group:
        given = problem(world)
        if world.rank == 0:
            given.tokens, given.weights, given.experts = (
                leaf.detach() for leaf in (given.tokens, given.weights, given.experts)
            )
        compiled(lambda given: loss_of(layer(group, given)))(given).backward()


def check_weights_of_another_type(world):
    want, gradients = dense_gradients(world)
    with world.join("half") as group:
        run = compiled(lambda given: layer(group, given))
        given = problem(world)
        given.weights = given.weights.detach().half().requires_grad_()
        out = run(given)
        assert_close(out, want, "out", 1e-2)
        loss_of(out).backward()
        assert given.weights.grad.dtype == torch.float16
        assert_close(given.weights.grad.float(), gradients[1], "weights", 1e-2)
        whole = problem(world)
        whole.weights = whole.weights.detach().int()
        try:
            run(whole)
            raise AssertionError("whole weights were taken")
        except TypeError as error:
            assert "topk_weights must have a floating dtype" in str(error), error


def check_inference_and_rows_that_are_only_moved(world):
    with world.join("moved") as group, torch.no_grad():
        given = problem(world)
        assert not compiled(lambda given: layer(group, given))(given).requires_grad

        def moved(rows, idx, weights):
            plan = group.prepare(idx)
            return group.dispatch(plan, rows, weights, CAPACITY)[0], plan.token_counts

        rows = (given.tokens * 50).to(torch.int8)
        got, counts = compiled(moved)(rows, given.idx, given.weights)
        want, same = moved(rows, given.idx, given.weights)
        assert torch.equal(got, want) and torch.equal(counts, same)


def check_training_goes_on_after_calls_under_inference_mode(world):
    """Whether prepare is compiled or not, and for a graph of either kind of mode first."""
    out, gradients = dense_gradients(world, layer=dense)
    for backend in ("eager", "aot_eager"):
        with world.join(f"inference-{backend}") as group:

            def planned(plan, given, group=group):
                return group.combine(
                    plan, group.dispatch(plan, given.tokens, given.weights, CAPACITY)[0]
                )

            whole = torch.compile(lambda given: layer(group, given), backend=backend)  # noqa: B023
            part = torch.compile(planned, backend=backend, fullgraph=True)
            for mode in (torch.inference_mode, torch.no_grad):
                for _ in range(2):
                    with mode():
                        part(group.prepare(problem(world).idx), problem(world))
                        whole(problem(world))
                        plan = group.prepare(problem(world).idx)
                    part(plan, problem(world)).sum().backward()  # A plan outlives the mode.
                    part(group.prepare(problem(world).idx), problem(world)).sum().backward()
                    given = problem(world)
                    loss_of(whole(given)).backward()
                    assert_gradients(world, group, given, gradients)
            assert_close(whole(problem(world)).detach(), out, "out")


def check_a_group_joined_under_another_default_is_compiled(world):
    want, gradients = dense_gradients(world, layer=dense)
    with torch.device("meta"):
        group = world.join("meta")
    with group:
        given = problem(world)
        out = compiled(lambda given: layer(group, given))(given)
        assert_close(out.detach(), want, "out")
        loss_of(out).backward()
        assert_gradients(world, group, given, gradients)


def check_errors_reach_the_program_and_the_next_call_works(world):
    want = dense(problem(world)).detach()
    with world.join("errors") as group:

        def small(given):
            return group.dispatch(group.prepare(given.idx), given.tokens, given.weights, 1)[0]

        try:
            compiled(small)(problem(world))
            raise AssertionError("it did not overflow")
        except EpError as error:
            assert (error.code, error.retry) == ("RESOURCE_EXHAUSTED", "no"), error
        assert_close(compiled(lambda given: layer(group, given))(problem(world)), want, "out")
        # What cannot be compiled is called as it is: the rank that is wrong and the others hear of it as ever.
        torch._dynamo.reset()
        given = problem(world)
        if world.rank == 0:
            given.tokens = torch.zeros(world.tokens_here(), HIDDEN + 1)
        try:
            torch.compile(exchanged, backend="aot_eager")(group, given)
            raise AssertionError("wrong tokens were taken")
        except (ValueError, EpError) as error:
            assert "tokens has shape" in str(error), error
            assert isinstance(error, ValueError) == (world.rank == 0), error
        with torch.no_grad():
            assert_close(exchanged(group, problem(world)), want, "the next call")


def check_second_derivatives_stay_eager(world):
    """torch.compile has none; the ops themselves do."""
    want = problem(world)
    (grad,) = torch.autograd.grad(loss_of(dense(want)), want.tokens, create_graph=True)
    grad.pow(2).sum().backward()
    with world.join("second") as group:
        given = problem(world)
        out = torch.compile(lambda given: layer(group, given), backend="eager")(given)
        (grad,) = torch.autograd.grad(loss_of(out), given.tokens, create_graph=True)
        grad.pow(2).sum().backward()
        assert_close(given.tokens.grad, want.tokens.grad, "tokens", 1e-4)


if __name__ == "__main__":
    main(dict(globals()))
