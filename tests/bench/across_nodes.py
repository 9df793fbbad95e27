"""Ranks on two and on four nodes: epd against JAX gloo and Open MPI over TCP, between the same network namespaces."""

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
# A rank each: eight processes that share this machine's cores, so nothing is judged.
_MANY_NODES = 4
_EFFORT = Effort(rounds=8, turn_seconds=0.3)
# Of 256 MiB in all, beside which the small ones are timed.
_BULK = problems.Sizes(4, 4096, 2048, 4)
_SMALL = problems.Sizes(4, 8, 2048, 4)
# Who against whom (report.SizeResult.ratios), and how many times as fast at least.
_RATIO_MARKS = {
    _SIZES[0]: (
        ("epd_jax/gloo", "epd.jax beside gloo", 3),
        ("epd_c/mpi", "the C API beside the best MPI", 1.5),
    ),
    _SMALL: (("epd_c/gloo", "the C API beside gloo", 3),),
}
_REPETITIONS = 3
_SMALL_RUNS = 150
_MAX_BESIDE = 3
# Bytes on the link beside the rows that the other node needs: of small operations, and a share of large ones'.
_COUNTED_RUNS = 300
_UNLOAD_SECONDS = 60
_MAX_BYTES_BESIDE_ROWS = 1024
_MAX_SHARE_BESIDE_ROWS = 0.02
# What two cores can serve with time to spare: then it is the link that the two share.
_LINK_RATE = "1gbit"
_MIN_IDLE = 0.2


@dataclasses.dataclass
class Nodes:
    results: list[report.SizeResult]
    skipped: list[str]
    on_many: list[report.SizeResult] = dataclasses.field(default_factory=list)
    beside: "Beside | None" = None
    beside_on_link: "Beside | None" = None
    traffic: list["Traffic"] = dataclasses.field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        return {
            "nodes": 2,
            "sizes": [report.to_json(result) for result in self.results],
            "sizes_on_four_nodes": [report.to_json(result) for result in self.on_many],
            "small_beside_bulk": dataclasses.asdict(self.beside) if self.beside else None,
            "small_beside_bulk_on_link": dataclasses.asdict(self.beside_on_link)
            if self.beside_on_link
            else None,
            "traffic": [dataclasses.asdict(one) for one in self.traffic],
            "skipped": self.skipped,
        }

    def table(self) -> str:
        """Markdown."""
        tables = {
            "Two nodes, a network namespace each": self.results,
            "Four nodes, a rank each": self.on_many,
        }
        return "\n\n".join(
            f"{title}\n\n{report.table(results)}" for title, results in tables.items() if results
        )

    def marks(self) -> list[str]:
        """Whether the marks were reached; a ratio is how many times as fast."""
        lines = []
        for result in self.results:
            lines += _ratio_marks(result)
        for beside in (self.beside, self.beside_on_link):
            lines += beside.marks() if beside else []
        return lines + [traffic.mark() for traffic in self.traffic]


