"""Trains a small mixture-of-experts layer in four processes, and checks every step against the same layer on one.

    python3 client/torch/example/train_moe.py

Each process owns two of eight experts and a quarter of the tokens. The router is a replica in each, whose gradient
torch.distributed sums; the experts' gradients need no sum, since their tokens came from all processes.
"""

import argparse
import os
import socket
import subprocess
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from epd.torch import Group
from torch import nn

RANKS, EXPERTS, TOP_K, HIDDEN, TOKENS, STEPS = 4, 8, 2, 32, 64, 10


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, 2 * HIDDEN), nn.Linear(2 * HIDDEN, HIDDEN)

    def forward(self, rows):
        return self.down(F.gelu(self.up(rows)))


class Moe(nn.Module):
    """All experts without a group, this rank's own with one."""

    def __init__(self, group=None):
        super().__init__()
        torch.manual_seed(0)
        self.group = group
        self.router = nn.Linear(HIDDEN, EXPERTS)
        experts = [Expert() for _ in range(EXPERTS)]
        own = range(EXPERTS) if group is None else group.experts
        self.experts = nn.ModuleList([experts[e] for e in own])

    def forward(self, tokens):
        weights, idx = torch.softmax(self.router(tokens), -1).topk(TOP_K)
        if self.group is None:
            return sum(
                (weights[:, k, None] * self._all(tokens)[torch.arange(len(tokens)), idx[:, k]])
                for k in range(TOP_K)
            )
        plan = self.group.prepare(idx)
        recv, recv_weights = self.group.dispatch(plan, tokens, weights)
        zones = plan.zones(recv)
        rows = torch.cat([expert(zone) for expert, zone in zip(self.experts, zones, strict=True)])
        return self.group.combine(plan, rows * recv_weights[: len(rows), None])

    def _all(self, tokens):
        return torch.stack([expert(tokens) for expert in self.experts], 1)  # [T, E, H]


def data(step):
    """Tokens and targets of all ranks."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randn(RANKS * TOKENS, HIDDEN, generator=generator)
    return tokens, tokens.roll(1, 1)


def train(rank):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    sizes = {"max_tokens_per_rank": TOKENS, "recv_capacity_per_rank": RANKS * TOKENS * TOP_K}
    with Group.join(
        "train-moe",
        RANKS,
        rank,
        job=os.environ["MASTER_PORT"],
        num_experts=EXPERTS,
        hidden_dim=HIDDEN,
        max_token_dtype=torch.float32,
        **sizes,
    ) as group:
        models = Moe(group), Moe()
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in models]
        for step in range(STEPS):
            tokens, targets = data(step)
            here = slice(rank * TOKENS, (rank + 1) * TOKENS)
            losses = []
            for model, optimizer, part in zip(models, optimizers, (here, slice(None)), strict=True):
                optimizer.zero_grad()
                # The sum over all ranks' tokens, divided by their number.
                loss = F.mse_loss(model(tokens[part]), targets[part], reduction="sum")
                loss = loss / targets.numel()
                loss.backward()
                losses.append(loss.detach())
            for parameter in models[0].router.parameters():
                dist.all_reduce(parameter.grad)
            dist.all_reduce(losses[0])
            for optimizer in optimizers:
                optimizer.step()
            assert torch.allclose(losses[0], losses[1], rtol=1e-5), losses
            if rank == 0:
                print(f"step {step}: loss {losses[0]:.6f}, dense {losses[1]:.6f}", flush=True)
        own = [models[1].experts[e] for e in group.experts]
        pairs = zip(models[0].experts.parameters(), nn.ModuleList(own).parameters(), strict=True)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in pairs)
    if rank == 0:
        print("train_moe: the experts equal those of the dense layer", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    rank = parser.parse_args().rank
    if rank is not None:
        return train(rank)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", str(rank)], env={**os.environ, **meeting}
        )
        for rank in range(RANKS)
    ]
    return max(abs(process.wait()) for process in ranks)


if __name__ == "__main__":
    sys.exit(main())
