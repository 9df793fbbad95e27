"""Goal: a daemon that is stopped and started again, as an upgrade does, ends no training: no call fails, and every row is right."""

import os
import signal
import subprocess
import time

import harness
import pytest
import wait
from harness import Daemon, clean_environment, epds_of, python, running_daemon, short_folder
from nodes import running_nodes

_SCRIPT = harness.HERE / "scripts" / "goes_on.py"


class _Training:
    """Processes that run goes_on, one in front of each daemon; without a daemon's socket where they start a private one."""

    def __init__(self, daemons: list[Daemon], steps: int, **given: str):
        self._said = [daemon.folder / f"rank{rank}.out" for rank, daemon in enumerate(daemons)]
        self._processes = []
        private = "XDG_RUNTIME_DIR" in given
        for rank, daemon in enumerate(daemons):
            with self._said[rank].open("w") as said:
                own = given if private else {"EPD_SOCKET": daemon.socket, **given}
                words = [str(_SCRIPT), str(steps), str(len(daemons)), str(rank)]
                self._processes.append(
                    subprocess.Popen(
                        [*daemon.inside, *python(*words)],
                        env=clean_environment(EPD_FORM_TIMEOUT="60", **own),
                        stdin=subprocess.DEVNULL,
                        stdout=said,
                        stderr=subprocess.STDOUT,
                    )
                )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._processes:
            process.kill()
            process.wait()

    def said(self) -> list[str]:
        return [path.read_text() for path in self._said]

    def reach(self, step: int) -> None:
        wait.until(
            lambda: (self._all_live() and all(f"step {step}\n" in said for said in self.said())),
            f"all ranks to reach step {step}",
            90,
        )

    def _all_live(self) -> bool:
        assert not any(process.poll() for process in self._processes), self.said()
        return True

    def expect_finish(self) -> None:
        assert [process.wait(90) for process in self._processes] == [0] * len(self._processes), (
            self.said()
        )
        assert all("goes_on: fine" in said for said in self.said())


def _stop_and_start(daemon: Daemon, away: float, *options: str) -> None:
    assert daemon.stop() == 0, daemon.log_tail()
    time.sleep(away)
    daemon.start(*options)


@pytest.mark.parametrize("executor", ["client", "worker"])
def test_a_training_that_retries_nothing_outlives_stops_of_its_daemon(executor: str):
    with (
        running_daemon() as daemon,
        _Training([daemon] * 3, 150, EPD_EXECUTOR=executor) as training,
    ):
        for step, away in ((20, 0.0), (60, 1.5)):
            training.reach(step)
            _stop_and_start(daemon, away)
        training.expect_finish()
        assert "waiting up to 60 s for the daemon" in training.said()[0], "a wait has a name"


@pytest.mark.parametrize("stopped", [0, 1], ids=["coordinator", "other"])
def test_a_training_over_two_nodes_outlives_the_stop_of_one(stopped: int):
    with running_nodes(2) as nodes, _Training([*nodes.daemons, nodes.daemons[1]], 150) as training:
        training.reach(30)
        daemon = nodes.daemons[stopped]
        address = f"--listen={daemon.listen_address()}"
        given = [word for word in daemon.options if not word.startswith("--listen=")]
        _stop_and_start(daemon, 1.0, *given, address)
        training.expect_finish()


def test_a_private_daemon_that_is_stopped_is_started_again_and_nothing_fails():
    with short_folder() as folder:
        folder.chmod(0o700)
        private = {"XDG_RUNTIME_DIR": str(folder), "EPD_PROGRAM": harness.binary("epd")}
        with _Training([Daemon(folder / "run")] * 2, 100, **private) as training:
            training.reach(20)
            (pid,) = epds_of(folder)
            os.kill(pid, signal.SIGTERM)
            training.expect_finish()
        wait.until(lambda: not epds_of(folder), "the private epd to end")
