"""What the benchmarks of tests/gpu exchange, and how often: the same for whoever is measured. Pure, on NumPy."""

import dataclasses

import numpy as np
from bench_record import Workload

TOP_K, LOCAL_EXPERTS, HIDDEN = 8, 32, 7168
_SHAPES = {"decode 128": 128, "train 4096": 4096}
_MIN_HIDDEN = 16
# Calls before the clock counts, and those that count.
WARM, RUNS = 5, 40
# Pairs in a chain. Each makes the rows TOP_K times larger, and bfloat16 ends at 2**127.
CHAIN = 8
# Pairs in the chain with events, of which the first does not count: before it ranks start at different times.
MARKED = 4


@dataclasses.dataclass(frozen=True)
class Problem:
    """One shape on all ranks. What comes back of tokens that no expert has changed is TOP_K times the tokens."""

    workload: Workload
    tokens: (
        np.ndarray
    )  # [ranks * tokens_per_rank, hidden]: small integers, whose sums are exact in bfloat16
    idx: (
        np.ndarray
    )  # [ranks * tokens_per_rank, TOP_K]: the experts of a token are distinct, as a router's are

    def of_rank(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Its tokens and its routes."""
        count = self.workload.tokens_per_rank
        own = slice(rank * count, (rank + 1) * count)
        return self.tokens[own], self.idx[own]

    def tokens_to(self, rank: int) -> int:
        """How many tokens have an expert on that rank: its rows where a row stands for a token and rank."""
        return int((self.idx // LOCAL_EXPERTS == rank).any(axis=1).sum())


def counts(divisor: int) -> dict[str, int]:
    """Tokens per rank of each shape, divided by `divisor`."""
    return {name: max(1, count // divisor) for name, count in _SHAPES.items()}


def hidden(divisor: int) -> int:
    return max(_MIN_HIDDEN, HIDDEN // divisor)


def problem(name: str, ranks: int, divisor: int) -> Problem:
    count = counts(divisor)[name]
    rng = np.random.default_rng(count)
    tokens = rng.integers(-4, 5, (ranks * count, hidden(divisor)), dtype=np.int8)
    experts = ranks * LOCAL_EXPERTS
    idx = np.argsort(rng.random((ranks * count, experts)))[:, :TOP_K].astype(np.int32)
    workload = Workload(
        name=name,
        ranks=ranks,
        tokens_per_rank=count,
        hidden=hidden(divisor),
        top_k=TOP_K,
        num_experts=experts,
        live_rows=int(np.bincount(idx.reshape(-1) // LOCAL_EXPERTS, minlength=ranks).max()),
        capacity=ranks * count * TOP_K,
    )
    return Problem(workload, tokens, idx)
