"""Two tenants of one group: what they reach together, and how a small one fares beside a large one.

Each tenant is a fleet of its own that names the same group. Together means at the same time; every repetition measures
alone and together in turn, and medians over the repetitions count.
"""

import contextlib
import dataclasses
import pathlib
import tempfile
import threading
import time
from collections.abc import Iterator

import contenders as who
import cpu_limit
import numpy as np
import problem as problems
from fleet import Fleet

# All that two tenants of the first size touch has ample room in a last-level cache of 32 MiB; that of the second has none.
_BULK = problems.Sizes(2, 128, 2048, 4)
_BEYOND_CACHE = problems.Sizes(2, 512, 2048, 4)
_SMALL = problems.Sizes(2, 8, 2048, 4)
_REPETITIONS = 5
_RUN_SECONDS = 120
_TURN_NS = 500_000_000
_MIN_TOGETHER = 0.9
_MAX_P99_RATIO = 2
_HELD_SHARE = 0.8  # Of all cores' time, by a control group.


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two tenants of one size: medians over the repetitions. Throughput is dispatches a second, of both."""

    alone_per_s: float
    together_per_s: float
    # CPU time of an operation together over that alone: what caches and memory cost that two share. Of the dispatches, and
    # of plain copies of as many bytes in memory of the same size: the machine's own.
    cpu_ratio: float
    copy_cpu_ratio: float

    @property
    def together(self) -> float:
        """Throughput of two together over that of one alone."""
        return self.together_per_s / self.alone_per_s

    def rows(self, sizes: problems.Sizes) -> list[str]:
        """Of a Markdown table."""
        return [
            f"| {sizes.name}, dispatches/s | {self.alone_per_s:.0f} | {self.together_per_s:.0f} | {self.together:.2f} |",
            f"| {sizes.name}, CPU time of a dispatch | | | {self.cpu_ratio:.2f} |",
            f"| {sizes.name}, CPU time of a plain copy of the same bytes | | | {self.copy_cpu_ratio:.2f} |",
        ]


@dataclasses.dataclass(frozen=True)
class Tenants:
    """Medians over the repetitions; p50 and p99 are of the small one. Held: beside a bulk one that a control group limits."""

    p50_alone_ms: float
    p50_beside_ms: float
    p50_held_ms: float
    p99_alone_ms: float
    p99_beside_ms: float
    p99_held_ms: float
    not_held: str  # Why there is no such group here.
    cores: int
    bulk: Pair
    beyond_cache: Pair

    @property
    def p99_ratio(self) -> float:
        """The small tenant's p99 beside the bulk one over that alone."""
        return self.p99_beside_ms / self.p99_alone_ms

    def to_json(self) -> dict[str, object]:
        ratios = {
            "together": self.bulk.together,
            "together_beyond_cache": self.beyond_cache.together,
            "p99_ratio": self.p99_ratio,
        }
        return {**dataclasses.asdict(self), **ratios, "repetitions": _REPETITIONS}

    def table(self) -> str:
        """Markdown."""
        return "\n".join(
            [
                "| tenants of one group | alone | together | ratio |",
                "| -------------------- | ----: | -------: | ----: |",
                *self.bulk.rows(_BULK),
                *self.beyond_cache.rows(_BEYOND_CACHE),
                f"| {_SMALL.name} beside the larger, p50 ms | {self.p50_alone_ms:.3f} | {self.p50_beside_ms:.3f} |"
                f" {self.p50_beside_ms / self.p50_alone_ms:.2f} |",
                f"| {_SMALL.name} beside the larger, p99 ms | {self.p99_alone_ms:.3f} | {self.p99_beside_ms:.3f} |"
                f" {self.p99_ratio:.2f} |",
                f"| the larger held to {_HELD_SHARE:.0%} of the CPU, p50 ms | {self.p50_alone_ms:.3f} | {self.p50_held_ms:.3f} |"
                f" {self.p50_held_ms / self.p50_alone_ms:.2f} |",
                f"| the larger held to {_HELD_SHARE:.0%} of the CPU, p99 ms | {self.p99_alone_ms:.3f} | {self.p99_held_ms:.3f} |"
                f" {self.p99_held_ms / self.p99_alone_ms:.2f} |",
            ]
        )

    def marks(self) -> list[str]:
        """Whether the marks were reached; that of p99 where there is a core for each process."""
        word = "reached" if self.bulk.together >= _MIN_TOGETHER else "MISSED"
        lines = [
            f"{word}: two tenants together at least 0.9 of one alone, {_BULK.name}: {self.bulk.together:.2f}",
            f"not judged: the same where two exceed the cache, {_BEYOND_CACHE.name}: {self.beyond_cache.together:.2f};"
            f" a dispatch then takes {self.beyond_cache.cpu_ratio:.2f} times the CPU time,"
            f" a plain copy of the same bytes {self.beyond_cache.copy_cpu_ratio:.2f} times",
        ]
        held = self.p99_held_ms / self.p99_alone_ms
        text = f"a small tenant's p99 beside a bulk one that a control group holds to {_HELD_SHARE:.0%} of the CPU"
        if self.not_held:
            lines.append(f"not judged: {text}: {self.not_held}")
        else:
            word = "reached" if held <= _MAX_P99_RATIO else "MISSED"
            lines.append(f"{word}: {text}, at most 2 times alone: {held:.2f}")
        processes = _BEYOND_CACHE.num_ranks + _SMALL.num_ranks + 1
        if self.cores >= processes:
            word = "reached" if self.p99_ratio <= _MAX_P99_RATIO else "MISSED"
            lines.append(
                f"{word}: a small tenant's p99 beside a bulk one at most 2 times alone: {self.p99_ratio:.2f}"
            )
        else:
            lines.append(
                f"not judged: a small tenant's p99 beside a bulk one is {self.p99_ratio:.2f} times alone, "
                f"with {processes} processes on {self.cores} cores"
            )
        return lines


