"""The benchmark: one run, all contenders in turn at every size. tests/bench/run builds and calls it."""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import sys
import tempfile
import time

import across_nodes
import contenders as who
import marks as size_marks
import mpis
import overlap
import problem as problems
import ragged
import report
import tenants
import training_step
import watched
from fleet import Fleet, FleetError
from measure import Effort, WrongResult, measure

from daemon import Daemon, find_program

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_MANY_GROUPS = 64
_GROUP_RUNS = 256
_MAX_PEAK_RATIO = 1.1

# Memory that a size needs, in payloads: buffers, staging and the reference of all contenders at once, or of the largest
# alone (gloo's, whose XLA program holds the rows of every step).
_PAYLOADS_TOGETHER = 28
_PAYLOADS_OF_ANOTHER_MPI = 3
_PAYLOADS_ALONE = 12
_MEMORY_SHARE = 0.85

_SECONDS_OF_ANOTHER_MPI = 3 * 60


@dataclasses.dataclass(frozen=True)
class Plan:
    sizes: list[problems.Sizes]
    effort: Effort
    budget_seconds: float


def full_plan() -> Plan:
    """The sizes of the mark first: what the time budget leaves out are the largest."""
    shapes = [
        (tokens, hidden, top_k)
        for tokens in (512, 8, 64, 4096)
        for hidden in (2048, 7168)
        for top_k in (4, 8)
    ]
    sizes = [problems.Sizes(ranks, *shape) for ranks in (4, 2) for shape in shapes]
    return Plan(sizes, Effort(rounds=5, turn_seconds=0.12), 19 * 60)


def quick_plan() -> Plan:
    shapes = [
        (4, 512, 2048, 4),
        (4, 8, 2048, 4),
        (4, 64, 7168, 8),
        (2, 512, 2048, 4),
        (2, 8, 2048, 4),
    ]
    sizes = [problems.Sizes(*shape) for shape in shapes]
    return Plan(sizes, Effort(rounds=5, turn_seconds=0.1), 150)


def chosen_plan(sizes: list[problems.Sizes]) -> Plan:
    return Plan(sizes, Effort(rounds=10, turn_seconds=0.1), 19 * 60)


def available_bytes() -> int:
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no MemAvailable in /proc/meminfo")


