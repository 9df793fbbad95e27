"""Goal: a user for whose memory a worker waits in the kernel is named, and put out for a while; nobody else is blamed."""

import os
import pathlib
import signal

import attach_client as attach
import epd_process
import pytest
import wait
from node_calls import NodeApi

from proto.epd.v1 import attach_pb2 as pb

_ALICE = 61001
_BOB = 61002
_PERMISSION_DENIED = 7
_NAMED = "waits in the kernel for a user's memory"
_WHY = f"uid={_ALICE} has kept the worker of node "

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")


def _start(daemon: epd_process.Daemon, uid: int, *flags: str) -> epd_process.Daemon:
    daemon.start(
        f"--attach_uids={_ALICE},{_BOB}",
        "--worker_heartbeat=100ms",
        *flags,
        quirks=f"held_up_by={uid}",
    )
    daemon.wait_for_log("worker ready")
    return daemon


def _hold_up(shared: epd_process.Daemon) -> int:
    """The process whose end lets the worker go on."""
    worker = shared.worker_pid()
    os.kill(worker, signal.SIGUSR2)
    children = pathlib.Path(f"/proc/{worker}/task/{worker}/children")
    wait.until(lambda: children.read_text().split(), "the worker waits")
    return int(children.read_text())


def _answer(shared: epd_process.Daemon, uid: int) -> pb.ServerMessage:
    with shared.client(uid) as client:
        client.send(attach=pb.Attach(min_version=1, max_version=1))
        return client.receive()


def _is_let_in(shared: epd_process.Daemon, uid: int) -> bool:
    return _answer(shared, uid).WhichOneof("body") == "attached"


def test_who_keeps_a_worker_waiting_in_the_kernel_is_named_ended_and_refused_for_a_while(
    open_daemon,
):
    shared = _start(open_daemon, _ALICE, "--refuse_after_hold_up=4s")
    with shared.client(_ALICE) as alice, shared.client(_BOB) as bob:
        alice.attach()
        bob.attach()
        bob.join(attach.spec("bobs", num_ranks=1), [0])
        child = _hold_up(shared)
        status = alice.expect("goodbye").status
        assert status.code == _PERMISSION_DENIED
        assert _WHY in status.message and "it may attach again in " in status.message
        refused = _answer(shared, _ALICE)
        assert _WHY in str(refused), refused
        assert _is_let_in(shared, _BOB) and _is_let_in(shared, 0)
        with NodeApi(f"unix:{shared.grpc_socket}") as api:
            assert any(
                f"; it waits in the kernel for memory of uid={_ALICE}; it is replaced" in problem
                for problem in api.GetStatus().problems
            )
            assert (
                f"; it waits in the kernel for memory of uid={_ALICE}; the ranks'"
                in api.ExplainGroup(name="bobs").evidence
            )
        wait.until(lambda: _is_let_in(shared, _ALICE), "her time is over", seconds=20)
        os.kill(child, signal.SIGKILL)
        shared.wait_for_log("worker answers again")
        bob.join(attach.spec("more-of-bobs", num_ranks=1), [0])
    assert shared.log().count(_NAMED) == 1


@pytest.mark.parametrize(
    ("uid", "flags"),
    [
        pytest.param(_ALICE, ["--refuse_after_hold_up=0"], id="refuse_after_hold_up=0"),
        pytest.param(0, [], id="epds own user"),
    ],
)
def test_who_is_not_to_be_refused_is_named_and_stays(open_daemon, uid, flags):
    shared = _start(open_daemon, uid, *flags)
    with shared.client(uid) as client:
        client.attach()
        child = _hold_up(shared)
        shared.wait_for_log(_NAMED)
        os.kill(child, signal.SIGKILL)
        shared.wait_for_log("worker answers again")
        client.join(attach.spec("stays", num_ranks=1), [0])


def test_a_worker_that_is_stopped_blames_nobody(open_daemon):
    shared = _start(open_daemon, _ALICE)
    with shared.client(_ALICE) as alice:
        alice.attach()
        worker = shared.worker_pid()
        os.kill(worker, signal.SIGSTOP)
        shared.wait_for_log("worker does not answer")
        os.kill(worker, signal.SIGCONT)
        shared.wait_for_log("worker answers again")
        alice.join(attach.spec("hers", num_ranks=1), [0])
    assert _NAMED not in shared.log()
