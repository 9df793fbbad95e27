"""One rank in PyTorch: `torch_rank.py epd|gloo ...`, on an interpreter that has torch.

epd: prepare, dispatch and combine of `epd.torch`. gloo: what a user has without it, all_to_all_single over torch.distributed with the
index and scatter before and after; the plan (which row goes where) is made beforehand.
"""

import argparse
import sys
from collections.abc import Callable

import numpy as np
import rank_protocol
import torch
import torch.distributed as dist

_EXPERTS_PER_RANK = 8


class _Problem:
    """This rank's part of what problem.py wrote."""

    def __init__(self, folder: str, numbers: list[int], rank: int):
        self.ranks, self.num_tokens, self.hidden, self.top_k, self.experts, self.capacity = numbers
        self.routing = [
            torch.from_numpy(np.fromfile(f"{folder}/topk_idx.{r}", np.int32)).view(-1, self.top_k)
            for r in range(self.ranks)
        ]
        rows = np.fromfile(f"{folder}/tokens.{rank}", np.int16).reshape(-1, self.hidden)
        self.tokens = torch.from_numpy(rows).view(torch.bfloat16)
        weights = np.fromfile(f"{folder}/topk_weights.{rank}", np.float32)
        self.weights = torch.from_numpy(weights).view(-1, self.top_k)

    def scaled(self, rows: torch.Tensor, expert_of_slots: torch.Tensor) -> torch.Tensor:
        """Combine's input: each row times its expert's scale."""
        factors = 1 + expert_of_slots % 8 / 8
        out = rows.clone()
        out[: len(factors)] = (rows[: len(factors)].float() * factors[:, None]).bfloat16()
        return out


class _TorchRank(rank_protocol.Rank):
    def dump(self, result: torch.Tensor, path: str) -> None:
        result.view(torch.int16).numpy().tofile(path)


class EpdRank(_TorchRank):
    def load(self, folder: str, numbers: list[int]) -> dict[str, Callable[[], torch.Tensor]]:
        from epd.torch import Group

        p = _Problem(folder, numbers, self.rank)
        self._group = group = Group.join(
            "bench-torch",
            p.ranks,
            self.rank,
            num_experts=p.experts,
            max_tokens_per_rank=p.num_tokens,
            recv_capacity_per_rank=p.capacity,
            hidden_dim=p.hidden,
        )
        idx = p.routing[self.rank]
        plan = group.prepare(idx)
        recv, _ = group.dispatch(plan, p.tokens, p.weights, p.capacity)
        experts = torch.repeat_interleave(torch.tensor(group.experts), plan.token_counts.long())
        expert_out = p.scaled(recv, experts)
        # Into the same buffers again and again, as the C API's rank does.
        summed = torch.empty_like(p.tokens)

        def dispatch() -> torch.Tensor:
            with torch.no_grad():
                return group.dispatch(plan, p.tokens, p.weights, out=recv)[0]

        def combine() -> torch.Tensor:
            with torch.no_grad():
                return group.combine(plan, expert_out, out=summed)

        return {
            "prepare": lambda: group.prepare(idx).routing.handle_mem,
            "dispatch": dispatch,
            "combine": combine,
        }

    def unload(self) -> None:
        self._group.finalize()

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__}


class GlooRank(_TorchRank):
    def __init__(self, arguments: argparse.Namespace):
        super().__init__(arguments)
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{arguments.coordinator}",
            rank=arguments.rank,
            world_size=arguments.num_ranks,
        )

    def load(self, folder: str, numbers: list[int]) -> dict[str, Callable[[], torch.Tensor]]:
        p = _Problem(folder, numbers, self.rank)
        own = p.routing[self.rank].flatten()
        order = torch.sort(own, stable=True).indices  # By expert, so by rank; then by token and k.
        sent = torch.bincount(own // _EXPERTS_PER_RANK, minlength=p.ranks).tolist()
        # What comes, by source, is in the order of experts there; its slots are by expert, then by source.
        coming = [
            torch.sort(idx.flatten(), stable=True).values.to(torch.int64) for idx in p.routing
        ]
        coming = [values[values // _EXPERTS_PER_RANK == self.rank] for values in coming]
        received = [len(values) for values in coming]
        experts = torch.cat(coming)
        slots = torch.empty_like(experts)
        slots[torch.sort(experts, stable=True).indices] = torch.arange(len(experts))
        token_of_route, home = order // p.top_k, torch.empty_like(order)
        home[order] = torch.arange(len(order))

        def exchanged(rows: torch.Tensor, out: list[int], back: list[int]) -> torch.Tensor:
            got = torch.empty((sum(back), p.hidden), dtype=torch.bfloat16)
            # This gloo knows no bfloat16; it moves bits.
            dist.all_to_all_single(got.view(torch.half), rows.view(torch.half), back, out)
            return got

        def dispatch() -> torch.Tensor:
            recv = torch.zeros((p.capacity, p.hidden), dtype=torch.bfloat16)
            recv[slots] = exchanged(p.tokens[token_of_route], sent, received)
            return recv

        expert_out = p.scaled(dispatch(), torch.sort(experts).values)

        def combine() -> torch.Tensor:
            rows = exchanged(expert_out[slots], received, sent)[home]
            return rows.view(-1, p.top_k, p.hidden).float().sum(1).bfloat16()

        return {"dispatch": dispatch, "combine": combine}

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__}


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    rank_protocol.serve({"epd": EpdRank, "gloo": GlooRank}[sys.argv.pop(1)])
