"""epd's program replaced again and again under load, by itself and by a build of another minor version of the state; see
tests/long/run replace."""

import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

_ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(_ROOT / "tests" / "bench"), str(_ROOT / "tests" / "long" / "load")]

import load  # noqa: E402

import daemon  # noqa: E402

_STAGING_BYTES = 1 << 30
_QUIET_SECONDS = 10
# Each round's ranks attach and join while epd is being replaced.
_ROUND_SECONDS = 60
_EPCTL_SECONDS = 60


class Replacer:
    """Replaces epd by the two programs in turn."""

    def __init__(self, epd: daemon.Daemon, folder: pathlib.Path) -> None:
        self._epd = epd
        self._log = folder / "epd" / "epd.log"
        own = daemon.find_program("epd")
        self._programs = [own, _ROOT / "bazel-bin/tests/long/replace/epd_next_minor"]
        self.num_done = 0

    def replace(self) -> None:
        program = self._programs[(self.num_done + 1) % 2]
        command = [daemon.find_program("epctl"), f"--socket={self._epd.socket}", "replace"]
        ended = subprocess.run(
            [*map(str, command), f"--program={program.resolve()}"],
            capture_output=True,
            text=True,
            timeout=_EPCTL_SECONDS,
        )
        if ended.returncode != 0:
            raise SystemExit(
                f"replacement {self.num_done + 1} failed:\n{ended.stderr}\n"
                + "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])
            )
        self.num_done += 1

    def milliseconds(self) -> list[float]:
        """From the last turn of one program's loop to the first of the next one's."""
        units = {"ms": 1.0, "s": 1000.0, "us": 0.001}
        found = re.findall(
            r'event="replaced".* took=([\d.]+)(ms|s|us)', self._log.read_text(errors="replace")
        )
        return [float(number) * units[unit] for number, unit in found]


def _descriptors(epd: daemon.Daemon) -> int:
    return len(os.listdir(f"/proc/{epd.pid}/fd"))


def _mebibytes(epd: daemon.Daemon) -> str:
    own, *workers = (daemon.private_bytes(pid) / 2**20 for pid in epd.pids())
    return f"epd {own:.1f}, worker {sum(workers):.1f} MiB"


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def _run(epd: daemon.Daemon, folder: pathlib.Path, options: argparse.Namespace) -> load.Marks:
    marks = load.Marks()
    quiet = load.Load(epd.socket, folder, options.groups, options.rate, _QUIET_SECONDS)
    quiet.begin()
    before = [took for _, took in quiet.await_end()]
    workers = [worker.pid for worker in epd.status().workers]
    replacer = Replacer(epd, folder)
    replacer.replace()
    # This program's own connection is open again, as it is in the end.
    memory, descriptors = _mebibytes(epd), _descriptors(epd)
    calls: list[float] = []
    started = time.monotonic()
    while replacer.num_done < options.replacements:
        running = load.Load(epd.socket, folder, options.groups, options.rate, _ROUND_SECONDS)
        running.begin()
        ends = time.monotonic() + _ROUND_SECONDS

        def look(ends: float = ends) -> None:
            if replacer.num_done < options.replacements and time.monotonic() < ends:
                replacer.replace()

        calls += [took for _, took in running.await_end(look)]
        print(
            f"{replacer.num_done} replacements, {len(calls)} calls, {_mebibytes(epd)}", flush=True
        )
    seconds = time.monotonic() - started
    status = epd.status()
    marks.say(
        "replacements, with no call failed",
        f"{replacer.num_done} in {seconds:.0f} s",
        f"{options.replacements}",
        status.num_replacements == options.replacements,
    )
    marks.say("calls of ranks meanwhile", f"{len(calls)}")
    marks.say(
        "the worker's process",
        f"{[worker.pid for worker in status.workers]}",
        f"{workers}",
        [worker.pid for worker in status.workers] == workers,
    )
    more = _descriptors(epd) - descriptors
    marks.say("epd's descriptors, then more", f"{descriptors}, {more:+d}", "none more", more <= 0)
    marks.say("private memory, first", memory)
    marks.say("private memory, then", _mebibytes(epd))
    took = replacer.milliseconds()
    marks.say(
        "epd stands still, p50 / p99 / highest",
        f"{statistics.median(took):.0f} / {_percentile(took, 0.99):.0f} / {max(took):.0f} ms",
    )
    for name, values in (("before", before), ("meanwhile", calls)):
        marks.say(
            f"a rank's call {name}, p50 / p99 / highest",
            f"{statistics.median(values):.0f} / {_percentile(values, 0.99):.0f} / "
            f"{max(values):.0f} us",
        )
    return marks


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/long/run replace", description=__doc__)
    parser.add_argument("--replacements", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--rate", type=float, default=400, help="group operations a second")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="epd-replace-") as name:
        folder = pathlib.Path(name)
        epd = daemon.Daemon(daemon.find_program("epd"), folder / "epd", _STAGING_BYTES)
        try:
            return 0 if _run(epd, folder, options).all_reached else 1
        finally:
            epd.stop()


if __name__ == "__main__":
    sys.exit(main())