class Bench:
    def __init__(self, options: argparse.Namespace, plan: Plan, folder: pathlib.Path):
        self._options = options
        self._plan = plan
        self._folder = folder
        self._budget_seconds = plan.budget_seconds + len(options.mpi) * _SECONDS_OF_ANOTHER_MPI
        self._began = self._deadline = (
            0.0  # Of the sizes; what comes before them takes no part of their budget.
        )
        self._daemon: Daemon | None = None
        self.results: list[report.SizeResult] = []
        self.skipped: list[str] = []
        self.versions: dict[str, str] = {}
        self.memory_case: dict[str, float] = {}
        self.tenants: tenants.Tenants | None = None
        self.ragged: ragged.Ragged | None = None
        self.training: training_step.TrainingSteps | None = None
        self.overlap: overlap.Overlap | None = None
        self.watched: list[watched.Watched] = []
        self.nodes: across_nodes.Nodes | None = None

    def run(self) -> None:
        wanted = [c for c in who.ALL if c.name in self._options.contenders]
        for contender in wanted:
            if contender.name in mpis.PACKAGES:
                mpis.prepare(contender.name)
        with contextlib.ExitStack() as stack:
            if any(contender.needs_epd for contender in wanted):
                staging = available_bytes() // 3
                program = find_program("epd")
                self._daemon = Daemon(program, self._folder / "epd", staging)
                stack.callback(self._daemon.stop)
                self.versions["epd"] = self._daemon.status().version
                if not self._options.sizes:
                    self._run_parts(wanted)
            self._began = time.monotonic()
            self._deadline = self._began + self._budget_seconds
            for num_ranks in sorted({s.num_ranks for s in self._plan.sizes}, reverse=True):
                self._run_ranks(num_ranks, wanted)
        if not self._options.sizes:
            self._run_nodes(wanted)

    def _run_parts(self, wanted: list[who.Contender]) -> None:
        """What is measured beside the sizes, on this machine."""
        self._run_many_groups()
        place, seed = self._place(), self._options.seed
        if who.EPD_C in wanted:
            self.tenants = tenants.measure(place, seed, len(os.sched_getaffinity(0)))
            self.watched = watched.measure(place, seed)
        if who.EPD_JAX in wanted:
            self.ragged = ragged.measure(place.epd_socket, self._folder, place.binaries)
        if {who.EPD_JAX, who.GLOO} <= set(wanted) and not self._options.quick:
            self.training = training_step.measure(place, seed)

    def _run_nodes(self, wanted: list[who.Contender]) -> None:
        options = self._options
        self.nodes = across_nodes.measure_nodes(
            options.binaries, self._folder, wanted, options.seed
        )
        if who.EPD_JAX in wanted and not options.quick:
            self.overlap = overlap.measure(options.binaries, self._folder, options.seed)
            if self.overlap.skipped:
                self._skip(self.overlap.skipped)
        for reason in self.nodes.skipped:
            self._skip(reason)

    def _place(self) -> who.Place:
        if not self._daemon:
            return who.Place(self._options.binaries, self._folder, "")
        pids = tuple(self._daemon.pids())
        return who.Place(self._options.binaries, self._folder, self._daemon.socket, pids)

    def _run_ranks(self, num_ranks: int, wanted: list[who.Contender]) -> None:
        with contextlib.ExitStack() as stack:
            fleets: dict[who.Contender, Fleet] = {}
            for contender in wanted:
                reason = who.why_missing(contender, self._place())
                if reason:
                    self._skip(f"{contender.label}, {num_ranks} ranks: {reason}")
                    continue
                fleets[contender] = stack.enter_context(
                    who.started(contender, num_ranks, self._place())
                )
                for word in fleets[contender].command("versions", 30)[0].split():
                    name, _, version = word.partition("=")
                    self.versions[name] = version
            for sizes in self._plan.sizes:
                if sizes.num_ranks == num_ranks:
                    self._run_size(sizes, fleets)

    def _run_size(self, sizes: problems.Sizes, fleets: dict[who.Contender, Fleet]) -> None:
        left = self._deadline - time.monotonic()
        if left < 0:
            self._skip(f"{sizes.name}: the time budget is used up")
            return
        have = available_bytes() * _MEMORY_SHARE
        payloads = _PAYLOADS_TOGETHER + len(self._options.mpi) * _PAYLOADS_OF_ANOTHER_MPI
        together = payloads * sizes.payload_bytes <= have
        if not together and _PAYLOADS_ALONE * sizes.payload_bytes > have:
            need = _PAYLOADS_ALONE * sizes.payload_bytes / 2**30
            self._skip(f"{sizes.name}: needs {need:.0f} GiB, {have / 2**30:.0f} are available")
            return
        begin = time.monotonic()
        turns = [fleets] if together else [{c: f} for c, f in fleets.items()]
        with tempfile.TemporaryDirectory(dir=self._folder) as data:
            problem = problems.Problem.write(pathlib.Path(data), sizes, self._options.seed)
            pids, effort = self._place().epd_pids, self._effort(sizes)
            cells = [cell for turn in turns for cell in measure(turn, problem, effort, pids)]
        memory = self._daemon.memory() if self._daemon else {}
        self.results.append(report.SizeResult(sizes, cells, together, memory))
        now = time.monotonic()
        progress = report.progress(
            len(self.results), len(self._plan.sizes), now - self._began, self._deadline - now
        )
        print(f"bench: {sizes.name}: {now - begin:.1f} s; {progress}", file=sys.stderr, flush=True)

    def _effort(self, sizes: problems.Sizes) -> Effort:
        """Checking and loading the largest sizes takes longer than measuring them: fewer rounds."""
        effort = self._plan.effort
        large = sizes.payload_bytes > 2**28
        return dataclasses.replace(effort, rounds=2) if large else effort

    def _skip(self, reason: str) -> None:
        self.skipped.append(reason)
        print(f"bench: skipped: {reason}", file=sys.stderr, flush=True)

    def _run_many_groups(self) -> None:
        """Staging of 64 groups of one process that run in turn, over that of one."""
        sizes = problems.Sizes(2, 512, 2048, 4)
        with tempfile.TemporaryDirectory(dir=self._folder) as data:
            problem = problems.Problem.write(pathlib.Path(data), sizes, self._options.seed)
            fleet = Fleet("epd_groups", 1, self._folder)
            try:
                binary = self._options.binaries / "bench_epd_groups"
                who.start_plain(fleet, binary, self._place())
                fleet.wait_for_ranks(30)
                numbers = [2, sizes.num_tokens, sizes.hidden, sizes.top_k, sizes.num_experts]
                words = " ".join(map(str, [*numbers, sizes.recv_capacity]))
                fleet.command(f"load {problem.folder} {words}", 60)
                peaks = []
                for count in (1, _MANY_GROUPS):
                    fleet.command(f"groups {count} {_GROUP_RUNS}", 120)
                    peaks.append(self._daemon.memory()["staging_peak_bytes"])
                fleet.command("unload", 60)
            finally:
                fleet.stop()
        if peaks[0] == 0:
            raise WrongResult("the daemon reports no staging after a dispatch")
        self.memory_case = {
            "groups": _MANY_GROUPS,
            "peak_bytes_of_one": peaks[0],
            "peak_bytes_of_all": peaks[1],
            "ratio": peaks[1] / peaks[0],
        }


