"""What it costs to be looked at: small and large dispatches through an epd that nobody watches, through the same one while its metrics are
scraped each second, its page is open, and a trace is taken, and through one that sends all traces to a collector. Turns are
interleaved; medians over the repetitions count."""

import contextlib
import dataclasses
import os
import pathlib
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent import futures

import contenders as who
import grpc
import numpy as np
import problem as problems
import tenants
from fleet import cpu_seconds

from daemon import Daemon, find_program

_SMALL = problems.Sizes(4, 8, 2048, 4)
_LARGE = problems.Sizes(4, 512, 2048, 4)
_REPETITIONS = 5
# Of a second or more: in a shorter turn the scrape that begins it would count for a second.
_RUNS = {_SMALL: 25_000, _LARGE: 600}
_STAGING_BYTES = 1 << 29
_SCRAPE_SECONDS = 1.0
_PAGE_SECONDS = 2.0  # As often as the page asks.
_SETTLE_SECONDS = 0.5
_MAX_SCRAPED = 0.05
_MAX_TRACED = 0.02
_COLLECTOR = "opentelemetry.proto.collector.trace.v1.TraceService"


@dataclasses.dataclass(frozen=True)
class Watched:
    """p50 in ms of the slowest rank: medians over the repetitions."""

    sizes: problems.Sizes
    alone_ms: float
    scraped_ms: float
    page_ms: float
    traced_ms: float
    exported_ms: float
    cores: int
    # By a dispatch, in microseconds, of each case above in its order: CPU time of epd and its worker, and what the turn took. p50 cannot
    # tell 2 % where all share two cores: there it is one of two times, by whether most ranks met without the worker. So is this: the
    # least of the turns counts.
    epd_us: tuple[float, ...]
    turn_us: tuple[float, ...]

    def shares(self) -> list[float]:
        """Of the machine's CPU time, what epd and its worker take beyond what they take while nobody looks."""
        return [
            max(0.0, used - self.epd_us[0]) / (turn * self.cores)
            for used, turn in zip(self.epd_us, self.turn_us, strict=True)
        ]

    def to_json(self) -> dict[str, object]:
        return dataclasses.asdict(self)

    def table(self) -> str:
        """Markdown."""
        rows = [
            ("nobody looks", self.alone_ms),
            ("metrics scraped each second", self.scraped_ms),
            ("the page open", self.page_ms),
            ("a trace taken", self.traced_ms),
            ("all traces to a collector (otlp_endpoint)", self.exported_ms),
        ]
        return "\n".join(
            [
                f"| {self.sizes.name}, dispatch | p50, ms | ratio | CPU of epd and its worker, us | more of the machine |",
                "| --- | --: | --: | --: | --: |",
                *(
                    f"| {name} | {ms:.4f} | {ms / self.alone_ms:.2f} | {us:.1f} | {share:.1%} |"
                    for (name, ms), us, share in zip(rows, self.epd_us, self.shares(), strict=True)
                ),
            ]
        )

    def marks(self) -> list[str]:
        """Whether the marks were reached: by time where there is a core for each process, else by CPU time."""
        # epd, its worker, and whoever takes the figures.
        processes = self.sizes.num_ranks + 3
        alone = self.cores >= processes
        of = (
            "" if alone else f" of the CPU time of {self.cores} cores, beside {processes} processes"
        )
        shares = self.shares()
        lines = []
        for what, ms, share, most in (
            ("metrics scraped each second", self.scraped_ms, shares[1], _MAX_SCRAPED),
            ("a trace that is taken", self.traced_ms, shares[3], _MAX_TRACED),
            ("a collector", self.exported_ms, shares[4], _MAX_TRACED),
        ):
            cost = ms / self.alone_ms - 1 if alone else share
            word = "reached" if cost <= most else "MISSED"
            lines.append(
                f"{word}: {what}: at most {most:.0%} of a dispatch of {self.sizes.name}: {cost:.1%}{of}"
            )
        return lines


