"""Starts one process per rank on this machine, and ends the others when one fails."""

import contextlib
import signal
import socket
import subprocess
import sys
import time

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
    processes = [
        subprocess.Popen(
            [sys.executable, script, *arguments, f"--rank={rank}", f"--coordinator={coordinator}"]
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
