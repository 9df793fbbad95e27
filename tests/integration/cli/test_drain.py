"""Goal: a drain lets real clients' open operations finish, refuses new ones, and cuts off what is late."""

import subprocess
import time

import pytest
import running_epd
import wait

_FAILED_PRECONDITION = 9


def _state(epctl) -> str:
    return epctl.json("groups", "hung")["groups"][0]["state"]


@pytest.fixture
def drain(epd):
    """Begins `epctl drain hung --deadline D`; returns its process, which is not waited for."""
    started = []

    def begin(deadline: str) -> subprocess.Popen:
        command = [str(running_epd.program("epctl")), "--socket", epd.socket]
        command += ["drain", "hung", "--deadline", deadline]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def _open_operation(epctl, hung) -> None:
    """Rank 0 waits for rank 1 in the operation "first"."""
    hung[0].begin("first")
    wait.until(
        lambda: epctl.json("groups", "hung")["groups"][0]["num_open_operations"] == 1,
        "the operation of rank 0 is not open",
    )


def test_the_open_operation_finishes_new_ones_are_refused_and_then_the_group_is_gone(
    epctl, hung, drain
):
    _open_operation(epctl, hung)
    ending = drain("20s")
    wait.until(lambda: _state(epctl) == "GROUP_STATE_DRAINING", "the group does not drain")
    for rank in hung:
        rank.begin("second")
        code, message = rank.result("second")
        assert code == _FAILED_PRECONDITION and "group=hung" in message, message
        assert "draining" in message
    assert ending.poll() is None, "the drain did not wait for the open operation"

    hung[1].begin("first")
    assert [rank.result("first") for rank in hung] == [(0, "")] * 2
    stdout, stderr = ending.communicate(timeout=10)
    assert ending.returncode == 0, stdout + stderr
    assert (
        "(epoch 1; on node" in stdout and " 1 operations done, 0 failed, 2 failed calls," in stdout
    )
    assert epctl("ranks", "hung").returncode == 2
    for rank in hung:
        rank.begin("third")
        code, message = rank.result("third")
        assert code == _FAILED_PRECONDITION and "closed by an operator" in message, message


def test_an_operation_that_is_late_is_cut_off_at_the_deadline_and_everybody_is_told(
    epctl, hung, drain
):
    _open_operation(epctl, hung)
    begin = time.monotonic()
    ending = drain("500ms")
    code, message = hung[0].result("first")
    stdout, stderr = ending.communicate(timeout=10)
    assert 0.5 <= time.monotonic() - begin < 5
    assert code == _FAILED_PRECONDITION and "group=hung" in message, message
    assert ending.returncode == 6, stdout + stderr
    assert "group=hung" in stderr and "cut off" in stderr
    assert epctl("ranks", "hung").returncode == 2
