"""Goal: independent JAX processes meet in a group by name and rank, and one that cannot name its job is told so."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator

import false_alarms
import pytest
import wait
from harness import (
    HERE,
    binary,
    clean_environment,
    epds_of,
    python,
    run_together,
    running_daemon,
    short_folder,
)

_SCRIPT = str(HERE / "scripts" / "by_rank.py")
_REPLACED = str(HERE / "scripts" / "replaced.py")
# By by_rank.py: a bad index, and twice two operations of programs that do differ.
_PROVOKED = 1 + 2 * 2


def _environment(daemon, devices: int = 1) -> dict[str, str]:
    return clean_environment(
        EPD_SOCKET=daemon.socket,
        EPD_FORM_TIMEOUT="60",
        EPD_WARN_AFTER="2",
        EPD_ABSENT_TIMEOUT="30",
        XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}",
    )


@pytest.mark.parametrize("held", [[[0], [1], [2], [3]], [[0, 1, 3], [2]]], ids=["4", "3+1"])
def test_processes_without_jax_distributed_meet_by_rank(held: list[list[int]]):
    with running_daemon() as daemon:
        commands = [
            (python(_SCRIPT, "4", *[str(rank) for rank in ranks]), _environment(daemon, len(ranks)))
            for ranks in held
        ]
        for out, errors in run_together(commands, daemon):
            assert "by_rank: fine" in out, errors
        false_alarms.compared(daemon.socket).expect(
            f"processes that hold {held}", provoked=_PROVOKED
        )


def test_another_process_takes_the_place_of_a_killed_one_and_the_other_compiles_nothing():
    with running_daemon() as daemon:

        def started(part: str) -> subprocess.Popen:
            return subprocess.Popen(
                python(_REPLACED, part),
                env=_environment(daemon),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

        processes = [started("stays"), started("dies")]
        try:
            told = processes[0].stdout.readline()
            if told == "told\n":
                processes.append(started("comes"))
            ended = [process.communicate(timeout=200) for process in processes]
        finally:
            for process in processes:
                process.kill()
        log = "".join(errors for _, errors in ended) + daemon.log_tail()
        assert told == "told\n", log
        statuses = [process.returncode for process in processes]
        assert statuses == [0, -signal.SIGKILL, 0], (statuses, log)
        assert [out for out, _ in ended] == ["replaced: fine\n", "", "replaced: fine\n"], log


def test_a_process_that_cannot_name_its_job_is_refused_and_one_that_holds_all_ranks_is_not():
    sizes = "num_experts=4, max_tokens_per_rank=8, recv_capacity_per_rank=64, hidden_dim=8"
    with running_daemon() as daemon:
        for rank, status in (("0", 1), ("(0, 1)", 0)):
            ended = subprocess.run(
                python("-c", f"from epd.jax import Group; Group.join('g', 2, {rank}, {sizes})"),
                env=_environment(daemon),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert ended.returncode == status, ended.stderr
            if status:
                assert "ValueError" in ended.stderr and "EPD_JOB" in ended.stderr, ended.stderr


def test_ranks_that_each_have_a_private_daemon_are_told_where_they_waited():
    """As in containers of their own. They have no store in common, so nobody can say it before the deadline."""
    sizes = "num_experts=2, max_tokens_per_rank=8, recv_capacity_per_rank=64, hidden_dim=8"
    with short_folder() as one, short_folder() as other:
        ranks = []
        for rank, folder in enumerate((one, other)):
            folder.chmod(0o700)
            environment = clean_environment(
                XDG_RUNTIME_DIR=str(folder),
                EPD_PROGRAM=binary("epd"),
                EPD_FORM_TIMEOUT="3",
                EPD_JOB="apart",
            )
            code = f"from epd.jax import Group; Group.join('g', 2, {rank}, {sizes})"
            ranks.append(
                subprocess.Popen(
                    python("-c", code),
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        try:
            said = [rank.communicate(timeout=100)[1] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        for rank, folder in enumerate((one, other)):
            assert f"missing: ranks {1 - rank}" in said[rank], said[rank]
            assert f"with the private epd at {folder}/epd/epd.sock" in said[rank], said[rank]
            wait.until(lambda f=folder: not epds_of(f), "the private epd to end")


def test_a_client_of_another_framework_exchanges_through_the_c_interface_and_attaches_again():
    with running_daemon() as daemon, contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(_ended_with(_program_client(rank, daemon))) for rank in range(2)
        ]
        assert [process.stdout.readline() for process in processes] == ["exchanged\n"] * 2
        daemon.kill()
        daemon.start()
        for process in processes:
            process.stdin.write("killed\n")
            process.stdin.flush()
        for rank, process in enumerate(processes):
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            lost, again, closing = out.splitlines()
            assert lost.startswith("lost: [epd:UNAVAILABLE]"), lost
            assert again == "exchanged again"
            assert closing == f"program_client {rank}: fine; JAX is loaded: False"


def _program_client(rank: int, daemon) -> subprocess.Popen:
    return subprocess.Popen(
        python(str(HERE / "scripts" / "program_client.py"), str(rank)),
        env=_environment(daemon),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def _ended_with(process: subprocess.Popen) -> Iterator[subprocess.Popen]:
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
