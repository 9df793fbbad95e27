"""Several epds, each with a node of its own: namespaces with addresses, or addresses of the loopback."""

import contextlib
import pathlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import certificates
import cluster_secret
import namespaces
import wait
from harness import START_SECONDS, Daemon, short_folder


@dataclass
class Nodes:
    daemons: list[Daemon]
    frames: pathlib.Path | None  # All that crossed the last node's link; None without namespaces.


@contextlib.contextmanager
def _network(num_nodes: int, loopback: bool) -> Iterator[namespaces.Network | None]:
    why = "the test asks for it" if loopback else namespaces.allowed()
    if why:
        print(
            f"note: no network namespaces ({why}), so the nodes are addresses of the loopback",
            file=sys.stderr,
        )
        yield None
        return
    with namespaces.Network(num_nodes) as network:
        yield network


@contextlib.contextmanager
def running_nodes(
    num_nodes: int, *flags: str, tls: bool = False, loopback: bool = False
) -> Iterator[Nodes]:
    """An epd per node, the first coordinates; all have said so when this yields. Each ends with status 0.

    ``loopback``: nodes are addresses of the loopback even where namespaces can be made."""
    with short_folder() as folder, _network(num_nodes, loopback) as network:
        addresses = network.addresses if network else [f"127.0.0.{i + 1}" for i in range(num_nodes)]
        frames = folder / "frames" if network else None
        if network:
            network.capture(num_nodes - 1, frames)
        authority = certificates.Authority(folder / "ca") if tls else None
        daemons: list[Daemon] = []
        try:
            for i, address in enumerate(addresses):
                inside = network.named(i) if network else ()
                daemons.append(Daemon(folder / f"n{i}", inside, address))
                place = ["--start_grace=0"]
                if i > 0:
                    place = [f"--coordinator={daemons[0].listen_address()}"]
                secrets = cluster_secret.flags()
                if authority:
                    secrets = authority.sign(f"n{i}", address)
                daemons[i].start(f"--node=n{i}", f"--listen={address}:0", *place, *secrets, *flags)
                if i > 0:
                    wait.until(
                        lambda: "coordinator connected" in daemons[-1].log_tail(),
                        "a node to find its coordinator",
                        START_SECONDS,
                    )
            yield Nodes(daemons, frames)
            for daemon in reversed(daemons):
                status = daemon.stop()
                assert status == 0, f"epd ended with {status}:\n{daemon.log_tail()}"
        finally:
            for daemon in daemons:
                daemon.end()
