"""A real epd with a real worker in a folder of its own, for tests that need no more than that."""

import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import cluster_secret
from epd import cluster

ROOT = pathlib.Path(__file__).resolve().parents[2]
_START_SECONDS = 20
_STOP_SECONDS = 15


def program(name: str) -> pathlib.Path:
    """epd, epd-worker or epctl: in EPD_TEST_BIN, else where deploy/setup installs."""
    path = pathlib.Path(os.environ.get("EPD_TEST_BIN", ROOT / ".venv" / "bin")) / name
    assert path.exists(), f"{path} is missing; run deploy/setup, or set EPD_TEST_BIN"
    return path


class RunningEpd:
    """Starts when made and answers then; use it as a context manager."""

    def __init__(self, *flags: str):
        # Not pytest's folder: a socket path is at most 107 bytes.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="epd-test-"))
        self.socket = str(self.folder / "epd.sock")
        self.grpc_socket = str(self.folder / "epd-grpc.sock")
        self._log = self.folder / "epd.log"
        command = [program("epd"), f"--socket={self.socket}", "--drain_deadline=2s"]
        if not any(flag.startswith("--staging_bytes=") for flag in flags):
            command.append("--staging_bytes=268435399")
        command += [*cluster_secret.flags(), *flags]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        assert cluster.wait_for_socket(self.grpc_socket, _START_SECONDS), self.log()
        self.api = cluster.Node("unix:" + self.grpc_socket)
        self._wait_for_worker()

    def __enter__(self):
        return self

    def __exit__(self, *unused: object) -> None:
        self.api.close()
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def stop(self) -> None:
        """Also when it is stopped (SIGSTOP)."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"epd did not end on SIGTERM:\n{self.log()}") from None

    def worker_pid(self) -> int:
        """0 while no worker runs."""
        running = [
            worker.pid
            for worker in self.api.call("GetStatus").workers
            if self.api.enum_name("WorkerState", worker.state) == "WORKER_STATE_RUNNING"
        ]
        return running[0] if running else 0

    def _wait_for_worker(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            assert self.process.poll() is None, f"epd ended:\n{self.log()}"
            assert time.monotonic() < deadline, f"no worker after {_START_SECONDS} s:\n{self.log()}"
            if self.worker_pid():
                return
            time.sleep(0.02)