def _ratio_marks(result: report.SizeResult) -> list[str]:
    lines = []
    for operation in ("dispatch", "combine"):
        ratios = result.ratios(operation)
        for name, text, wanted in _RATIO_MARKS[result.sizes]:
            if name not in ratios:
                continue
            word = "reached" if ratios[name] >= wanted else "MISSED"
            lines.append(
                f"{word}: two nodes, {result.sizes.name}, {operation}, {text}, at least {wanted} times as fast: "
                f"{ratios[name]:.2f} times"
            )
    return lines


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes that each node sends for one operation."""

    sizes: problems.Sizes
    operation: str
    rows: tuple[int, ...]  # Of which the other node needs each once.
    sent: tuple[float, ...]  # Messages and the headers of packets included.

    def mark(self) -> str:
        beside = [sent - rows for rows, sent in zip(self.rows, self.sent, strict=True)]
        small = self.sizes == _SMALL
        most = [_MAX_BYTES_BESIDE_ROWS if small else _MAX_SHARE_BESIDE_ROWS * r for r in self.rows]
        reached = all(extra <= limit for extra, limit in zip(beside, most, strict=True))
        figures = ", ".join(
            f"{extra:.0f} above {rows}" for extra, rows in zip(beside, self.rows, strict=True)
        )
        wanted = f"{_MAX_BYTES_BESIDE_ROWS}" if small else f"{_MAX_SHARE_BESIDE_ROWS:.0%}"
        return (
            f"{'reached' if reached else 'MISSED'}: two nodes, {self.sizes.name}, {self.operation}, bytes on the link "
            f"of each node: {figures} of rows, at most {wanted} above"
        )


@dataclasses.dataclass(frozen=True)
class Beside:
    """A small dispatch alone and beside a tenant that moves large ones between the same nodes; medians over repetitions."""

    link: str  # "": as fast as the machine can.
    p50_alone_ms: float
    p50_beside_ms: float
    p99_alone_ms: float
    p99_beside_ms: float
    cores: int
    idle: float  # Share of all cores' time that nobody used, beside.

    def marks(self) -> list[str]:
        """The mark is about what waits for the wire, so it is judged where the cores are not what is short."""
        ratio = self.p99_beside_ms / self.p99_alone_ms
        text = (
            f"two nodes{f' with a link of {self.link}' if self.link else ''}, p99 of {_SMALL.num_tokens} tokens beside "
            f"256 MiB: {self.p99_beside_ms:.2f} ms, {ratio:.2f} times alone "
            f"(p50 {self.p50_beside_ms / self.p50_alone_ms:.2f} times), {self.idle:.0%} of {self.cores} cores idle"
        )
        if self.idle < _MIN_IDLE:
            return [f"not judged: {text}, where at least {_MIN_IDLE:.0%} are wanted"]
        word = "reached" if ratio <= _MAX_BESIDE else "MISSED"
        return [f"{word}: {text}, at most {_MAX_BESIDE}"]


def _cpu_seconds() -> tuple[float, float]:
    """Of all cores since the machine's start: idle, and all."""
    ticks = [int(n) for n in pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return float(ticks[3] + ticks[4]), float(sum(ticks))


def _rows_bytes(routing: np.ndarray, sizes: problems.Sizes, operation: str) -> tuple[int, ...]:
    """What each node has of rows that the other one needs: a dispatch's tokens once, a combine's routes each."""
    ranks_per_node = sizes.num_ranks // 2
    source = np.arange(sizes.num_ranks)[:, None, None] // ranks_per_node
    owner = routing * sizes.num_ranks // sizes.num_experts // ranks_per_node
    crosses = owner != source
    if operation == "dispatch":
        tokens = crosses.any(axis=-1).reshape(2, -1).sum(axis=-1)
        return tuple(int(n) * sizes.hidden * 2 for n in tokens)
    return tuple(int((crosses & (owner == n)).sum()) * sizes.hidden * 2 for n in (0, 1))


def _count_traffic(
    network: namespaces.Network, fleet: Fleet, problem: problems.Problem
) -> Iterator[Traffic]:
    sizes = problem.sizes
    runs = _COUNTED_RUNS if sizes == _SMALL else _COUNTED_RUNS // 10
    tenants.load(fleet, problem)
    for operation in ("dispatch", "combine"):
        tenants.times_of(fleet, 20, operation)  # Warm.
        before = [network.sent_bytes(node) for node in (0, 1)]
        tenants.times_of(fleet, runs, operation)
        sent = [(network.sent_bytes(node) - before[node]) / runs for node in (0, 1)]
        yield Traffic(sizes, operation, _rows_bytes(problem.routing, sizes, operation), tuple(sent))
    fleet.command("unload", _UNLOAD_SECONDS)


def _traffic(network: namespaces.Network, place: who.Place, seed: int) -> list[Traffic]:
    found = []
    with who.started(who.EPD_C, _SMALL.num_ranks, place, ".traffic") as fleet:
        for sizes in _SIZES:
            with tempfile.TemporaryDirectory(dir=place.folder) as data:
                problem = problems.Problem.write(pathlib.Path(data), sizes, seed)
                found += _count_traffic(network, fleet, problem)
    return found


def _small_beside_bulk(place: who.Place, seed: int, link: str = "") -> Beside:
    percentiles: dict[str, list[float]] = {}
    idle, busy_and_idle = 0.0, 0.0
    with (
        tenants.running(f"bulk{link}", _BULK, _BULK, place, seed) as bulk,
        tenants.running(f"small{link}", _SMALL, _BULK, place, seed) as small,
    ):
        one_bulk = np.median(tenants.times_of(bulk, 3))
        tenants.times_of(small, _SMALL_RUNS)  # Warm.
        for _ in range(_REPETITIONS):
            by_itself = tenants.times_of(small, _SMALL_RUNS)
            # The large ones go on for longer than the small ones, however slow these become.
            bulk_runs = 5 + int(10 * _SMALL_RUNS * np.median(by_itself) / one_bulk)
            before = _cpu_seconds()
            _, (times, _) = tenants.at_once([(small, _SMALL_RUNS), (bulk, bulk_runs)])
            after = _cpu_seconds()
            idle += after[0] - before[0]
            busy_and_idle += after[1] - before[1]
            for name, values in (("alone", by_itself), ("beside", times)):
                for percent in (50, 99):
                    value = float(np.percentile(values, percent)) / 1e6
                    percentiles.setdefault(f"p{percent}_{name}_ms", []).append(value)
    cores = len(os.sched_getaffinity(0))
    medians = {name: float(np.median(values)) for name, values in percentiles.items()}
    return Beside(link=link, cores=cores, idle=idle / busy_and_idle, **medians)


@contextlib.contextmanager
def nodes_in(
    network: namespaces.Network,
    binaries: pathlib.Path,
    folder: pathlib.Path,
    staging: int,
    a_core_each: bool = False,
) -> Iterator[who.Place]:
    """An epd on each node; what runs there has ``a_core_each`` of its own, or all of them."""
    with contextlib.ExitStack() as stack:
        nodes, pids, coordinator = [], [], "--start_grace=0"
        cores = sorted(os.sched_getaffinity(0))
        for i, address in enumerate(network.addresses):
            core = ("taskset", "--cpu-list", str(cores[i % len(cores)])) if a_core_each else ()
            inside = (*core, *network.named(i))
            flags = [f"--node=n{i}", f"--listen={address}:0", coordinator]
            daemon = Daemon(find_program("epd"), folder / f"epd{i}", staging, *flags, inside=inside)
            stack.callback(daemon.stop)
            if i == 0:
                coordinator = f"--coordinator={daemon.listen_address()}"
            pids += daemon.pids()
            nodes.append(who.Node(f"n{i}", address, inside, daemon.socket))
        yield who.Place(binaries, folder, "", tuple(pids), tuple(nodes))


def measure_nodes(
    binaries: pathlib.Path, folder: pathlib.Path, wanted: list[who.Contender], seed: int
) -> Nodes:
    """Raises FleetError and WrongResult as the rest of the benchmark."""
    if why := namespaces.allowed():
        return Nodes([], [f"two nodes: network namespaces are not allowed ({why})"])
    found = Nodes([], [])
    with namespaces.Network(2) as network, nodes_in(network, binaries, folder, 2 << 30) as place:
        found.results = _run_sizes(found, place, _SIZES, wanted, seed)
        if who.EPD_C in wanted:
            found.traffic = _traffic(network, place, seed)
            found.beside = _small_beside_bulk(place, seed)
            if why := network.limit_links(_LINK_RATE):
                found.skipped.append(f"two nodes with a link of {_LINK_RATE}: {why}")
            else:
                found.beside_on_link = _small_beside_bulk(place, seed, _LINK_RATE)
    with (
        namespaces.Network(_MANY_NODES) as network,
        nodes_in(network, binaries, folder / "many", 1 << 30) as place,
    ):
        found.on_many = _run_sizes(found, place, (_SMALL,), wanted, seed)
    return found


def _run_sizes(
    found: Nodes,
    place: who.Place,
    sizes_of_all: tuple[problems.Sizes, ...],
    wanted: list[who.Contender],
    seed: int,
) -> list[report.SizeResult]:
    results = []
    with contextlib.ExitStack() as stack:
        fleets: dict[who.Contender, Fleet] = {}
        for contender in (c for c in _CONTENDERS if c in wanted):
            if reason := who.why_missing(contender, place):
                found.skipped.append(f"{len(place.nodes)} nodes: {contender.label}: {reason}")
                continue
            fleets[contender] = stack.enter_context(
                who.started(contender, sizes_of_all[0].num_ranks, place, ".nodes")
            )
        for sizes in sizes_of_all:
            with tempfile.TemporaryDirectory(dir=place.folder) as data:
                problem = problems.Problem.write(pathlib.Path(data), sizes, seed)
                cells = measure(fleets, problem, _EFFORT, place.epd_pids)
            results.append(report.SizeResult(sizes, cells, True, {}))
    return results