class _Scraper:
    """Reads what an epd serves at `path` every `seconds` while it is at work."""

    def __init__(self, address: str, path: str, seconds: float):
        self._url, self._seconds = f"http://{address}{path}", seconds
        self._on, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            if self._on.wait(0.1):
                urllib.request.urlopen(self._url, timeout=10).read()
                self._over.wait(self._seconds)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        self._on.set()
        yield
        self._on.clear()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


class _Collector:
    """Takes traces as an OpenTelemetry collector does, and counts what came."""

    def __init__(self):
        self.num_exports = 0
        export = grpc.unary_unary_rpc_method_handler(self._export)  # Bytes in, an empty answer.
        self._server = grpc.server(futures.ThreadPoolExecutor(1))
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_COLLECTOR, {"Export": export}),)
        )
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _export(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.num_exports += 1
        return b""

    def stop(self) -> None:
        self._server.stop(None).wait()


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@contextlib.contextmanager
def _tracing(epd: Daemon, group: str) -> Iterator[None]:
    command = [find_program("epctl"), "--socket", epd.socket, "trace", group, "--seconds", "600"]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        time.sleep(_SETTLE_SECONDS)
        yield
        if process.poll() is not None:
            raise RuntimeError(f"epctl trace ended with {process.returncode} before the runs did")
    finally:
        process.kill()
        process.wait()


def measure(place: who.Place, seed: int) -> list[Watched]:
    """Raises FleetError if a process failed."""
    return [_measure(place, seed, sizes) for sizes in (_SMALL, _LARGE)]


def _measure(place: who.Place, seed: int, sizes: problems.Sizes) -> Watched:
    runs = _RUNS[sizes]
    times: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    turns: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(dir=place.folder)))
        address = _free_address()
        collector = _Collector()
        stack.callback(collector.stop)

        def start(name: str, *flags: str) -> tuple[Daemon, tenants.Fleet]:
            own = folder / name
            epd = Daemon(find_program("epd"), own / "epd", _STAGING_BYTES, *flags)
            stack.callback(epd.stop)
            here = dataclasses.replace(place, folder=own, epd_socket=epd.socket)
            return epd, stack.enter_context(tenants.running(name, sizes, sizes, here, seed))

        epd, fleet = start("watched", f"--metrics_listen={address}")
        # An epd of its own: a worker keeps traces for half a minute after somebody has asked for them.
        traced, traced_fleet = start("traced")
        exporter, exporting = start("exporting", f"--otlp_endpoint={collector.endpoint}")
        scraper = _Scraper(address, "/metrics", _SCRAPE_SECONDS)
        stack.callback(scraper.stop)
        page = _Scraper(address, "/figures.json", _PAGE_SECONDS)
        stack.callback(page.stop)
        group = traced.node.call("ListGroups").groups[0].spec.name

        def run(name: str, daemon: Daemon = epd, of: tenants.Fleet = fleet) -> None:
            pids = daemon.pids()
            began, before = time.monotonic(), cpu_seconds(pids)
            took = float(np.median(tenants.times_of(of, runs))) / 1e6
            times.setdefault(name, []).append(took)
            cpu.setdefault(name, []).append((cpu_seconds(pids) - before) / runs * 1e6)
            turns.setdefault(name, []).append((time.monotonic() - began) / runs * 1e6)

        for of in (fleet, traced_fleet, exporting):
            tenants.times_of(of, runs)  # Warm.
        for _ in range(_REPETITIONS):
            run("alone")
            with scraper.at_work():
                run("scraped")
            with page.at_work():
                run("page")
            with _tracing(traced, group):
                run("traced", traced, traced_fleet)
            run("exported", exporter, exporting)
        if collector.num_exports == 0:
            raise RuntimeError("no trace has come to the collector")
    medians = {f"{name}_ms": float(np.median(took)) for name, took in times.items()}
    cores = len(os.sched_getaffinity(0))
    spent, took = (tuple(min(of[name]) for name in times) for of in (cpu, turns))
    return Watched(sizes, **medians, cores=cores, epd_us=spent, turn_us=took)
