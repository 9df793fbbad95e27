"""What it costs to be looked at: small dispatches through an epd that nobody watches, and through one whose metrics are
scraped each second while a trace is taken. Turns are interleaved; medians over the repetitions count."""

import contextlib
import dataclasses
import pathlib
import socket
import subprocess
import tempfile
import threading
import urllib.request
from collections.abc import Iterator

import contenders as who
import numpy as np
import problem as problems
import tenants

from daemon import Daemon, find_program

_SIZES = problems.Sizes(4, 8, 2048, 4)
_REPETITIONS = 5
# Of a second or more: in a shorter turn the scrape that begins it would count for a second.
_RUNS = 25_000
_STAGING_BYTES = 1 << 28
_SCRAPE_SECONDS = 1.0
_MAX_RATIO = 1.05


@dataclasses.dataclass(frozen=True)
class Watched:
    """p50 in ms of the slowest rank: medians over the repetitions."""

    alone_ms: float
    scraped_ms: float
    traced_ms: float

    def to_json(self) -> dict[str, float]:
        return dataclasses.asdict(self)

    def table(self) -> str:
        """Markdown."""
        rows = [("nobody looks", self.alone_ms), ("metrics scraped each second", self.scraped_ms)]
        rows.append(("the same, and a trace", self.traced_ms))
        return "\n".join(
            [
                f"| {_SIZES.name}, dispatch, p50 | ms | ratio |",
                "| --- | --: | --: |",
                *(f"| {name} | {ms:.4f} | {ms / self.alone_ms:.2f} |" for name, ms in rows),
            ]
        )

    def marks(self) -> list[str]:
        """Whether the marks were reached."""
        ratio = self.scraped_ms / self.alone_ms
        word = "reached" if ratio <= _MAX_RATIO else "MISSED"
        return [
            f"{word}: metrics scraped each second cost at most 5 % of a small dispatch: {ratio:.2f}",
            f"not judged: with a trace it takes {self.traced_ms / self.alone_ms:.2f} times as long",
        ]


class _Scraper:
    """Reads a metrics address again and again while it is `on`."""

    def __init__(self, address: str):
        self._address = address
        self._on, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            if self._on.wait(0.1):
                urllib.request.urlopen(f"http://{self._address}/metrics", timeout=10).read()
                self._over.wait(_SCRAPE_SECONDS)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        self._on.set()
        yield
        self._on.clear()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


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
        yield
        if process.poll() is not None:
            raise RuntimeError(f"epctl trace ended with {process.returncode} before the runs did")
    finally:
        process.kill()
        process.wait()


def measure(place: who.Place, seed: int) -> Watched:
    """Raises FleetError if a process failed."""
    times: dict[str, list[float]] = {"alone": [], "scraped": [], "traced": []}
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(dir=place.folder)))
        address = _free_address()
        epd = Daemon(
            find_program("epd"), folder / "epd", _STAGING_BYTES, f"--metrics_listen={address}"
        )
        stack.callback(epd.stop)
        scraper = _Scraper(address)
        stack.callback(scraper.stop)
        here = dataclasses.replace(place, folder=folder, epd_socket=epd.socket)
        fleet = stack.enter_context(tenants.running("watched", _SIZES, _SIZES, here, seed))
        group = epd.node.call("ListGroups").groups[0].spec.name

        def run(name: str) -> None:
            times[name].append(float(np.median(tenants.times_of(fleet, _RUNS))) / 1e6)

        tenants.times_of(fleet, _RUNS)  # Warm.
        for _ in range(_REPETITIONS):
            run("alone")
            with scraper.at_work():
                run("scraped")
                with _tracing(epd, group):
                    run("traced")
    return Watched(**{f"{name}_ms": float(np.median(took)) for name, took in times.items()})
