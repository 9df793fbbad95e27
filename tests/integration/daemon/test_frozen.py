"""Goal: who is stopped together with those that wait for them takes no time off anybody's deadline: a cgroup that is frozen, a
container that is paused, a machine that is suspended."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import running_epd
import wait
import worker_processes

_RANK = pathlib.Path(__file__).with_name("retrying_rank.py")
# Rank 1 comes so late to each call, so that rank 0 is nearly always waiting for it.
_LATE_S = 1
_ABSENT_S = 4
_STOPPED_S = 7
# Until ranks go on after their daemon does, as machines do that are resumed one after the other.
_APART_S = 0.5
_FORM_S = 6
# The client's own deadline of a join is later than the daemon's by this.
_ANSWER_S = 10


class _Signals:
    """Stops processes by SIGSTOP."""

    def __init__(self, pids: list[int]):
        self._pids = pids

    def freeze(self) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        self.thaw()


class _Freezer:
    """Freezes them by a cgroup of their own, of either version."""

    def __init__(self, pids: list[int]):
        old, new = pathlib.Path("/sys/fs/cgroup/freezer"), pathlib.Path("/sys/fs/cgroup")
        self._is_old = old.is_dir()
        self._folder = (old if self._is_old else new) / f"epd-test-{os.getpid()}-{pids[0]}"
        self._folder.mkdir()
        self._before = self._cgroup_of(pids[0])
        for pid in pids:
            (self._folder / "cgroup.procs").write_text(str(pid))

    def _cgroup_of(self, pid: int) -> pathlib.Path:
        for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == ("freezer" if self._is_old else ""):
                return self._folder.parent / path.lstrip("/")
        return self._folder.parent

    def _set(self, frozen: bool) -> None:
        if self._is_old:
            (self._folder / "freezer.state").write_text("FROZEN" if frozen else "THAWED")
        else:
            (self._folder / "cgroup.freeze").write_text("1" if frozen else "0")

    def freeze(self) -> None:
        self._set(True)

    def thaw(self) -> None:
        self._set(False)

    def close(self) -> None:
        self.thaw()
        # Also those that they have started meanwhile.
        while pids := (self._folder / "cgroup.procs").read_text().split():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    (self._before / "cgroup.procs").write_text(pid)
        self._folder.rmdir()


def _freezer_lacks() -> str:
    old = pathlib.Path("/sys/fs/cgroup/freezer")
    new = pathlib.Path("/sys/fs/cgroup/cgroup.controllers")
    if os.geteuid() != 0:
        return "only root freezes cgroups"
    if not old.is_dir() and not new.is_file():
        return "no freezer is mounted at /sys/fs/cgroup"
    return "" if os.access("/sys/fs/cgroup", os.W_OK) else "/sys/fs/cgroup is read-only"


_WAYS = [
    pytest.param(_Signals, id="signals"),
    pytest.param(
        _Freezer,
        id="freezer",
        marks=pytest.mark.skipif(bool(_freezer_lacks()), reason=_freezer_lacks()),
    ),
]


class _Ranks:
    """Two processes that call again and again, of which rank 1 is late."""

    def __init__(self, *epds: running_epd.RunningEpd):
        self._files = [epds[0].folder / f"rank{rank}" for rank in (0, 1)]
        self.processes = []
        for rank, late in ((0, 0), (1, _LATE_S)):
            socket = epds[rank % len(epds)].socket
            with self._files[rank].open("wb") as out:
                command = [sys.executable, _RANK, socket, str(rank), "2", str(late)]
                self.processes.append(
                    subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=out)
                )

    def lines(self) -> list[list[str]]:
        return [file.read_text().splitlines() for file in self._files]

    def num_good(self) -> int:
        """Calls of the rank that has made fewer."""
        return min(sum(" good" in line for line in lines) for lines in self.lines())

    def failures(self) -> list[str]:
        return [line for lines in self.lines() for line in lines if " good" not in line]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _stopped(make, *parts: list[int], seconds: float):
    """Each part by itself, and they go on one after the other."""
    with contextlib.ExitStack() as stack:
        frozen = [stack.enter_context(contextlib.closing(make(pids))) for pids in parts]
        for one in reversed(frozen):
            one.freeze()
        time.sleep(seconds)
        for number, one in enumerate(frozen):
            time.sleep(_APART_S if number > 0 else 0)
            one.thaw()
        yield


def _deadlines() -> list[str]:
    return [f"--absent={_ABSENT_S}s", "--warn_after=2s"]


@pytest.mark.parametrize("make", _WAYS)
@pytest.mark.parametrize("what", ["everything", "epd and its worker", "the worker", "epd"])
def test_no_call_fails_for_the_time_in_which_nobody_ran(make, what):
    with running_epd.RunningEpd(*_deadlines()) as epd, contextlib.closing(_Ranks(epd)) as ranks:
        wait.until(lambda: ranks.num_good() > 1, "the ranks call")
        worker = epd.worker_pid()
        daemon = {"the worker": [worker], "epd": [epd.process.pid]}.get(
            what, [worker, epd.process.pid]
        )
        parts = [daemon]
        if what == "everything":
            parts.append([process.pid for process in ranks.processes])
        with _stopped(make, *parts, seconds=_STOPPED_S):
            good = ranks.num_good()
            wait.until(lambda: ranks.num_good() > good + 1, "the ranks go on")
        assert ranks.failures() == []
        assert worker_processes.of(epd.process.pid) == [worker]
        assert "did not run" in epd.log()


@pytest.mark.parametrize("make", _WAYS)
def test_two_nodes_that_are_frozen_together_find_each_other_as_they_were(make):
    with contextlib.ExitStack() as stack:
        nodes = []
        for number, name in enumerate("ab"):
            flags = [f"--node={name}", f"--listen=127.0.0.{number + 1}:0", "--heartbeat=1s"]
            if nodes:
                line = next(one for one in nodes[0].log().splitlines() if '"serving"' in one)
                flags.append("--coordinator=" + line.split(" listen=")[1].split()[0])
            node = running_epd.RunningEpd("--start_grace=0", *_deadlines(), *flags)
            nodes.append(stack.enter_context(node))
        ranks = stack.enter_context(contextlib.closing(_Ranks(*nodes)))
        wait.until(lambda: ranks.num_good() > 1, "the ranks call", 60)
        workers = [node.worker_pid() for node in nodes]
        parts = [
            [worker, node.process.pid, rank.pid]
            for worker, node, rank in zip(workers, nodes, ranks.processes, strict=True)
        ]
        with _stopped(make, *parts, seconds=_STOPPED_S):
            good = ranks.num_good()
            wait.until(lambda: ranks.num_good() > good + 1, "the ranks go on", 60)
        assert ranks.failures() == []
        for node, worker in zip(nodes, workers, strict=True):
            assert worker_processes.of(node.process.pid) == [worker]
            assert "did not run" in node.log()
            assert "lost" not in node.log(), node.log()


def test_a_join_waits_as_much_longer_as_nobody_ran():
    with running_epd.RunningEpd(*_deadlines()) as epd:
        command = [sys.executable, _RANK, epd.socket]
        with contextlib.ExitStack() as stack:
            started = []

            def start(rank: int) -> subprocess.Popen:
                process = subprocess.Popen(
                    [*command, str(rank), "2", "0.01", str(1000 * _FORM_S)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                started.append(process)
                stack.callback(process.wait)
                stack.callback(process.kill)
                return process

            first = start(0)
            wait.until(lambda: epd.api.call("ListRanks").ranks, "rank 0 waits in its join")
            daemon = [epd.worker_pid(), epd.process.pid]
            # Longer than the daemon's deadline, and than the client's own.
            with _stopped(_Signals, daemon, [first.pid], seconds=_FORM_S + _ANSWER_S + 1):
                second = start(1)
                for process in (first, second):
                    line = process.stdout.readline()
                    assert " good" in line, line + process.stdout.read() + epd.log()
