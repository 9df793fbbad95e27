"""An etcd of its own for a test: one member, in a folder, on free ports of the loopback address."""

import pathlib
import shutil
import socket
import subprocess

import attach_client


def missing() -> str:
    """Why there is no etcd here; empty: there is."""
    return "" if shutil.which("etcd") else "no etcd; deploy/setup installs etcd-server"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Etcd:
    def __init__(self, folder: pathlib.Path, host: str = "127.0.0.1") -> None:
        self._folder = folder
        self._host = host
        self._client, self._peer = _free_port(), _free_port()
        self.address = f"{host}:{self._client}"
        self.process: subprocess.Popen | None = None

    def start(self) -> "Etcd":
        client, peer = f"http://{self.address}", f"http://{self._host}:{self._peer}"
        command = ["etcd", "--name=test", f"--data-dir={self._folder / 'data'}"]
        command += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        command += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        command += [f"--initial-cluster=test={peer}", "--logger=zap", "--unsafe-no-fsync"]
        log = (self._folder / "etcd.log").open("ab")
        help_text = subprocess.run(["etcd", "--help"], check=False, capture_output=True, text=True)
        if "unsafe-no-fsync" not in help_text.stdout + help_text.stderr:
            command.remove("--unsafe-no-fsync")
        self.process = subprocess.Popen(command, stdout=log, stderr=log)
        attach_client.wait_until(self._answers, "etcd to listen", 20)
        return self

    def _answers(self) -> bool:
        assert self.process.poll() is None, (self._folder / "etcd.log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex((self._host, self._client)) == 0

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def lose_data(self) -> None:
        """Only while it is down."""
        shutil.rmtree(self._folder / "data")
