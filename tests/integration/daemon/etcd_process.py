"""An etcd of its own for a test: one member, in a folder, on free ports of the loopback address."""

import pathlib
import random
import shutil
import socket
import subprocess

import grpc
import wait

_PORT_RANGE = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")


def missing() -> str:
    """Why there is no etcd here; empty: there is."""
    return "" if shutil.which("etcd") else "no etcd; deploy/setup installs etcd-server"


def _free_port() -> int:
    """Below those that the kernel gives to connections: while etcd is down nobody else comes by the port, nor does an epd
    that tries to connect to it meet itself there."""
    first_of_connections = int(_PORT_RANGE.read_text().split()[0])
    while True:
        port = random.randrange(10_000, max(first_of_connections, 10_001))
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


class Etcd:
    def __init__(
        self,
        folder: pathlib.Path,
        host: str = "127.0.0.1",
        tls: bool = False,
        wrap: tuple[str, ...] = (),
    ) -> None:
        """``wrap``: in front of the command, such as a namespace's."""
        self._folder = folder
        self._wrap = wrap
        self._host = host
        self._scheme = "https" if tls else "http"
        self._client, self._peer = _free_port(), _free_port()
        self.address = f"{host}:{self._client}"
        self.process: subprocess.Popen | None = None
        self._log = folder / "etcd.log"

    def start(self, *flags: str) -> "Etcd":
        """Once it serves: one that is killed before it has written that it is a member never serves again.

        `flags`: further ones of etcd, such as its certificates.
        """
        served = self._times_served()
        client, peer = f"{self._scheme}://{self.address}", f"http://{self._host}:{self._peer}"
        command = [*self._wrap, "etcd", "--name=test", f"--data-dir={self._folder / 'data'}"]
        command += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        command += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        command += [f"--initial-cluster=test={peer}", "--logger=zap", "--unsafe-no-fsync", *flags]
        log = self._log.open("ab")
        help_text = subprocess.run(["etcd", "--help"], check=False, capture_output=True, text=True)
        if "unsafe-no-fsync" not in help_text.stdout + help_text.stderr:
            command.remove("--unsafe-no-fsync")
        self.process = subprocess.Popen(command, stdout=log, stderr=log)

        def serves() -> bool:
            assert self.process.poll() is None, self._log.read_text()
            return self._times_served() > served

        wait.until(serves, "etcd to serve", 20)
        return self

    def _times_served(self) -> int:
        return self._log.read_text().count("serving client traffic") if self._log.exists() else 0

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def holds(self, key: str) -> bool:
        """Whether there is a key below /epd/test/; of an etcd without TLS."""
        name = f"/epd/test/{key}".encode()
        # RangeRequest{key: from here, range_end: to the last key below it, count_only}.
        request = b"".join(
            bytes([number << 3 | 2, len(data)]) + data
            for number, data in ((1, name), (2, name + b"\xff"))
        )
        with grpc.insecure_channel(self.address) as channel:
            call = channel.unary_unary("/etcdserverpb.KV/Range")
            return name in call(request, timeout=10)

    def lose_data(self) -> None:
        """Only while it is down."""
        shutil.rmtree(self._folder / "data")
