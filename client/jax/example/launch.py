"""Starts one process per rank on this machine, and ends the others when one fails."""

import argparse
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable

_POLL_SECONDS = 0.1
_KILL_SECONDS = 30  # For the kernel to end a killed process.
_GRACE_SECONDS = 20  # For the other processes to report an error of their own.


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(script: str, arguments: list[str], ranks: int, timeout: float) -> list[int]:
    """Runs ``script`` once per rank with --rank and --coordinator; returns the exit statuses.

    A process that is still there ``timeout`` seconds after the start, or 20 seconds after another one failed, is killed.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # Ends the processes on the way out.
    coordinator = f"127.0.0.1:{_free_port()}"
    # Another run beside this one is another job.
    environment = {"EPD_JOB": f"example-{os.getpid()}-{time.time_ns()}", **os.environ}
    processes = [
        subprocess.Popen(
            [sys.executable, script, *arguments, f"--rank={rank}", f"--coordinator={coordinator}"],
            env=environment,
        )
        for rank in range(ranks)
    ]
    deadline = time.monotonic() + timeout
    try:
        while any(process.poll() is None for process in processes):
            if any(process.returncode for process in processes):
                deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
    return [process.wait(_KILL_SECONDS) for process in processes]


def guarded(body: Callable[[], int]) -> int:
    """``body()``. An exception is printed and ends the process at once, with exit status 1."""
    try:
        return body()
    except Exception:  # noqa: BLE001 - whatever it is, this process must end now.
        # The normal way out might wait minutes for the other processes, which wait for this one.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def verdict(script: str, statuses: list[int]) -> int:
    """Prints whether all processes ended well; the command's exit status."""
    good = all(status == 0 for status in statuses)
    text = "passed" if good else f"FAILED, exit status by process: {statuses}"
    print(f"{pathlib.Path(script).stem}: {text}")
    return 0 if good else 1


def main(
    script: str, about: str, run_rank: Callable[[int, int, str], int], ranks: int, least: int = 1
) -> int:
    """The whole command of an example whose ranks are processes: starts them, and prints whether all passed.

    ``run_rank(ranks, rank, coordinator)``: what one of them does, and its exit status. ``coordinator``: an address for
    jax.distributed. ``ranks``: how many, unless the command says; at least ``least``.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=ranks, help="processes (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds until they are ended")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--coordinator", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ranks < least:
        parser.error(f"--ranks: expected {least} or more")
    if args.rank is not None:
        return guarded(lambda: run_rank(args.ranks, args.rank, args.coordinator))
    return verdict(script, run(script, sys.argv[1:], args.ranks, args.timeout))
