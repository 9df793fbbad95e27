"""A rank that exchanges step after step, whatever happens to the others: `soak_rank.py GROUP RANKS RANK FILE`, on an interpreter with torch.

Every sum is compared. After an error it does what the error's `retry` says; one that says "no" ends it, as do other sums and
errors without a name. FILE: int64 [4], steps done, calls that failed, and of the last of each the time, in ns of the monotonic clock.
"""

import itertools
import mmap
import random
import signal
import struct
import sys
import threading
import time

import torch
from epd.torch import EpError, Group

# Each rank by itself, so that at most times some have announced what others have not, and the machine is not busy with that alone.
_MOST_BETWEEN_SECONDS = 0.02
_AFTER_ERROR_SECONDS = 0.1
_TOKENS, _HIDDEN, _TOP_K, _EXPERTS_PER_RANK = 8, 256, 2, 2


class _Record:
    def __init__(self, path: str):
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 32)
        self._values = list(
            struct.unpack("4q", self._memory)
        )  # Of the processes before this one, too.

    def count(self, which: int) -> None:
        self._values[which] += 1
        self._values[2 + which] = time.monotonic_ns()
        self._memory[:] = struct.pack("4q", *self._values)


def _step(group: Group, number: int) -> None:
    """Dispatches tokens of this step to experts that scale them by their number, and sums them up."""
    experts = group.config.ep_size * _EXPERTS_PER_RANK
    first = torch.arange(_TOKENS) + number + group.rank
    idx = torch.stack([(first + k * 3) % experts for k in range(_TOP_K)], 1).int()
    tokens = torch.full((_TOKENS, _HIDDEN), float(number % 97 + group.rank))
    plan = group.prepare(idx)
    rows, _ = group.dispatch(plan, tokens, torch.ones(_TOKENS, _TOP_K))
    scaled = rows.clone()
    for expert, zone in zip(group.experts, plan.zones(scaled), strict=True):
        zone *= expert + 1
    got = group.combine(plan, scaled)
    expected = tokens * (idx + 1).sum(1, keepdim=True)
    if not torch.equal(got, expected):
        raise AssertionError(
            f"step {number}: {got[:, 0].tolist()}, expected {expected[:, 0].tolist()}"
        )


def main() -> None:
    name, ranks, rank, path = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    record = _Record(path)
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    group = Group.join(
        name,
        ranks,
        rank,
        num_experts=ranks * _EXPERTS_PER_RANK,
        max_tokens_per_rank=_TOKENS,
        recv_capacity_per_rank=_TOKENS * _TOP_K * ranks,
        hidden_dim=_HIDDEN,
        max_token_dtype=torch.float32,
    )
    for number in itertools.count():
        if over.is_set():
            return
        try:
            _step(group, number)
            record.count(0)
            over.wait(random.uniform(0, _MOST_BETWEEN_SECONDS))
        except EpError as error:
            record.count(1)
            print(f"rank {rank} step {number}: {error.retry}: {error}", flush=True)
            if error.retry == "no":
                raise
            over.wait(_AFTER_ERROR_SECONDS)
            if error.retry == "connect again":
                group.finalize()
                group.connect()


if __name__ == "__main__":
    main()
