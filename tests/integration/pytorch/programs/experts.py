"""through_experts: a layer's experts on all ranks' tokens, called as one function on each rank."""

import contextlib

import torch
import torch.utils.checkpoint
from epd.torch import through_experts
from torch_problem import (
    EXPERTS,
    HIDDEN,
    assert_close,
    assert_gradients,
    dense_gradients,
    loss_of,
    main,
    problem,
)


class Experts:
    """This rank's, as one function of the rows; notes what it was called with."""

    def __init__(self, group, given):
        self.own = torch.tensor(group.experts, dtype=torch.int64)
        self.given, self.calls = given, []

    def __call__(self, rows, experts, weights):
        assert rows.shape == (len(experts), HIDDEN) and experts.dtype == torch.int64
        assert experts.shape == weights.shape == (len(rows), 1)
        self.calls.append((rows.detach(), weights.detach()))
        chosen = self.given.experts[self.own[experts[:, 0]]]
        return torch.tanh(torch.einsum("ch,chj->cj", rows, chosen)) * weights


def through(group, given):
    experts = Experts(group, given)
    return through_experts(group, experts, given.tokens, given.idx, given.weights), experts


def check_the_layer_and_its_gradients_equal_the_dense_ones(world):
    want, gradients = dense_gradients(world)
    with world.join("experts") as group:
        for _ in range(2):
            given = problem(world)
            out, _ = through(group, given)
            assert_close(out, want, "out")
            loss_of(out).backward()
            assert_gradients(world, group, given, gradients)


def check_a_rank_that_receives_nothing_has_gradients_of_zero(world):
    with world.join("all-to-the-first") as group:
        given = problem(world)
        given.idx = torch.zeros_like(given.idx)
        given.idx[:, 1] = -1
        out, experts = through(group, given)
        loss_of(out).backward()
        ((rows, weights),) = experts.calls
        if world.rank == 0:
            assert weights.any() and given.experts.grad[0].any()
        else:
            assert len(rows) == 1 and not rows.any() and not weights.any()
            assert given.experts.grad is not None and not given.experts.grad.any()


def check_a_rank_without_experts_has_none_to_run(world):
    if world.ranks == 1:
        return
    want, gradients = dense_gradients(world)
    owners = [expert % (world.ranks - 1) for expert in range(EXPERTS)]
    with world.join("few-owners", expert_owner=owners) as group:
        given = problem(world)
        out, experts = through(group, given)
        assert len(experts.calls) == (1 if group.experts else 0)
        assert_close(out, want, "out")
        loss_of(out).backward()
        assert_gradients(world, group, given, gradients)


def check_weights_keep_their_dtype(world):
    with world.join("dtypes") as group, torch.no_grad():
        given = problem(world, dtype=torch.bfloat16)
        given.weights = given.weights.bfloat16()
        out, experts = through(group, given)
        assert out.dtype == experts.calls[0][1].dtype == torch.bfloat16


def check_experts_get_the_rows_that_were_not_dropped(world):
    sizes = {"recv_capacity_per_rank": 3, "drop_on_overflow": True}
    with world.join("drops", **sizes) as group:
        given = problem(world)
        out, experts = through(group, given)
        assert out.shape == given.tokens.shape and len(experts.calls[0][0]) <= 3
        loss_of(out).backward()


def _checkpointed(function, *given):
    return torch.utils.checkpoint.checkpoint(function, *given, use_reentrant=False)


def _trained(group, given, blocks, wrap):
    """The gradients of blocks one behind another, each as ``wrap`` calls it."""
    experts = Experts(group, given)

    def block(tokens):
        return tokens + through_experts(group, experts, tokens, given.idx, given.weights)

    def stacked(tokens):
        for _ in range(blocks):
            tokens = wrap(block, tokens)
        return tokens

    loss_of(stacked(given.tokens)).backward()
    return [leaf.grad for leaf in given.leaves()]


def check_checkpointed_blocks_where_ranks_own_no_experts_or_receive_nothing(world):
    stops = getattr(torch.utils.checkpoint, "set_checkpoint_early_stop", None)  # From torch 2.1 on.
    ways = {"one": _checkpointed}
    if stops:  # Before that there are no checkpoints inside of others.
        ways["nested"] = lambda block, x: _checkpointed(lambda x: _checkpointed(block, x), x)
    for number, owner in enumerate(([0] * EXPERTS, [world.ranks - 1] * EXPERTS, None)):
        with world.join(f"checkpointed{number}", expert_owner=owner) as group:
            for unused in (False, True):
                for blocks in (1, 3):

                    def run(wrap, blocks=blocks, unused=unused, group=group):
                        given = problem(world)
                        if unused:  # Every token goes to expert 0 or nowhere: buffers of other ranks are empty.
                            given.idx = torch.where(given.idx == 0, 0, -1)
                        return _trained(group, given, blocks, wrap)

                    want = run(lambda block, x: block(x))
                    for name, wrap in ways.items():
                        for early in (True, False) if stops else (None,):
                            with stops(early) if stops else contextlib.nullcontext():
                                got = run(wrap)
                            for one, other in zip(got, want, strict=True):
                                assert (one is None) == (other is None), (name, early)
                                if one is not None:
                                    assert_close(one, other, (name, early, blocks, unused))


if __name__ == "__main__":
    main(dict(globals()))
