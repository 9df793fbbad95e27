"""Processes that join and leave a group again and again, each time their last one, and live on: they are to leave no staging
behind; see tests/long/run leave."""

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

_STAGING_BYTES = 256 << 20
# How long the last session's end may take to reach the worker.
_SETTLE_SECONDS = 10


@dataclasses.dataclass(frozen=True)
class Kind:
    """A group, and how many of its ranks each of its processes holds."""

    name: str
    processes: int
    ranks_of_each: int
    share: float  # Of all rounds.


_KINDS = (
    Kind("pairs", 2, 1, 0.3),
    Kind("threes", 3, 1, 0.3),
    Kind("four ranks of one process", 1, 4, 0.2),
    Kind("single ranks", 1, 1, 0.2),
)


def _start(epd: daemon.Daemon, kind: Kind, rounds: int) -> list[subprocess.Popen]:
    program = _ROOT / "bazel-bin/tests/long/leave/leave_rank"
    ranks = kind.processes * kind.ranks_of_each
    return [
        subprocess.Popen(
            [
                program,
                kind.name.replace(" ", "-"),
                *map(str, (ranks, process * kind.ranks_of_each, kind.ranks_of_each, rounds)),
            ],
            env={**os.environ, "EPD_SOCKET": epd.socket},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for process in range(kind.processes)
    ]


def _left(epd: daemon.Daemon) -> tuple[int, int]:
    """Bytes that are quarantined, and sets of arenas that the worker keeps."""
    regions = epd.node.call("GetMemory").regions
    sets = [region for region in regions if region.kind == "staging"]
    return sum(one.quarantined_bytes for one in sets), len(sets)


def _run(epd: daemon.Daemon, rounds: int) -> bool:
    of_kind = {kind: max(1, round(rounds * kind.share)) for kind in _KINDS}
    running = {kind: _start(epd, kind, num) for kind, num in of_kind.items()}
    processes = [process for each in running.values() for process in each]
    try:
        for kind, each in running.items():
            said = {process.stdout.readline() for process in each}
            if said != {f"{of_kind[kind]} rounds\n"}:
                print(f"{kind.name}: a process failed; see above")
                return False
            print(
                f"{kind.name}: {of_kind[kind]} rounds, {_left(epd)[0]} bytes quarantined",
                flush=True,
            )
        until = time.monotonic() + _SETTLE_SECONDS
        while (left := _left(epd)) != (0, 0) and time.monotonic() < until:
            time.sleep(0.1)
        # While the processes live.
        print(f"left behind: {left[0]} bytes, {left[1]} sets")
        return left == (0, 0)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000, help="of all groups together")
    parser.add_argument(
        "--epd", type=pathlib.Path, default=_ROOT / "bazel-bin/daemon/epd", help="another build's"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="epd-leave-") as folder:
        epd = daemon.Daemon(options.epd, pathlib.Path(folder), _STAGING_BYTES)
        try:
            return 0 if _run(epd, options.rounds) else 1
        finally:
            epd.stop()


if __name__ == "__main__":
    sys.exit(main())