def load(fleet: Fleet, problem: problems.Problem) -> None:
    sizes = problem.sizes
    numbers = [sizes.num_ranks, sizes.num_tokens, sizes.hidden, sizes.top_k, sizes.num_experts]
    words = " ".join(map(str, [*numbers, sizes.recv_capacity]))
    fleet.command(f"load {problem.folder} {words}", _RUN_SECONDS)


def times_of(fleet: Fleet, iterations: int, operation: str = "dispatch") -> list[int]:
    """Nanoseconds of an operation, of the slowest rank."""
    answers = fleet.command(f"run {operation} {iterations}", _RUN_SECONDS)
    return np.array([[int(n) for n in answer.split()] for answer in answers]).max(axis=0).tolist()


def at_once(
    runs: list[tuple[Fleet, int]], operation: str = "dispatch"
) -> tuple[float, list[list[int]]]:
    """Runs all at the same time: seconds that it took, and each one's times."""
    times: list[list[int]] = [[] for _ in runs]
    failures: list[Exception] = []

    def run(index: int) -> None:
        try:
            times[index] = times_of(*runs[index], operation)
        except Exception as failure:  # noqa: BLE001 - raised again in the thread that waits
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(runs))]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return time.monotonic() - begin, times


@contextlib.contextmanager
def running(
    name: str, sizes: problems.Sizes, largest: problems.Sizes, place: who.Place, seed: int
) -> Iterator[Fleet]:
    """A tenant of the group whose largest tenant has the sizes `largest`, loaded."""
    folder = place.folder
    environment = {
        "EPD_TENANT": name,
        "EPD_BENCH_MAX_TOKENS": str(largest.num_tokens),
        "EPD_BENCH_MAX_CAPACITY": str(largest.recv_capacity),
    }
    with tempfile.TemporaryDirectory(dir=folder) as data:
        problem = problems.Problem.write(pathlib.Path(data), sizes, seed)
        with who.started(who.EPD_C, sizes.num_ranks, place, f".{name}", environment) as fleet:
            load(fleet, problem)
            yield fleet
            fleet.command("unload", _RUN_SECONDS)


@contextlib.contextmanager
def _copying(name: str, sizes: problems.Sizes, place: who.Place, seed: int) -> Iterator[Fleet]:
    """One process whose two threads copy as many bytes as a tenant of the sizes, in memory of the same size."""
    with tempfile.TemporaryDirectory(dir=place.folder) as data:
        problem = problems.Problem.write(pathlib.Path(data), sizes, seed)
        with who.started(who.MEMCPY, 1, place, f".{name}") as fleet:
            load(fleet, problem)
            yield fleet
            fleet.command("unload", _RUN_SECONDS)


