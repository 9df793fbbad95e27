"""Ranks on two nodes: epd against JAX gloo and Open MPI over TCP, between the same two network namespaces."""

import contextlib
import dataclasses
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator

import contenders as who
import numpy as np
import problem as problems
import report
import tenants
from fleet import Fleet
from measure import Effort, measure

from daemon import Daemon, find_program

_ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(_ROOT / "tests" / "integration" / "daemon"))

import namespaces  # noqa: E402 - a folder of helpers that tests share.

_SIZES = (problems.Sizes(4, 512, 2048, 4), problems.Sizes(4, 8, 2048, 4))
_CONTENDERS = (who.EPD_JAX, who.EPD_C, who.GLOO, who.OMPI)
_EFFORT = Effort(rounds=8, turn_seconds=0.3)
_MIN_GLOO = 3
_MAX_MPI = 1.1

# Of 256 MiB in all, beside which the small ones are timed.
_BULK = problems.Sizes(4, 4096, 2048, 4)
_SMALL = problems.Sizes(4, 8, 2048, 4)
_REPETITIONS = 3
_SMALL_RUNS = 150
_MAX_BESIDE = 3


@dataclasses.dataclass
class Nodes:
    results: list[report.SizeResult]
    skipped: list[str]
    beside: "Beside | None" = None

    def to_json(self) -> dict[str, object]:
        return {
            "nodes": 2,
            "sizes": [report.to_json(result) for result in self.results],
            "small_beside_bulk": dataclasses.asdict(self.beside) if self.beside else None,
            "skipped": self.skipped,
        }

    def table(self) -> str:
        """Markdown."""
        if not self.results:
            return ""
        return "Two nodes, a network namespace each\n\n" + report.table(self.results)

    def marks(self) -> list[str]:
        """Whether the marks were reached; a ratio is how many times as fast."""
        lines = []
        for result in self.results:
            if result.sizes != _SIZES[0]:
                continue
            for operation in ("dispatch", "combine"):
                ratios = result.ratios(operation)
                for name, text, wanted in (
                    ("epd_jax/gloo", f"at least {_MIN_GLOO} x gloo", _MIN_GLOO),
                    ("epd_c/ompi", f"C API at most {_MAX_MPI} x Open MPI's time", 1 / _MAX_MPI),
                ):
                    if name in ratios:
                        word = "reached" if ratios[name] >= wanted else "MISSED"
                        lines.append(
                            f"{word}: two nodes, {operation}, {text}: {ratios[name]:.2f} times as fast"
                        )
        return lines + (self.beside.marks() if self.beside else [])


@dataclasses.dataclass(frozen=True)
class Beside:
    """A small dispatch alone and beside a tenant that moves large ones between the same nodes; medians of p99."""

    p99_alone_ms: float
    p99_beside_ms: float
    cores: int

    def marks(self) -> list[str]:
        ratio = self.p99_beside_ms / self.p99_alone_ms
        text = (
            f"two nodes, p99 of {_SMALL.num_tokens} tokens beside 256 MiB: {self.p99_beside_ms:.2f} ms, "
            f"{ratio:.2f} times alone"
        )
        processes = _BULK.num_ranks + _SMALL.num_ranks + 2
        if self.cores < processes:
            return [f"not judged: {text}, with {processes} processes on {self.cores} cores"]
        word = "reached" if ratio <= _MAX_BESIDE else "MISSED"
        return [f"{word}: {text}, at most {_MAX_BESIDE}"]


def _small_beside_bulk(place: who.Place, seed: int) -> Beside:
    alone, beside = [], []
    with (
        tenants.running("bulk", _BULK, _BULK, place, seed) as bulk,
        tenants.running("small", _SMALL, _BULK, place, seed) as small,
    ):
        one_bulk = np.median(tenants.times_of(bulk, 3))
        for _ in range(_REPETITIONS):
            by_itself = tenants.times_of(small, _SMALL_RUNS)
            alone.append(np.percentile(by_itself, 99) / 1e6)
            # The large ones go on for longer than the small ones, however slow these become.
            bulk_runs = 5 + int(10 * _SMALL_RUNS * np.median(by_itself) / one_bulk)
            _, (times, _) = tenants.at_once([(small, _SMALL_RUNS), (bulk, bulk_runs)])
            beside.append(np.percentile(times, 99) / 1e6)
    cores = len(os.sched_getaffinity(0))
    return Beside(float(np.median(alone)), float(np.median(beside)), cores)


@contextlib.contextmanager
def _two_nodes(binaries: pathlib.Path, folder: pathlib.Path, staging: int) -> Iterator[who.Place]:
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(namespaces.Network(2))
        nodes, coordinator = [], "--start_grace=0"
        for i, address in enumerate(network.addresses):
            inside = network.named(i)
            flags = [f"--node=n{i}", f"--listen={address}:0", coordinator]
            daemon = Daemon(find_program("epd"), folder / f"epd{i}", staging, *flags, inside=inside)
            stack.callback(daemon.stop)
            if i == 0:
                coordinator = f"--coordinator={daemon.listen_address()}"
            nodes.append(who.Node(f"n{i}", address, inside, daemon.socket))
        yield who.Place(binaries, folder, "", tuple(nodes))


def measure_nodes(
    binaries: pathlib.Path, folder: pathlib.Path, wanted: list[who.Contender], seed: int
) -> Nodes:
    """Raises FleetError and WrongResult as the rest of the benchmark."""
    if why := namespaces.allowed():
        return Nodes([], [f"two nodes: network namespaces are not allowed ({why})"])
    found = Nodes([], [])
    with _two_nodes(binaries, folder, 2 << 30) as place:
        _run_sizes(found, place, [c for c in _CONTENDERS if c in wanted], seed)
        if who.EPD_C in wanted:
            found.beside = _small_beside_bulk(place, seed)
    return found


def _run_sizes(found: Nodes, place: who.Place, wanted: list[who.Contender], seed: int) -> None:
    with contextlib.ExitStack() as stack:
        fleets: dict[who.Contender, Fleet] = {}
        for contender in wanted:
            if reason := who.why_missing(contender, place):
                found.skipped.append(f"two nodes: {contender.label}: {reason}")
                continue
            fleets[contender] = stack.enter_context(
                who.started(contender, _SIZES[0].num_ranks, place, ".nodes")
            )
        for sizes in _SIZES:
            with tempfile.TemporaryDirectory(dir=place.folder) as data:
                problem = problems.Problem.write(pathlib.Path(data), sizes, seed)
                cells = measure(fleets, problem, _EFFORT)
            found.results.append(report.SizeResult(sizes, cells, True, {}))
