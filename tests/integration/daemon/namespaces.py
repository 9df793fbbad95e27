"""Nodes as network namespaces with an address each, and a capture of what crosses the links between them."""

import os
import pathlib
import subprocess
import sys
import time
import uuid

_CAPTURE = """
import socket, sys
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
raw.bind((sys.argv[1], 0))
with open(sys.argv[2], "wb", buffering=0) as out:
    out.write(b"capture\\n")
    while True:
        out.write(raw.recv(1 << 18))
"""


def allowed() -> str:
    """Why namespaces cannot be made here, or are not to be (EPD_TEST_NO_NAMESPACES); empty: they can."""
    if os.environ.get("EPD_TEST_NO_NAMESPACES"):
        return "EPD_TEST_NO_NAMESPACES is set"
    name = f"epd-{uuid.uuid4().hex[:6]}"
    made = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True, text=True)
    if made.returncode == 0:
        subprocess.run(["ip", "netns", "del", name], check=True)
    return made.stderr.strip()


class Network:
    """`num_nodes` namespaces with the addresses 10.77.0.1, 10.77.0.2, ..., and one more that routes between them."""

    def __init__(self, num_nodes: int) -> None:
        self._tag = f"epd{uuid.uuid4().hex[:5]}"
        self._hub = f"{self._tag}-hub"
        self.names = [f"{self._tag}-{i}" for i in range(num_nodes)]
        self.addresses = [f"10.77.0.{i + 1}" for i in range(num_nodes)]
        self._capture: subprocess.Popen | None = None
        for name in [self._hub, *self.names]:
            self._ip("netns", "add", name)
            self._ip("-n", name, "link", "set", "lo", "up")
        forward = ["netns", "exec", self._hub, "sh", "-c"]
        self._ip(*forward, "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for i, (name, address) in enumerate(zip(self.names, self.addresses, strict=True)):
            gate = f"10.77.1.{i + 1}"
            ends = ["link", "add", f"p{i}", "type", "veth", "peer", "name", "eth0", "netns", name]
            self._ip("-n", self._hub, *ends)
            self._ip("-n", self._hub, "addr", "add", gate, "dev", f"p{i}")
            self._ip("-n", self._hub, "link", "set", f"p{i}", "up")
            self._ip("-n", name, "addr", "add", address, "dev", "eth0")
            self._ip("-n", name, "link", "set", "eth0", "up")
            self._ip("-n", name, "route", "add", gate, "dev", "eth0")
            self._ip("-n", name, "route", "add", "default", "via", gate)
            self._ip("-n", self._hub, "route", "add", address, "dev", f"p{i}")

    def __enter__(self) -> "Network":
        return self

    def __exit__(self, *_: object) -> None:
        if self._capture is not None:
            self._capture.kill()
            self._capture.wait()
        for name in [*self.names, self._hub]:
            self._ip("netns", "del", name)

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

    def inside(self, node: int) -> tuple[str, ...]:
        """In front of a command: it runs in the node's namespace."""
        return ("ip", "netns", "exec", self.names[node])

    def named(self, node: int) -> tuple[str, ...]:
        """As `inside`, on a host of its own whose name is the node's address, where processes of JAX's or Open MPI's then meet."""
        call_it = 'echo "$0" >/proc/sys/kernel/hostname && exec "$@"'
        return (*self.inside(node), "unshare", "--uts", "sh", "-c", call_it, self.addresses[node])

    def sent_bytes(self, node: int) -> int:
        """What has left the node by its link, with the headers of packets as the node's kernel hands them over."""
        file = "/sys/class/net/eth0/statistics/tx_bytes"
        command = [*self.inside(node), "cat", file]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    def cut(self, node: int) -> None:
        """Packets to and from the node vanish; nothing is reset."""
        self._ip("-n", self._hub, "rule", "add", "iif", f"p{node}", "blackhole")
        self._ip("-n", self._hub, "rule", "add", "to", self.addresses[node], "blackhole")

    def heal(self, node: int) -> None:
        self._ip("-n", self._hub, "rule", "del", "iif", f"p{node}", "blackhole")
        self._ip("-n", self._hub, "rule", "del", "to", self.addresses[node], "blackhole")

    def limit_links(self, rate: str) -> str:
        """Lets each node send `rate` ("1gbit"), with the queue that the kernel gives a network card: packets that say so
        go first (pfifo_fast). Returns why that cannot be had here; empty: it is so."""
        for name in self.names:
            for words in (
                ["root", "handle", "1:", "tbf", "rate", rate, "burst", "128kb", "limit", "1mb"],
                ["parent", "1:1", "pfifo_fast"],
            ):
                command = ["tc", "-n", name, "qdisc", "add", "dev", "eth0", *words]
                try:
                    made = subprocess.run(command, check=False, capture_output=True, text=True)
                except FileNotFoundError:
                    return "tc is not installed (Debian: iproute2)"
                if made.returncode != 0:
                    return f"{' '.join(command)}: {made.stderr.strip()}"
        return ""

    def capture(self, node: int, file: pathlib.Path) -> None:
        """Writes every frame of the node's interface to `file` until the network ends."""
        command = [*self.inside(node), sys.executable, "-c", _CAPTURE, "eth0", str(file)]
        self._capture = subprocess.Popen(command)
        deadline = time.monotonic() + 20
        while not (file.exists() and file.read_bytes().startswith(b"capture")):
            assert time.monotonic() < deadline, "no capture within 20 s"
            time.sleep(0.02)
