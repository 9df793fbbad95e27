"""Many sessions and groups on one epd for a while: what becomes of its memory, its descriptors and its latency; see
tests/long/run load."""

import argparse
import dataclasses
import os
import pathlib
import subprocess
import sys
import tempfile
import time

_ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(_ROOT / "tests" / "bench"))

import daemon  # noqa: E402

_RANKS = 4
_IDLE_GROUPS = 16
_STAGING_BYTES = 1 << 30
_PROBE_SECONDS = 15
_IDLE_SECONDS = 20
_SAMPLE_SECONDS = 5
# How much later than asked a run may end.
_GRACE_SECONDS = 120


@dataclasses.dataclass(frozen=True)
class Usage:
    """Of epd and its workers."""

    second: float
    private_bytes: list[int]  # By process, epd first.
    staging_bytes: int
    descriptors: int

    @property
    def bytes(self) -> int:
        return sum(self.private_bytes) + self.staging_bytes


class Load:
    """The processes of one run, one per rank of every group. Joined once it is made."""

    def __init__(self, socket: str, folder: pathlib.Path, groups: int, rate: float, seconds: float):
        self._files = [folder / f"rank{rank}" for rank in range(_RANKS)]
        self._seconds = seconds
        program = _ROOT / "bazel-bin/tests/long/load/load_rank"
        self._processes = [
            subprocess.Popen(
                [program, *map(str, (rank, _RANKS, groups, rate, seconds, file))],
                env={**os.environ, "EPD_SOCKET": socket},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, file in enumerate(self._files)
        ]
        for process in self._processes:
            if process.stdout.readline() != "ready\n":
                self.stop()
                raise SystemExit("a rank did not join; see above")

    def begin(self) -> None:
        for process in self._processes:
            process.stdin.write("go\n")
            process.stdin.flush()

    def await_end(self, look=lambda: None) -> list[tuple[float, float]]:
        """The calls, (second, microseconds). `look` is called now and then."""
        until = time.monotonic() + self._seconds + _GRACE_SECONDS
        while any(process.poll() is None for process in self._processes):
            if time.monotonic() > until:
                self.stop()
                raise SystemExit(f"the ranks did not end {_GRACE_SECONDS} s after their time")
            look()
            time.sleep(0.1)
        if any(process.returncode != 0 for process in self._processes):
            raise SystemExit("a rank failed; see above")
        calls = []
        for file in self._files:
            for line in file.read_text().splitlines():
                second, microseconds = line.split()
                calls.append((float(second), float(microseconds)))
        return calls

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def _pids(epd: daemon.Daemon) -> list[int]:
    return [epd.pid, *(worker.pid for worker in epd.status().workers if worker.pid)]


def _usage(epd: daemon.Daemon, start: float) -> Usage:
    return Usage(
        time.monotonic() - start,
        [daemon.private_bytes(pid) for pid in _pids(epd)],
        epd.memory()["staging_committed_bytes"],
        sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in _pids(epd)),
    )


def _cpu_seconds(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _p99(calls: list[tuple[float, float]], begin: float, end: float) -> float:
    times = sorted(took for second, took in calls if begin <= second < end)
    return times[len(times) * 99 // 100]


def _say_memory(usage: list[Usage]) -> None:
    """A row a minute, in KiB."""
    print("memory in KiB: second, staging, epd, its workers")
    minute = 0
    for one in usage:
        if one.second >= 60 * minute:
            figures = [one.staging_bytes, *one.private_bytes]
            print(f"{one.second:8.0f}", *(f"{bytes_ // 1024:10}" for bytes_ in figures))
            minute += 1


class Marks:
    """Prints a row per figure; knows whether all were reached."""

    def __init__(self) -> None:
        self.all_reached = True

    def say(self, what: str, got: str, wanted: str = "", reached: bool = True) -> None:
        self.all_reached &= reached
        verdict = "" if not wanted else "yes" if reached else "NO"
        print(f"{what:42} {got:>24}  {wanted:28} {verdict}", flush=True)


def _measure(epd: daemon.Daemon, folder: pathlib.Path, options: argparse.Namespace) -> Marks:
    marks = Marks()
    idle = Load(epd.socket, folder, _IDLE_GROUPS, 0, 0)
    before = _cpu_seconds(_pids(epd))
    time.sleep(_IDLE_SECONDS)
    share = (_cpu_seconds(_pids(epd)) - before) / _IDLE_SECONDS
    marks.say(
        f"idle, {_IDLE_GROUPS * _RANKS} sessions",
        f"{share:.2%} of a core",
        "under 1 %",
        share < 0.01,
    )
    idle.begin()
    idle.stop()

    probe = Load(epd.socket, folder, options.groups, 0, _PROBE_SECONDS)
    probe.begin()
    highest = len(probe.await_end()) / _RANKS / _PROBE_SECONDS
    marks.say("highest rate", f"{highest:.0f} operations/s")
    rate = min(options.rate, highest / 2)

    seconds = options.minutes * 60
    load = Load(epd.socket, folder, options.groups, rate, seconds)
    start = time.monotonic()
    usage: list[Usage] = []

    def look() -> None:
        if not usage or time.monotonic() - start - usage[-1].second >= _SAMPLE_SECONDS:
            usage.append(_usage(epd, start))

    load.begin()
    calls = load.await_end(look)
    marks.say("minutes", f"{options.minutes:g}")
    done = len(calls) / _RANKS / seconds
    marks.say(
        f"{options.groups * _RANKS} sessions, {options.groups} groups",
        f"{done:.0f} operations/s",
        f"{rate:.0f} asked for",
        done > 0.98 * rate,
    )
    settled = [u for u in usage if 60 <= u.second <= seconds] or usage[len(usage) // 2 :]
    growth = max(u.bytes for u in settled) / settled[0].bytes - 1
    marks.say(
        "memory of epd and its worker, then growth",
        f"{settled[0].bytes / 2**20:.0f} MiB, {growth:+.2%}",
        "within 1 %",
        growth <= 0.01,
    )
    _say_memory(usage)
    more = max(u.descriptors for u in settled) - settled[0].descriptors
    marks.say(
        "descriptors, then more", f"{settled[0].descriptors}, {more:+d}", "none more", more <= 0
    )
    first, last = _p99(calls, 0, seconds / 2), _p99(calls, seconds / 2, seconds)
    marks.say("p99 of the first half", f"{first:.0f} us")
    marks.say("p99 of the second half", f"{last:.0f} us", "within 25 %", last <= 1.25 * first)
    return marks


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/long/run load", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--rate", type=float, default=2500, help="group operations a second")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="epd-load-") as name:
        folder = pathlib.Path(name)
        epd = daemon.Daemon(daemon.find_program("epd"), folder / "epd", _STAGING_BYTES)
        try:
            return 0 if _measure(epd, folder, options).all_reached else 1
        finally:
            epd.stop()


if __name__ == "__main__":
    sys.exit(main())
