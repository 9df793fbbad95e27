"""A small MoE layer, spread over ranks through epd.torch and dense on one, and what its gradients are."""

import dataclasses
import json
import os
import sys
import time

import torch
from epd.torch import Group

HIDDEN, EXPERTS, TOP_K = 16, 8, 2


@dataclasses.dataclass(frozen=True)
class World:
    """This process among the ranks. ``folder``: shared with the test."""

    rank: int
    ranks: int
    folder: str

    @classmethod
    def of_arguments(cls):
        return cls(**json.loads(sys.argv[1]))

    def join(self, name, **other):
        sizes = {
            "num_experts": EXPERTS,
            "max_tokens_per_rank": 64,
            "recv_capacity_per_rank": 512,
            "hidden_dim": HIDDEN,
            "max_token_dtype": torch.float32,
        }
        return Group.join(name, self.ranks, self.rank, **{**sizes, **other})

    def tell(self, event):
        """Lets ``wait_for(event)`` of every rank return."""
        with open(os.path.join(self.folder, event), "w"):
            pass

    def wait_for(self, event, seconds=60):
        until = time.monotonic() + seconds
        while not os.path.exists(os.path.join(self.folder, event)):
            assert time.monotonic() < until, f"nobody told {event!r} in {seconds} s"
            time.sleep(0.01)

    def tokens_here(self, rank=None):
        """Uneven; the third rank has none."""
        rank = self.rank if rank is None else rank
        return 0 if rank == 2 else 5 + 3 * rank


@dataclasses.dataclass
class Problem:
    """What one rank brings: routes, tokens, weights; and all experts' parameters, of which it owns some."""

    idx: torch.Tensor
    tokens: torch.Tensor
    weights: torch.Tensor
    experts: torch.Tensor

    def leaves(self):
        return [self.tokens, self.weights, self.experts]


def problem(world, seed=0, dtype=torch.float32, rank=None):
    """The same on every process for the same ``rank`` and seed; leaves require gradients."""
    rank = world.rank if rank is None else rank
    num_tokens = world.tokens_here(rank)
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    idx = torch.rand(num_tokens, EXPERTS, generator=generator).topk(TOP_K).indices
    idx[::4, 1] = -1
    tokens = torch.randn(num_tokens, HIDDEN, generator=generator).to(dtype)
    weights = torch.rand(num_tokens, TOP_K, generator=generator)
    shared = torch.Generator().manual_seed(seed)
    experts = (torch.randn(EXPERTS, HIDDEN, HIDDEN, generator=shared) / 4).to(dtype)
    return Problem(idx, *(t.requires_grad_() for t in (tokens, weights, experts)))


def exchanged(group, given, plan=None, **options):
    """The layer through the group, under ``plan`` or one of its own: [T, H]."""
    plan = group.prepare(given.idx, **options) if plan is None else plan
    recv, recv_weights = group.dispatch(plan, given.tokens, given.weights)
    rows = [
        torch.tanh(zone @ given.experts[expert])
        for expert, zone in zip(group.experts, plan.zones(recv), strict=True)
        if len(zone)
    ]
    out = torch.cat(rows) if rows else torch.zeros(0, HIDDEN, dtype=recv.dtype)
    return group.combine(plan, out * recv_weights[: len(out), None].to(out.dtype))


def dense(given):
    """The same without ranks."""
    out = torch.zeros_like(given.tokens)
    for k in range(TOP_K):
        chosen = given.idx[:, k]
        rows = torch.einsum("th,thj->tj", given.tokens, given.experts[chosen.clamp(min=0)])
        scale = torch.where(chosen >= 0, given.weights[:, k], torch.zeros(()))
        out = out + torch.tanh(rows) * scale[:, None]
    return out


def loss_of(out):
    return (out * torch.arange(1, HIDDEN + 1)).pow(2).sum() / 100


def dense_gradients(world, layer=dense, **options):
    """This rank's [tokens, weights], and the experts' of all ranks' tokens; and this rank's output."""
    experts = None
    for rank in range(world.ranks):
        given = problem(world, rank=rank, **options)
        out = layer(given)
        loss_of(out).backward()
        experts = given.experts.grad if experts is None else experts + given.experts.grad
        if rank == world.rank:
            own, own_out = given, out.detach()
    return own_out, [own.tokens.grad, own.weights.grad, experts]


def assert_close(got, want, what, tolerance=1e-5):
    scale = max(1.0, float(want.abs().max()) if want.numel() else 1.0)
    worst = float((got - want).abs().max()) if want.numel() else 0.0
    assert got.shape == want.shape and worst <= tolerance * scale, (
        what,
        got.shape,
        want.shape,
        worst,
    )


def assert_gradients(world, group, given, want):
    for name, got, one in zip(("tokens", "weights"), given.leaves(), want, strict=False):
        assert_close(got.grad if got.grad is not None else torch.zeros_like(got), one, name)
    own = torch.zeros_like(given.experts) if given.experts.grad is None else given.experts.grad
    assert_close(own[group.experts], want[2][group.experts], "experts")


def main(checks):
    """Runs every ``check_*(world)``, and writes what became of each."""
    import traceback

    world = World.of_arguments()
    torch.set_num_threads(1)
    outcomes = {}
    for name, check in checks.items():
        if not name.startswith("check_"):
            continue
        try:
            check(world)
            outcomes[name] = "ok"
        except BaseException:  # noqa: BLE001  Reported to the test.
            outcomes[name] = traceback.format_exc()
        with open(os.path.join(world.folder, f"{world.rank}.json"), "w") as file:
            json.dump(outcomes, file)
