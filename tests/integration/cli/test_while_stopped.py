"""Goal: epctl answers within a second, truthfully, while a client and the worker are stopped in mid-operation."""

import os
import signal
import subprocess
import time

import wait

_LIMIT_SECONDS = 1.0


def _timed(epctl, *args: str) -> subprocess.CompletedProcess:
    """An answer within the limit. A busy machine makes one late; a daemon that waits for what is stopped makes all."""

    def answer() -> subprocess.CompletedProcess | None:
        begin = time.monotonic()
        ended = epctl(*args)
        return ended if time.monotonic() - begin < _LIMIT_SECONDS else None

    return wait.until(answer, f"epctl {' '.join(args)} to answer in {_LIMIT_SECONDS} s", 30)


def test_every_command_answers_while_a_client_and_the_worker_are_stopped(epd, epctl, hung):
    waiting, absent = hung
    waiting.begin("prepare")
    wait.until(
        lambda: epctl.json("groups", "hung")["groups"][0]["num_open_operations"] == 1,
        "the operation of rank 0 is not open",
    )
    phases = [rank["phase"] for rank in epctl.json("ranks", "hung")["ranks"]]
    assert phases[1].startswith("absent"), phases

    worker = epd.worker_pid()
    os.kill(waiting.pid, signal.SIGSTOP)
    os.kill(worker, signal.SIGSTOP)
    try:
        for command in ("status", "groups", "sessions", "ranks", "memory", "health", "doctor"):
            ended = _timed(epctl, command)
            assert ended.returncode in (0, 7), f"{command}: {ended.stdout}{ended.stderr}"
        assert "hung" in _timed(epctl, "top", "--once").stdout
        table = _timed(epctl, "ranks", "hung").stdout
        assert "hung" in table and str(waiting.pid) in table and str(absent.pid) in table
        wait.until(
            lambda: "does not answer" in _timed(epctl, "status").stdout,
            "status does not say that the worker is silent",
        )
    finally:
        os.kill(worker, signal.SIGCONT)
        os.kill(waiting.pid, signal.SIGCONT)
    wait.until(lambda: epctl("status").returncode == 0, "the node does not recover")
