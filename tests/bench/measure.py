"""Times all contenders at one size, in turn, and checks what they computed."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterable

import contenders as who
import numpy as np
import problem as problems
from fleet import Fleet, cpu_seconds

_LOAD_SECONDS = 300
_RUN_SECONDS = 300
_MAX_ITERATIONS = 200  # Of one turn.
_WARM_UP = 3


@dataclasses.dataclass(frozen=True)
class Effort:
    rounds: int
    turn_seconds: float  # Aim for one contender's turn at one operation.


@dataclasses.dataclass
class Cell:
    """One operation of one contender at one size. Times are those of the slowest rank, per iteration."""

    contender: str
    operation: str
    times_ns: list[int] = dataclasses.field(default_factory=list)
    cpu_seconds: float = 0  # Of all ranks and of epd and its workers, for all of times_ns.

    def percentile_ms(self, percent: int) -> float:
        return float(np.percentile(self.times_ns, percent)) / 1e6

    def cpu_ms(self) -> float:
        """CPU time of one iteration."""
        return self.cpu_seconds * 1e3 / len(self.times_ns)


class WrongResult(RuntimeError):
    """A contender computed something else than the reference."""


class Checker:
    """Compares results with the NumPy reference."""

    def __init__(self, problem: problems.Problem):
        self._problem = problem
        ranks = range(problem.sizes.num_ranks)
        self._expected = {
            "dispatch": [problem.dispatched(rank) for rank in ranks],
            "combine": [problem.combined(rank) for rank in ranks],
        }

    def check(self, contender: who.Contender, fleet: Fleet, operation: str) -> None:
        if not contender.checks_results or operation not in self._expected:
            return
        path = self._problem.folder / "result"
        fleet.command(f"dump {operation} {path}", _RUN_SECONDS)
        tolerance = contender.combine_tolerance if operation == "combine" else None
        for rank, expected in enumerate(self._expected[operation]):
            file = pathlib.Path(f"{path}.{rank}")
            got = np.fromfile(file, problems.BF16)
            file.unlink()
            if got.size == expected.size:
                got = got.reshape(expected.shape)
            found = problems.differences(got, expected, tolerance)
            if found:
                name = f"{contender.label}, {operation}, {self._problem.sizes.name}, rank {rank}"
                raise WrongResult(f"{name}: {found}")


def _run(fleet: Fleet, operation: str, iterations: int) -> list[int]:
    """Nanoseconds of the slowest rank, per iteration."""
    answers = fleet.command(f"run {operation} {iterations}", _RUN_SECONDS)
    per_rank = np.array([[int(word) for word in answer.split()] for answer in answers])
    if per_rank.shape != (fleet.num_ranks, iterations):
        raise WrongResult(f"{fleet.name}: {operation}: expected {iterations} times from each rank")
    return per_rank.max(axis=0).tolist()


def _iterations(fleet: Fleet, operation: str, effort: Effort) -> int:
    warm = min(_run(fleet, operation, _WARM_UP)[1:])
    return int(np.clip(effort.turn_seconds * 1e9 / warm, 1, _MAX_ITERATIONS))


@contextlib.contextmanager
def _loaded(fleet: Fleet, problem: problems.Problem):
    sizes = problem.sizes
    numbers = [sizes.num_ranks, sizes.num_tokens, sizes.hidden, sizes.top_k, sizes.num_experts]
    numbers += [sizes.recv_capacity]
    fleet.command(f"load {problem.folder} " + " ".join(map(str, numbers)), _LOAD_SECONDS)
    yield
    fleet.command("unload", _LOAD_SECONDS)


def measure(
    fleets: dict[who.Contender, Fleet],
    problem: problems.Problem,
    effort: Effort,
    epd_pids: Iterable[int],
) -> list[Cell]:
    """One cell per contender and operation. Contenders take turns, each round begins with another one.

    ``epd_pids``: daemons and workers, whose CPU time is that of who needs epd.

    Raises WrongResult, and FleetError if a process failed.
    """
    checker = Checker(problem)
    with contextlib.ExitStack() as stack:
        for fleet in fleets.values():
            stack.enter_context(_loaded(fleet, problem))
        cells: dict[tuple[who.Contender, str], Cell] = {}
        iterations: dict[tuple[who.Contender, str], int] = {}
        for contender, fleet in fleets.items():
            for operation in contender.operations:
                key = contender, operation
                cells[key] = Cell(contender.name, operation)
                iterations[key] = _iterations(fleet, operation, effort)
                checker.check(contender, fleet, operation)
        keys = list(cells)
        for turn in range(effort.rounds):
            begin = turn * len(keys) // effort.rounds
            for contender, operation in keys[begin:] + keys[:begin]:
                key = contender, operation
                fleet, cell = fleets[contender], cells[key]
                pids = [*fleet.pids(), *(epd_pids if contender.needs_epd else ())]
                before = cpu_seconds(pids)
                cell.times_ns += _run(fleet, operation, iterations[key])
                cell.cpu_seconds += cpu_seconds(pids) - before
                checker.check(contender, fleets[contender], operation)
        return list(cells.values())
