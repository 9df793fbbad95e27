"""Goal: epd answers although what it depends on does not: the reader of its log, the resolver, its own time."""

import os
import signal
import socket
import subprocess
import time

import attach_client as attach
import epd_process
import grpc
import namespaces
import pytest
import wait
from node_calls import NodeApi

_LIMIT_SECONDS = 2
_SERVING = 1


def _full_pipe() -> tuple[int, int]:
    """Both ends of a pipe that takes no byte more."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    try:
        while True:
            os.write(write_end, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(write_end, True)
    return read_end, write_end


def _answers(daemon, seconds: float = _LIMIT_SECONDS) -> bool:
    try:
        with NodeApi(f"unix:{daemon.grpc_socket}") as api:
            return api.health(timeout=seconds) == _SERVING
    except grpc.RpcError:
        return False


def test_a_log_that_nobody_reads_keeps_nobody_waiting(daemon):
    read_end, write_end = _full_pipe()
    try:
        daemon.process = subprocess.Popen(
            daemon.command("--log_level=debug"),
            stdin=subprocess.DEVNULL,
            stderr=write_end,
            env=epd_process.environment(),
        )
        wait.until(lambda: _answers(daemon), "epd to answer with a log that nobody reads")
        for _ in range(50):
            with daemon.client() as client:
                client.attach()
                client.join(attach.spec(num_ranks=1), [0])
        assert _answers(daemon)
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(10) == 0
    finally:
        os.close(write_end)
        os.close(read_end)


@pytest.mark.skipif(bool(namespaces.allowed()), reason=namespaces.allowed())
def test_a_resolver_that_does_not_answer_keeps_nobody_waiting(daemon):
    silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    silent.bind(("127.0.0.53", 53))
    conf = daemon.folder / "resolv.conf"
    conf.write_text("nameserver 127.0.0.53\noptions timeout:30 attempts:5\n")
    bind = f'mount --bind {conf} /etc/resolv.conf && exec "$@"'
    begin = time.monotonic()
    with silent:
        daemon.start(
            "--coordinator=nobody.example:4464", wrap=("unshare", "--mount", "sh", "-c", bind, "sh")
        )
        wait.until(
            lambda: _answers(daemon) or time.monotonic() > begin + 20, "epd to answer for itself"
        )
        with NodeApi(f"unix:{daemon.grpc_socket}") as api:
            status = api.GetStatus(timeout=_LIMIT_SECONDS)
        assert any("no connection to the coordinator" in p for p in status.problems), status
    assert time.monotonic() < begin + 10


def test_a_coordinator_that_was_stopped_hears_first_and_loses_nobody(tmp_path):
    daemons = [epd_process.Daemon(tmp_path / name) for name in "ab"]
    for daemon in daemons:
        daemon.folder.mkdir()
    first, second = daemons
    beat = "--heartbeat=200ms"
    first.start("--node=a", "--listen=127.0.0.1:0", "--start_grace=0", beat)
    second.start("--node=b", f"--coordinator={first.listen_address()}", beat)
    second.wait_for_log("coordinator connected")
    try:
        with second.client() as client:
            client.attach()
            joined = client.join(attach.spec("g", num_ranks=1), [0])
            for _ in range(5):
                first.process.send_signal(signal.SIGSTOP)
                time.sleep(1)  # Twice what a node may be silent.
                first.process.send_signal(signal.SIGCONT)
                time.sleep(1)  # For what would follow.
            with NodeApi(f"unix:{second.grpc_socket}") as api:
                (group,) = api.ListGroups().groups
            assert group.epoch == joined.epoch
        assert "was silent for" not in first.log()
    finally:
        assert [daemon.stop() for daemon in (second, first)] == [0, 0]
