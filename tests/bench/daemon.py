"""An epd of the benchmark's own, and what it says about its memory."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

_ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(_ROOT / "tests" / "integration"))

import cluster_secret  # noqa: E402
import grpc  # noqa: E402
from epd import cluster  # noqa: E402

_START_SECONDS = 20
_STOP_SECONDS = 20


class Daemon:
    """Starts on construction; `stop` ends it. `inside` stands in front of its command."""

    def __init__(
        self,
        program: pathlib.Path,
        folder: pathlib.Path,
        staging_bytes: int,
        *flags: str,
        inside: tuple[str, ...] = (),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.socket = str(folder / "epd.sock")
        self._log = folder / "epd.log"
        command = [*inside, str(program), f"--socket={self.socket}"]
        command += [f"--staging_bytes={staging_bytes}", *cluster_secret.flags(), *flags]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        path = cluster.grpc_path(self.socket)
        cluster.wait_for_socket(path, _START_SECONDS)
        self.node = cluster.Node("unix:" + path)
        deadline = time.monotonic() + _START_SECONDS
        while True:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"epd did not start:\n{self._log.read_text(errors='replace')}")
            try:
                if any(worker.pid for worker in self.status().workers):
                    return
            except grpc.RpcError:
                pass
            time.sleep(0.05)

    @property
    def pid(self) -> int:
        return self._process.pid

    def listen_address(self) -> str:
        """host:port of its gRPC on TCP."""
        return re.search(r'event="serving".* listen=(\S+)', self._log.read_text())[1]

    def status(self):
        return self.node.call("GetStatus")

    def pids(self) -> list[int]:
        """Of epd and its workers."""
        return [self._process.pid, *(worker.pid for worker in self.status().workers)]

    def memory(self) -> dict[str, int]:
        """Bytes: the staging pool now and at most, and the resident memory of both processes without shared pages."""
        pool = self.node.call("GetMemory")
        return {
            "staging_committed_bytes": pool.pool_committed_bytes,
            "staging_peak_bytes": pool.pool_peak_bytes,
            "private_bytes": sum(private_bytes(pid) for pid in self.pids()),
        }

    def stop(self) -> None:
        self.node.close()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def private_bytes(pid: int) -> int:
    """Resident memory of a process without shared pages and files."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
    return kib * 1024


def find_program(name: str) -> pathlib.Path:
    """epd or epd-worker: in EPD_BIN_DIR, else where deploy/setup installs."""
    return pathlib.Path(os.environ.get("EPD_BIN_DIR", _ROOT / ".venv" / "bin")) / name
