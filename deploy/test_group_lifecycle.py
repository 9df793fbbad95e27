"""Goal: an orchestrator can lead a group through its whole life with nothing but epd.cluster."""

import os
import pathlib
import socket
import subprocess
import sys

import grpc
import pytest
import running_epd
from epd import cluster

_SCRIPT = pathlib.Path(__file__).with_name("group_lifecycle.py")


@pytest.fixture
def epd():
    with running_epd.RunningEpd() as running:
        yield running


def _run(epd, *args: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(_SCRIPT), "--target", f"unix:{epd.grpc_socket}", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=os.sep)


def test_a_group_is_created_watched_drained_and_closed(epd):
    ended = _run(epd, "--name", "train", "--ranks", "2", "--drain-seconds", "5")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "created: train" in ended.stdout
    assert "rank 0 missing, rank 1 missing" in ended.stdout
    assert ended.stdout.rstrip().splitlines()[-1].startswith("done: FORMING")
    assert ended.stdout.rstrip().endswith("CLOSED")
    assert not epd.api.call("ListGroups").groups


def test_ranks_that_do_not_come_are_an_error_and_the_group_is_closed(epd):
    ended = _run(epd, "--name", "train", "--wait-ready", "0.3")
    assert ended.returncode == 1
    assert "not READY within" in ended.stderr and "epctl ranks train" in ended.stderr
    assert not epd.api.call("ListGroups").groups


def test_a_name_that_is_taken_is_said(epd):
    spec = epd.api.message(
        "GroupSpec",
        name="train",
        num_ranks=2,
        num_experts=2,
        max_tokens_per_rank=8,
        recv_capacity_per_rank=16,
        hidden=4,
        max_token_dtype="DTYPE_FLOAT32",
    )
    epd.api.call("CreateGroup", request_id="1", spec=spec)
    ended = _run(epd, "--name", "train")
    assert ended.returncode == 1 and "ALREADY_EXISTS" in ended.stderr
    assert [group.spec.name for group in epd.api.call("ListGroups").groups] == ["train"]


def test_where_there_is_no_daemon_the_remedy_comes_first(tmp_path):
    target = f"unix:{tmp_path}/none-grpc.sock"
    command = [sys.executable, str(_SCRIPT), "--target", target, "--name", "g"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    remedy = f"error: UNAVAILABLE: start one there with 'epd --socket={tmp_path}/none.sock', or "
    assert ended.returncode == 1 and ended.stderr.startswith(remedy), ended
    _check_refused(target, "start one there with 'epd --socket=")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_where_nobody_listens_on_an_address_the_remedy_comes_first(host):
    with socket.socket() as held:  # Bound, so nobody else's; it does not listen.
        held.bind(("127.0.0.1", 0))
        target = f"{host}:{held.getsockname()[1]}"
        _check_refused(target, f"start one there with 'epd --listen={target}', or give the ")


def _check_refused(target: str, remedy: str) -> None:
    with cluster.Node(target) as node:
        for call in (lambda: node.call("GetStatus"), lambda: node.stream("WatchGroup", name="g")):
            with pytest.raises(cluster.NoDaemonError) as refused:
                call()
            assert str(refused.value).startswith(f"[epd:UNAVAILABLE] {remedy}"), refused
            assert target.removeprefix("unix:") in refused.value.details()
            assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