def _iterations(fleet: Fleet, operation: str = "dispatch") -> int:
    """How many fill a turn; it is warm then."""
    times_of(fleet, 20, operation)
    return max(10, int(_TURN_NS / np.median(times_of(fleet, 20, operation))))


@dataclasses.dataclass(frozen=True)
class _Turn:
    """One fleet alone, then two together: operations a second, and by how much the CPU time of one grows."""

    alone_per_s: float
    together_per_s: float
    cpu_ratio: float


def _take_turn(fleets: list[Fleet], turn: int, runs: int, operation: str) -> _Turn:
    one = fleets[turn % 2]  # Either may meet a quieter machine.
    start = one.cpu_seconds()
    seconds, _ = at_once([(one, runs)], operation)
    alone, cpu_alone = runs / seconds, (one.cpu_seconds() - start) / runs
    start = sum(fleet.cpu_seconds() for fleet in fleets)
    seconds, _ = at_once([(fleet, runs) for fleet in fleets], operation)
    cpu = (sum(fleet.cpu_seconds() for fleet in fleets) - start) / (2 * runs)
    return _Turn(alone, 2 * runs / seconds, cpu / cpu_alone)


class _Contest:
    """Two tenants of one size and two copying processes, all loaded; each repetition adds a turn of both."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        sizes: problems.Sizes,
        label: str,
        place: who.Place,
        seed: int,
    ):
        self.tenants = [
            stack.enter_context(running(f"{label}{i}", sizes, _BEYOND_CACHE, place, seed))
            for i in (1, 2)
        ]
        self._copies = [
            stack.enter_context(_copying(f"{label}{i}", sizes, place, seed)) for i in (1, 2)
        ]
        self.runs = _iterations(self.tenants[0])
        self._copy_runs = _iterations(self._copies[0], "rows")
        times_of(self.tenants[1], self.runs)  # Warm, as the first one is.
        times_of(self._copies[1], self._copy_runs, "rows")
        self._turns: list[_Turn] = []
        self._copy_turns: list[_Turn] = []

    def take_turn(self, repetition: int) -> None:
        self._turns.append(_take_turn(self.tenants, repetition, self.runs, "dispatch"))
        self._copy_turns.append(_take_turn(self._copies, repetition, self._copy_runs, "rows"))

    def result(self) -> Pair:
        return Pair(
            float(np.median([turn.alone_per_s for turn in self._turns])),
            float(np.median([turn.together_per_s for turn in self._turns])),
            cpu_ratio=float(np.median([turn.cpu_ratio for turn in self._turns])),
            copy_cpu_ratio=float(np.median([turn.cpu_ratio for turn in self._copy_turns])),
        )


def measure(place: who.Place, seed: int, cores: int) -> Tenants:
    """Raises FleetError if a process failed."""
    percentiles: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        bulk = _Contest(stack, _BULK, "bulk", place, seed)
        beyond_cache = _Contest(stack, _BEYOND_CACHE, "large", place, seed)
        small = stack.enter_context(running("small", _SMALL, _BEYOND_CACHE, place, seed))
        small_runs = _iterations(small)
        for repetition in range(_REPETITIONS):
            bulk.take_turn(repetition)
            beyond_cache.take_turn(repetition)
            _, (by_itself,) = at_once([(small, small_runs)])
            # The bulk tenant runs for longer than the small one, however slow that becomes.
            beside_runs = [
                (small, small_runs // 4),
                (beyond_cache.tenants[0], 3 * beyond_cache.runs),
            ]
            _, (beside, _) = at_once(beside_runs)
            with cpu_limit.held_to(_HELD_SHARE, beyond_cache.tenants[0].pids()) as not_held:
                _, (held, _) = at_once(beside_runs)
            for name, times in (("alone", by_itself), ("beside", beside), ("held", held)):
                for percent in (50, 99):
                    value = float(np.percentile(times, percent)) / 1e6
                    percentiles.setdefault(f"p{percent}_{name}_ms", []).append(value)
    medians = {name: float(np.median(values)) for name, values in percentiles.items()}
    return Tenants(
        bulk=bulk.result(),
        beyond_cache=beyond_cache.result(),
        cores=cores,
        not_held=not_held,
        **medians,
    )
