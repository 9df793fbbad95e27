"""What the soak does to processes, in which order, and when they have recovered from it: pure, but for the clock that is passed in."""

import dataclasses
import random
from collections.abc import Iterator, Mapping

# Of each kind as often as of the others.
KINDS = (
    "a rank is killed",
    "a rank stands still for 3 s",
    "the worker is killed",
    "the worker stands still for 3 s",
    "epd is killed",
    "epd stands still for 3 s",
    "epd is replaced in place",
)


def in_turn(seed: int) -> Iterator[str]:
    """All kinds, then all again, each time in another order."""
    rng = random.Random(seed)
    while True:
        yield from rng.sample(KINDS, len(KINDS))


@dataclasses.dataclass(frozen=True)
class Progress:
    """Of one rank: steps, calls that failed, and when it last made one and failed in one (ns)."""

    steps: int
    failed: int
    last_step_ns: int
    last_failed_ns: int


@dataclasses.dataclass
class Recovery:
    """Watches ranks after a fault, from when it was over: a process killed, or going on."""

    before: Mapping[str, Progress]
    ended_ns: int
    quiet_ns: int  # For so long no call may have failed.

    def seconds(self, now_ns: int, now: Mapping[str, Progress]) -> float | None:
        """Until the last call that failed; None: not all ranks have made two steps since, or it is too early to say."""
        if now_ns < self.ended_ns + self.quiet_ns:
            return None
        for rank, one in now.items():
            failed_lately = one.last_failed_ns > now_ns - self.quiet_ns
            went_on = one.steps >= self.before[rank].steps + 2
            if failed_lately or not went_on or one.last_step_ns < one.last_failed_ns:
                return None
        return max(0, *(one.last_failed_ns - self.ended_ns for one in now.values())) / 1e9