def _marks(bench: Bench, cores: int) -> list[str]:
    """What was to be reached, and whether this run did."""
    lines = size_marks.lines(bench.results, cores)
    if bench.memory_case:
        ratio = bench.memory_case["ratio"]
        word = "reached" if ratio <= _MAX_PEAK_RATIO else "MISSED"
        lines.append(
            f"{word}: staging of 64 groups at most 1.1 times that of one: {ratio:.2f} "
            f"({bench.memory_case['peak_bytes_of_all'] / 2**20:.1f} MiB)"
        )
    if bench.tenants:
        lines += bench.tenants.marks()
    for one in bench.watched:
        lines += one.marks()
    if bench.ragged:
        lines += bench.ragged.marks()
    if bench.training:
        lines += bench.training.marks()
    if bench.nodes:
        lines += bench.nodes.marks()
    return lines


def _memory_line(memory: dict[str, int]) -> str:
    """After the last size; the peak is that of the largest so far."""
    return (
        f"epd's memory: staging at most {memory['staging_peak_bytes'] / 2**20:.1f} MiB, "
        f"now {memory['staging_committed_bytes'] / 2**20:.1f} MiB; "
        f"private to epd and its worker {memory['private_bytes'] / 2**20:.1f} MiB"
    )


def _sizes(text: str) -> list[problems.Sizes]:
    try:
        return [problems.Sizes.parse(shape) for shape in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parse(arguments: list[str]) -> argparse.Namespace:
    names = [contender.name for contender in who.ALL]
    mpis_of_pypi = list(mpis.PACKAGES)
    when_asked = {who.EPD_C_WORKER.name, *mpis_of_pypi}
    parser = argparse.ArgumentParser(prog="tests/bench/run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="five sizes, under eight minutes")
    parser.add_argument(
        "--contenders",
        type=lambda text: text.split(","),
        default=[name for name in names if name not in when_asked],
        help=f"comma-separated, of {','.join(names)} (default: all but epd_c_worker and the MPIs of --mpi)",
    )
    parser.add_argument(
        "--mpi",
        type=lambda text: text.split(","),
        default=[],
        help=f"other MPIs beside, of {','.join(mpis_of_pypi)}: installed from PyPI into out/mpi",
    )
    parser.add_argument(
        "--sizes",
        type=_sizes,
        help="comma-separated, instead of the plan: ranks x tokens x hidden x top_k, as 4x8x2048x4",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path, default=_ROOT / "out" / "bench.json")
    parser.add_argument("--binaries", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = set(options.contenders) - set(names)
    if unknown:
        parser.error(f"unknown contenders {sorted(unknown)}, expected some of {names}")
    if unknown := set(options.mpi) - set(mpis_of_pypi):
        parser.error(f"--mpi: unknown {sorted(unknown)}, expected some of {mpis_of_pypi}")
    options.contenders += [name for name in options.mpi if name not in options.contenders]
    return options


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    plan = quick_plan() if options.quick else full_plan()
    if options.sizes:
        plan = chosen_plan(options.sizes)
    facts = {
        "date": report.date(),
        "commit": report.commit(),
        "machine": report.machine(),
        "seed": options.seed,
        "quick": options.quick,
    }
    error = ""
    with tempfile.TemporaryDirectory(prefix="epd-bench-") as folder:
        bench = Bench(options, plan, pathlib.Path(folder))
        try:
            bench.run()
        except (FleetError, WrongResult, mpis.MpiError) as failure:
            error = str(failure)
    marks = _marks(bench, len(os.sched_getaffinity(0)))
    whole = {
        **facts,
        "versions": bench.versions,
        "error": error,
        "skipped": bench.skipped,
        "marks": marks,
        "many_groups": bench.memory_case,
        "tenants": bench.tenants.to_json() if bench.tenants else None,
        "watched": [one.to_json() for one in bench.watched],
        "ragged_all_to_all": bench.ragged.to_json() if bench.ragged else None,
        "training_step": bench.training.to_json() if bench.training else None,
        "overlap": bench.overlap.to_json() if bench.overlap else None,
        "several_nodes": bench.nodes.to_json() if bench.nodes else None,
        "sizes": [report.to_json(result) for result in bench.results],
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(whole, indent=1) + "\n")
    if bench.results:
        print(report.table(bench.results))
        print(report.cpu_table(bench.results))
        print(
            f"{facts['machine']['cpu']}, {facts['machine']['cores']} cores; {facts['date']}; {facts['commit'][:12]}"
        )
    if bench.tenants:
        print(bench.tenants.table())
    for one in bench.watched:
        print(one.table())
    if bench.ragged:
        print(bench.ragged.table())
    if bench.training:
        print(bench.training.table())
    if bench.overlap:
        print(bench.overlap.table())
    if bench.nodes:
        print(bench.nodes.table())
    if bench.results and bench.results[-1].daemon_memory:
        print(_memory_line(bench.results[-1].daemon_memory))
    print("\n".join(marks + [f"skipped: {reason}" for reason in bench.skipped]))
    print(f"json: {options.json}")
    if error:
        print(f"bench: error: {error}", file=sys.stderr)
    return 1 if error else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
