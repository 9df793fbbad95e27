"""Ranks that exchange for hours while one fault a minute befalls them, their worker or their epd; see tests/long/run soak.

After each fault all ranks must go on, by what their errors told them alone; every sum is compared. In the end nothing is left:
no session, no staging, no descriptor that was not there before the first fault.
"""

import argparse
import collections
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

_ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(_ROOT / "tests" / room) for room in ("bench", "integration", "long/load")]

import epd_package  # noqa: E402
import faults  # noqa: E402
import load  # noqa: E402

import daemon  # noqa: E402

_PYTHON = "/usr/bin/python3"  # Of Debian's python3-torch.
_GROUPS, _RANKS = 2, 4
_STAGING_BYTES = 1 << 30
_STANDSTILL_SECONDS = 3
_RECOVERY_SECONDS = 60
_START_SECONDS = 120
_QUIET_SECONDS = 3
_LOOK_SECONDS = 0.05
# A new connection of this program, or a lookup under way.
_DESCRIPTORS_MORE = 4


class Soak:
    """epd and the ranks. `close` ends what still runs."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._packages = epd_package.alone_in(folder / "packages")
        self._log = (folder / "ranks.log").open("wb")
        self.epd = self._start_epd()
        self._ranks: dict[str, subprocess.Popen[bytes]] = {}
        for name in self._names():
            (folder / name).write_bytes(bytes(32))
            self._start_rank(name)

    @staticmethod
    def _names() -> Iterator[str]:
        for group in range(_GROUPS):
            for rank in range(_RANKS):
                yield f"{group}.{rank}"

    def _start_epd(self) -> daemon.Daemon:
        return daemon.Daemon(daemon.find_program("epd"), self._folder / "epd", _STAGING_BYTES)

    def _start_rank(self, name: str) -> None:
        group, rank = name.split(".")
        command = [_PYTHON, str(pathlib.Path(__file__).with_name("soak_rank.py"))]
        command += [f"soak-{group}", str(_RANKS), rank, str(self._folder / name)]
        environment = {
            **os.environ,
            "PYTHONPATH": str(self._packages),
            "EPD_SOCKET": self.epd.socket,
            "EPD_AUTOSTART": "0",
            "EPD_JOB": "soak",
        }
        self._ranks[name] = subprocess.Popen(
            command, env=environment, stdout=self._log, stderr=self._log
        )

    def progress(self) -> dict[str, faults.Progress]:
        """SystemExit if a rank has ended."""
        found = {}
        for name, process in self._ranks.items():
            if process.poll() is not None:
                raise SystemExit(f"rank {name} ended with {process.returncode}:\n{self.said()}")
            record = struct.unpack("4q", (self._folder / name).read_bytes())
            found[name] = faults.Progress(*record)
        return found

    def said(self) -> str:
        self._log.flush()
        return "\n".join(
            (self._folder / "ranks.log").read_text(errors="replace").splitlines()[-30:]
        )

    def befall(self, kind: str, number: int) -> int:
        """Does it to a process; when that was over."""
        rank = sorted(self._ranks)[number % len(self._ranks)]
        worker = next(one.pid for one in self.epd.status().workers if one.pid)
        victim = {"a rank": self._ranks[rank].pid, "the worker": worker, "epd": self.epd.pid}
        pid = next(pid for who, pid in victim.items() if kind.startswith(who))
        if kind == "epd is replaced in place":
            command = [str(daemon.find_program("epctl")), f"--socket={self.epd.socket}", "replace"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
        elif kind.endswith("is killed"):
            os.kill(pid, signal.SIGKILL)
            if pid == self.epd.pid:
                self.epd.stop()  # Takes its end.
                self.epd = self._start_epd()
            elif pid != worker:
                self._ranks[rank].wait()
                self._start_rank(rank)
        else:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(_STANDSTILL_SECONDS)
            os.kill(pid, signal.SIGCONT)
        return time.monotonic_ns()

    def recovered(self, ended_ns: int, limit: float) -> float:
        """Seconds until no call failed any more, and all ranks went on; SystemExit if that takes too long."""
        watched = faults.Recovery(self.progress(), ended_ns, _QUIET_SECONDS * 10**9)
        until = time.monotonic() + limit
        while (took := watched.seconds(time.monotonic_ns(), self.progress())) is None:
            if time.monotonic() > until:
                raise SystemExit(
                    f"not all ranks went on within {limit:g} s: {self.progress()}\n{self.said()}"
                )
            time.sleep(_LOOK_SECONDS)
        return took

    def descriptors(self) -> int:
        """Of epd and its worker."""
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in self.epd.pids() if pid)

    def end_ranks(self) -> None:
        for process in self._ranks.values():
            process.terminate()
        for name, process in self._ranks.items():
            if process.wait(30) != 0:
                raise SystemExit(f"rank {name} ended with {process.returncode}:\n{self.said()}")

    def close(self) -> None:
        for process in self._ranks.values():
            process.kill()
            process.wait()
        self.epd.stop()
        self._log.close()


def _run(soak: Soak, options: argparse.Namespace) -> load.Marks:
    marks = load.Marks()
    soak.recovered(time.monotonic_ns(), _START_SECONDS)
    descriptors, started = soak.descriptors(), time.monotonic()
    done: collections.Counter[str] = collections.Counter()
    worst = {kind: 0.0 for kind in faults.KINDS}
    kinds = faults.in_turn(options.seed)
    while time.monotonic() - started < options.hours * 3600:
        next_at = time.monotonic() + options.every
        kind = next(kinds)
        took = soak.recovered(soak.befall(kind, done.total()), _RECOVERY_SECONDS)
        done[kind] += 1
        worst[kind] = max(worst[kind], took)
        memory = soak.epd.memory()
        print(
            f"{time.monotonic() - started:7.0f} s  {kind:32} {took:6.2f} s until the last failed call;"
            f" {soak.descriptors()} descriptors, private {memory['private_bytes'] / 2**20:.1f} MiB,"
            f" staging {memory['staging_committed_bytes'] / 2**20:.1f} MiB",
            flush=True,
        )
        while time.monotonic() < next_at:
            soak.progress()
            time.sleep(min(1.0, options.every))
    more = soak.descriptors() - descriptors
    ranks = soak.progress().values()
    soak.end_ranks()
    time.sleep(1)
    status, memory = soak.epd.status(), soak.epd.memory()
    marks.say("hours", f"{(time.monotonic() - started) / 3600:.2f}")
    marks.say("faults", f"{done.total()}")
    marks.say("steps of all ranks, every sum compared", f"{sum(one.steps for one in ranks)}")
    marks.say("calls that failed, by name", f"{sum(one.failed for one in ranks)}")
    for kind in faults.KINDS:
        marks.say(f"  {kind}", f"{done[kind]} times, {worst[kind]:.2f} s")
    slowest = max(worst.values())
    marks.say(
        "longest until the last failed call",
        f"{slowest:.2f} s",
        f"at most {_RECOVERY_SECONDS} s",
        slowest <= _RECOVERY_SECONDS,
    )
    marks.say(
        "descriptors, then more",
        f"{descriptors}, {more:+d}",
        f"at most {_DESCRIPTORS_MORE}",
        more <= _DESCRIPTORS_MORE,
    )
    staging = memory["staging_committed_bytes"]
    marks.say("staging once all have left", f"{staging} bytes", "none", staging == 0)
    sessions = status.num_sessions
    marks.say("sessions once all have left", f"{sessions}", "none", sessions == 0)
    return marks


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/long/run soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=2)
    parser.add_argument("--every", type=float, default=60, help="seconds from fault to fault")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="epd-soak-") as name:
        soak = Soak(pathlib.Path(name))
        try:
            return 0 if _run(soak, options).all_reached else 1
        finally:
            soak.close()


if __name__ == "__main__":
    sys.exit(main())
