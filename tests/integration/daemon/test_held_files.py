"""Goal: a client that holds the lock of a file that it shares with epd or its worker, for as long as it likes, holds up only itself."""

import contextlib
import os
import pathlib
import socket
import subprocess
import time
from collections.abc import Iterator

import attach_client as attach
import epd_process
import held_file
import pytest
import wait

from proto.epd.v1 import attach_pb2 as pb

_ALICE = 61001
_BOB = 61002
# Nobody waits for as long as Alice holds her file; a machine with other load is slow.
_PROMPT_SECONDS = 2.0
_WARNING = f"of user {_ALICE} for 1s"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else"),
    pytest.mark.skipif(bool(held_file.refused()), reason=held_file.refused()),
]


def _start(daemon: epd_process.Daemon, *flags: str) -> epd_process.Daemon:
    worker = epd_process.binary("epd-worker")
    daemon.start(f"--worker={worker}", f"--attach_uids={_ALICE},{_BOB}", *flags)
    daemon.wait_for_log("worker ready")
    return daemon


def _file_of(client: attach.Client, name: str) -> int:
    """A descriptor that the client was sent, of the memory file of this name, to be written to."""
    for fd in client.fds:
        if name in os.readlink(f"/proc/self/fd/{fd}") and _is_writable(fd):
            return fd
    raise AssertionError(f"no file {name}")


def _is_writable(fd: int) -> bool:
    with open(f"/proc/self/fdinfo/{fd}") as facts:
        flags = next(int(line.split()[1], 8) for line in facts if line.startswith("flags:"))
    return flags & os.O_ACCMODE != os.O_RDONLY


def _forms_a_group(shared, uid: int, name: str) -> float:
    """In how many seconds."""
    began = time.monotonic()
    with shared.client(uid) as client:
        client.attach()
        client.join(attach.spec(name, num_ranks=1), [0])
    return time.monotonic() - began


def _is_let_in(shared, uid: int) -> bool:
    with shared.client(uid) as client:
        client.send(attach=pb.Attach(min_version=1, max_version=1, features=3))
        return client.receive().WhichOneof("body") == "attached"


def test_op_slots_of_an_ended_session_hold_up_nobody_else_and_count_as_its_users(open_daemon):
    shared = _start(open_daemon, "--max_slots_per_uid=256")
    with shared.client(_ALICE) as alice:
        alice.attach(features=3)  # It takes as many as are given.
        with held_file.held(_file_of(alice, "epd-slots")):
            alice.socket.close()  # The descriptors stay.
            shared.wait_for_log(_WARNING)
            assert _forms_a_group(shared, _BOB, "bobs") < _PROMPT_SECONDS
            assert not _is_let_in(shared, _ALICE), "what is not back counts as hers"
    wait.until(lambda: _is_let_in(shared, _ALICE), "her slots to be back")


def _replace(daemon: epd_process.Daemon) -> None:
    starts = daemon.log().count('event="serving"')
    epctl = [epd_process.binary("epctl"), f"--socket={daemon.socket}", "replace"]
    subprocess.run(epctl, check=True, timeout=60)
    daemon.wait_for_log('event="serving"', starts + 1)


def _children(pid: int) -> list[str]:
    """What each child of the process is doing: R, S, D, Z."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [
        pathlib.Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        for child in children
    ]


def test_what_is_not_back_stays_known_where_epd_is_replaced(open_daemon):
    shared = _start(open_daemon, "--max_slots_per_uid=256")
    usual = len(_children(shared.process.pid))
    with shared.client(_ALICE) as alice:
        alice.attach(features=3)
        with held_file.held(_file_of(alice, "epd-slots")):
            alice.socket.close()
            shared.wait_for_log(_WARNING)
            _replace(shared)
            shared.wait_for_log(_WARNING, 2)
            assert "D" in _children(shared.process.pid), "the one of the program before"
            assert not _is_let_in(shared, _ALICE), "what is not back counts as hers"
            assert _forms_a_group(shared, _BOB, "bobs") < _PROMPT_SECONDS
    wait.until(lambda: _is_let_in(shared, _ALICE), "her slots to be back")
    wait.until(
        lambda: "Z" not in (now := _children(shared.process.pid)) and len(now) == usual,
        "all processes that gave pages back to have ended and been reaped",
    )


@contextlib.contextmanager
def _process_with_staging(shared, uid: int) -> Iterator[int]:
    """A process in a group of its own, and a descriptor of its staging; it ends in between."""
    ours, its = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            client = shared.client(uid)
            client.attach()
            client.join(attach.spec("its", num_ranks=1), [0])
            socket.send_fds(its, [b"x"], [_file_of(client, "epd-staging")])
            its.recv(1)
        finally:
            os._exit(0)
    with ours, its:
        ours.settimeout(attach.DEADLINE_S)
        _, (staging,), _, _ = socket.recv_fds(ours, 1, 1)
        with held_file.held(staging):
            ours.send(b"x")
            os.waitpid(pid, 0)
            yield staging
        os.close(staging)


def test_staging_of_an_ended_process_holds_up_nobody_else(open_daemon):
    shared = _start(open_daemon)
    with _process_with_staging(shared, _ALICE) as staging:
        shared.wait_for_log(_WARNING)
        for step in range(3):
            assert _forms_a_group(shared, _BOB, f"bobs-{step}") < _PROMPT_SECONDS
        assert os.fstat(staging).st_blocks > 0
    assert "worker does not answer" not in shared.log()
