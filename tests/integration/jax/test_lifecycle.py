"""Goal: processes come and go, and so do daemons, without a hang, a leak or a surprise."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import harness
import pytest
import wait
from harness import (
    Fleet,
    Setup,
    clean_environment,
    epds_of,
    python,
    running_daemon,
    short_folder,
)

_SCRIPTS = harness.HERE / "scripts"


def _run(script: str, seconds: float = 120, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        python(str(_SCRIPTS / f"{script}.py")),
        env=clean_environment(**environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def test_fork_and_multiprocessing():
    with running_daemon() as daemon:
        ended = _run("forks", EPD_SOCKET=daemon.socket)
        assert ended.returncode == 0, ended.stderr
        assert "forks: fine" in ended.stdout


def _expect_interrupt(rank: subprocess.Popen[str]) -> None:
    sent = time.monotonic()
    rank.send_signal(signal.SIGINT)
    word, _, at = rank.stdout.readline().partition(" ")
    assert word == "interrupted" and float(at) - sent < 1, rank.stderr.read()


@pytest.mark.parametrize(
    ("where", "handler"),
    [
        ("forming", "python"),
        ("forming", "asyncio"),
        ("forming", "own"),
        ("forming", "flag"),
        ("running", "python"),
        ("running", "cell"),
        ("running", "asyncio"),
        ("running", "own"),
        ("running", "flag"),
    ],
)
def test_ctrl_c_ends_a_wait_within_a_second_and_the_group_goes_on(where: str, handler: str):
    with running_daemon() as daemon:
        ranks = [
            subprocess.Popen(
                python(str(_SCRIPTS / "interrupted.py"), where, str(rank), handler),
                env=clean_environment(EPD_SOCKET=daemon.socket, EPD_FORM_TIMEOUT="60"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(1 if where == "forming" else 2)
        ]
        try:
            for rank in ranks:
                assert rank.stdout.readline() == "waiting\n", rank.stderr.read()
            time.sleep(1)  # It is deep in its wait, and not on its way there.
            if handler == "flag":  # The first is the program's to act upon, and the wait goes on.
                ranks[0].send_signal(signal.SIGINT)
                assert ranks[0].stdout.readline() == "noted\n", ranks[0].stderr.read()
                time.sleep(0.5)
                ranks[0].send_signal(signal.SIGINT)
                assert ranks[0].stdout.readline() == "noted\n", ranks[0].stderr.read()
                assert ranks[0].stdout.readline().startswith("interrupted ")
            else:
                _expect_interrupt(ranks[0])
            for rank in ranks:
                rank.stdin.write("go on\n")
                rank.stdin.flush()
            ended = [rank.communicate(timeout=60) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert [rank.returncode for rank in ranks] == [0] * len(ranks), ended
        if where == "running":
            assert all(out.endswith("again\n") for out, _ in ended), ended


def _expect_restarts(replace: Callable[[int], None], **environment: str) -> None:
    """Runs restart.py, for which ``replace`` puts a new daemon in the old one's place, with the number of the time."""
    job = subprocess.Popen(
        python(str(_SCRIPTS / "restart.py")),
        env=clean_environment(**environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for time_ in range(2):
            assert job.stdout.readline() == "restart\n", job.stderr.read()
            replace(time_)
            job.stdin.write("restarted\n")
            job.stdin.flush()
        out, errors = job.communicate(timeout=60)
    finally:
        job.kill()
    assert job.returncode == 0, errors
    assert "restart: fine" in out


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_restarted_daemon_is_reported_once_and_joined_again(ending: str):
    with running_daemon() as daemon:

        def replace(time_: int) -> None:
            getattr(daemon, ending)()
            daemon.start(*((), ("--staging_bytes=300MiB",))[time_])  # Then with another pool.

        # A stop in order is no loss, unless nobody waits for the daemon.
        patience = "0" if ending == "stop" else "30"
        _expect_restarts(
            replace,
            EPD_SOCKET=daemon.socket,
            EPD_AUTOSTART="0",
            EPD_RECONNECT_TIMEOUT=patience,
        )


def test_a_private_daemon_that_is_killed_is_reported_once_and_started_again():
    with short_folder() as folder:
        folder.chmod(0o700)

        def replace(_: int) -> None:
            (pid,) = epds_of(folder)
            os.kill(pid, signal.SIGKILL)
            wait.until(lambda: not epds_of(folder), "the private epd to be gone")

        program = harness.binary("epd")
        _expect_restarts(
            replace, XDG_RUNTIME_DIR=str(folder), EPD_PROGRAM=program, EPD_JOB="private"
        )


def test_killed_process_is_named_and_fresh_ones_can_use_the_daemon():
    with running_daemon() as daemon:
        report = Fleet(Setup("killed", processes=2, mesh=(1, 2)), daemon.folder, daemon).run(120)
        assert report.statuses == [0, -signal.SIGKILL], (report.logs, report.daemon_log)
        assert report.outcomes[0] == {"check_survivor_is_told_who_died": "ok"}, report.outcomes
        ended = _run("alone", EPD_SOCKET=daemon.socket)
        assert ended.returncode == 0, ended.stderr


class _Outliving:
    """The processes of outlives.py; 1 dies."""

    def __init__(self, daemon: harness.Daemon, recoverable: bool):
        self._environment = clean_environment(
            EPD_SOCKET=daemon.socket, JAX_ENABLE_RECOVERABILITY=str(int(recoverable))
        )
        self._port = str(harness.free_port())
        self.processes = [self.start(i, part) for i, part in enumerate(("stays", "dies", "stays"))]

    def start(self, index: int, part: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            python(str(_SCRIPTS / "outlives.py"), self._port, str(index), part),
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def expect(self, word: str, *which: int) -> None:
        for process in [self.processes[i] for i in which]:
            assert process.stdout.readline() == f"{word}\n", process.communicate(timeout=60)[1]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def _outliving(recoverable: bool) -> Iterator[_Outliving]:
    with running_daemon() as daemon:
        job = _Outliving(daemon, recoverable)
        try:
            job.expect("told", 0, 2)
            yield job
        finally:
            job.end()


def test_survivors_that_epd_has_told_go_on_where_jaxs_recoverability_is_on_and_else_are_ended_by_jax():
    """The second part is what the README says of JAX: if it fails, JAX has become kinder."""
    with _outliving(recoverable=True) as job, _outliving(recoverable=False) as other:
        for i in (0, 2):
            _, errors = other.processes[i].communicate(timeout=60)
            assert other.processes[i].returncode == -signal.SIGABRT, errors
        job.expect("outlived", 0, 2)
        job.processes.append(job.start(1, "comes"))
        job.expect("whole", 0, 2, 3)
        for i in (3, 2, 0):  # JAX's service is in process 0: who ends after it is ended by JAX.
            _, errors = job.processes[i].communicate("end\n", timeout=60)
            assert job.processes[i].returncode == 0, errors


def test_a_failed_check_ends_the_other_processes_barriers():
    """The harness itself: what fails on one process fails everywhere at once, and the next check runs."""
    with running_daemon() as daemon:
        began = time.monotonic()
        report = Fleet(Setup("one_fails", processes=2, mesh=(1, 2)), daemon.folder, daemon).run(100)
    first = report.outcomes[0]["check_planted_failure"]
    assert "process 1: AssertionError: planted" in first, report
    report.expect("check_afterwards")
    report.expect_clean_exit()
    assert time.monotonic() - began < 100, "the barrier was waited out"


def test_without_a_daemon_and_without_autostart_the_error_says_what_to_do():
    with short_folder() as folder:
        ended = _run("alone", EPD_SOCKET=str(folder / "none.sock"), EPD_AUTOSTART="0")
        assert ended.returncode != 0
        last = ended.stderr.strip().splitlines()[-1]
        assert "EpError" in last and "[epd:UNAVAILABLE]" in ended.stderr, ended.stderr
        assert str(folder / "none.sock") in ended.stderr


def test_without_autostart_no_private_daemon_is_started():
    with short_folder() as folder:
        folder.chmod(0o700)
        ended = _run("alone", XDG_RUNTIME_DIR=str(folder), EPD_AUTOSTART="0")
        assert ended.returncode != 0
        assert "unset EPD_AUTOSTART" in ended.stderr, ended.stderr
        assert not epds_of(folder) and not list(folder.rglob("*")), list(folder.rglob("*"))


def test_too_long_socket_path_is_an_error():
    ended = _run("alone", EPD_SOCKET="/tmp/" + "x" * 120, EPD_AUTOSTART="0")
    assert ended.returncode != 0
    assert "[epd:INVALID_ARGUMENT]" in ended.stderr and "107" in ended.stderr, ended.stderr


def test_four_processes_start_one_private_daemon_that_ends_after_them():
    with short_folder() as folder:
        folder.chmod(0o700)
        environment = {
            "XDG_RUNTIME_DIR": str(folder),
            "EPD_PROGRAM": harness.binary("epd"),
            "EPD_JOB": "autostart",
        }
        setup = Setup("operations_thin", processes=4, mesh=(2, 2), environment=environment)
        report = Fleet(setup, folder, None).run(200)
        report.expect("check_round_trip")
        report.expect("check_one_daemon")
        assert sum(log.count("starting a private one") for log in report.logs) == 1, report.logs
        wait.until(lambda: not epds_of(folder), "the private epd to end")
        assert not list(folder.rglob("*.sock")), list(folder.rglob("*"))
