"""Goal: a peer whose connection takes seconds to open is waited for, not hung up on again and again."""

import contextlib

import epd_process
import etcd_process
import pytest
from slow_link import SlowLink


@pytest.fixture
def start(tmp_path):
    with contextlib.ExitStack() as stops:

        def make(name: str, *flags: str) -> epd_process.Daemon:
            (tmp_path / name).mkdir()
            daemon = epd_process.Daemon(tmp_path / name)
            stops.callback(daemon.stop)
            return daemon.start(f"--node={name}", "--listen=127.0.0.1:0", *flags)

        yield make


def test_coordinator_behind_a_slow_link_is_followed(start):
    first = start("a", "--start_grace=0")
    with SlowLink(first.listen_address(), delay=1.5) as link:
        second = start("b", f"--coordinator={link.address}", "--heartbeat=2s")
        second.wait_for_log("coordinator connected")


@pytest.mark.skipif(bool(etcd_process.missing()), reason=etcd_process.missing())
def test_etcd_behind_a_slow_link_is_used(tmp_path, start):
    (tmp_path / "etcd").mkdir()
    etcd = etcd_process.Etcd(tmp_path / "etcd").start()
    try:
        with SlowLink(etcd.address, delay=1.5) as link:
            daemon = start("a", f"--rendezvous=etcd://{link.address}/test")
            daemon.wait_for_log("leading")
    finally:
        etcd.kill()
