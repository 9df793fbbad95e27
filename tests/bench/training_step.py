"""What the exchange adds to a training step of MoE layers: through epd, over gloo, and with none, in one run.

Exposed is the step less the step without exchange, over the latter. ``python tests/bench/training_step.py BINARIES`` measures it
alone, with an epd of its own; the benchmark does the same.
"""

import contextlib
import dataclasses
import os
import pathlib
import sys
import tempfile

import contenders as who
import numpy as np
import problem as problems
from fleet import Fleet, cpu_seconds
from measure import WrongResult
from tenants import load, times_of

from daemon import Daemon, find_program

_HIDDEN, _TOP_K = 1024, 4
_TOKENS = (512, 64, 8)
_ROUNDS, _TURN_NS = 5, 1_000_000_000
_SECONDS = 240
# Sums in another order, in bfloat16.
_TOLERANCE = 2e-2
_CONTENDERS = who.TRAINING.operations
# By ranks a core: what may be exposed of 512, 64 and 8 tokens.
_MARKS = {1: (0.05, 0.08, 0.25), 2: (0.06, 0.15, 0.40)}


@dataclasses.dataclass(frozen=True)
class Step:
    """By contender: ms of the slowest rank (p50), and CPU time in ms of all ranks and of what serves them."""

    sizes: problems.Sizes
    ms: dict[str, float]
    cpu_ms: dict[str, float]

    def exposed(self, contender: str) -> float:
        return self.ms[contender] / self.ms["none"] - 1

    def row(self) -> str:
        """Of a Markdown table."""
        times = " | ".join(f"{self.ms[name]:.2f} ({self.cpu_ms[name]:.2f})" for name in _CONTENDERS)
        return f"| {self.sizes.name} | {times} | {self.exposed('epd'):.0%} | {self.exposed('gloo'):.0%} |"


@dataclasses.dataclass(frozen=True)
class TrainingSteps:
    steps: list[Step]
    cores: int

    def to_json(self) -> list[dict[str, object]]:
        return [dataclasses.asdict(step) for step in self.steps]

    def table(self) -> str:
        """Markdown."""
        return "\n".join(
            [
                "| training step, ms (CPU time) | epd.jax | gloo | no exchange | exposed, epd | exposed, gloo |",
                "| ---------------------------- | ------: | ---: | ----------: | -----------: | ------------: |",
                *(step.row() for step in self.steps),
            ]
        )

    def marks(self) -> list[str]:
        """Whether the marks were reached, where there is one for so many ranks on so many cores."""
        lines = []
        for step in self.steps:
            exposed = step.exposed("epd")
            text = f"{step.sizes.name}: of a training step exposed"
            marks = _MARKS.get(step.sizes.num_ranks // self.cores)
            if marks is None or step.sizes.num_ranks % self.cores:
                lines.append(f"not judged: {text}: {exposed:.0%}, with {self.cores} cores")
                continue
            most = dict(zip(_TOKENS, marks, strict=True))[step.sizes.num_tokens]
            word = "reached" if exposed <= most else "MISSED"
            lines.append(f"{word}: {text} at most {most:.0%}: {exposed:.0%}")
        return lines


def _check(
    fleet: Fleet, folder: pathlib.Path, sizes: problems.Sizes, names: tuple[str, str]
) -> None:
    """What came out of the step, and the gradients, are the same both ways."""
    results = {}
    for name in names:
        path = folder / f"step-{name}"
        fleet.command(f"dump {name} {path}", _SECONDS)
        ranks = range(sizes.num_ranks)
        results[name] = np.stack([np.fromfile(f"{path}.{rank}", np.float32) for rank in ranks])
    one, other = (results[name] for name in names)
    if not np.allclose(one, other, rtol=_TOLERANCE) or not one.all():
        raise WrongResult(
            f"{sizes.name}: a training step, {names[0]}, gave {one.tolist()}, {names[1]} {other.tolist()}"
        )


def measure_step(
    sizes: problems.Sizes,
    place: who.Place,
    fleet: Fleet,
    seed: int,
    names: tuple[str, ...] = _CONTENDERS,
    compared: tuple[str, str] = ("epd", "gloo"),
) -> Step:
    """The steps of these ``names``, by turns. Raises as ``measure``."""
    times: dict[str, list[int]] = {name: [] for name in names}
    cpu = dict.fromkeys(names, 0.0)
    with tempfile.TemporaryDirectory(dir=place.folder) as data:
        problem = problems.Problem.write(pathlib.Path(data), sizes, seed)
        load(fleet, problem)
        runs = {}
        for name in names:
            warm = times_of(fleet, 3, name)
            runs[name] = int(np.clip(_TURN_NS / min(warm), 2, 200))
        _check(fleet, problem.folder, sizes, compared)
        for turn in range(_ROUNDS):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                pids = [*fleet.pids(), *(place.epd_pids if name == "epd" else ())]
                before = cpu_seconds(pids)
                times[name] += times_of(fleet, runs[name], name)
                cpu[name] += cpu_seconds(pids) - before
        _check(fleet, problem.folder, sizes, compared)
        fleet.command("unload", _SECONDS)
    ms = {name: float(np.median(took)) / 1e6 for name, took in times.items()}
    cpu_ms = {name: cpu[name] * 1e3 / len(took) for name, took in times.items()}
    return Step(sizes, ms, cpu_ms)


def measure(place: who.Place, seed: int) -> TrainingSteps:
    """Two ranks, then four. Raises FleetError if a process failed, WrongResult if epd's step is not gloo's."""
    steps = []
    for num_ranks in (2, 4):
        with contextlib.ExitStack() as stack:
            fleet = stack.enter_context(who.started(who.TRAINING, num_ranks, place))
            for tokens in _TOKENS:
                sizes = problems.Sizes(num_ranks, tokens, _HIDDEN, _TOP_K)
                steps.append(measure_step(sizes, place, fleet, seed))
    return TrainingSteps(steps, len(os.sched_getaffinity(0)))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="epdb", dir="/tmp") as name:
        folder = pathlib.Path(name)
        daemon = Daemon(find_program("epd"), folder / "epd", 1 << 30)
        try:
            pids = tuple(daemon.pids())
            measured = measure(
                who.Place(pathlib.Path(sys.argv[1]).resolve(), folder, daemon.socket, pids), 1
            )
        finally:
            daemon.stop()
    print(measured.table(), *measured.marks(), sep="\n")


if __name__ == "__main__":
    main()
