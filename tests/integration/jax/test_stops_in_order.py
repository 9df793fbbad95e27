"""Goal: a daemon that is stopped and started again, as an upgrade does, ends no training: no call fails, and every row is right."""

import os
import signal
import time

import harness
import pytest
import wait
from harness import Daemon, epds_of, running_daemon, short_folder
from nodes import running_nodes
from trainings import Training, start_again

_SCRIPT = "goes_on.py"


def _stop(daemon: Daemon, away: float) -> None:
    assert daemon.stop() == 0, daemon.log_tail()
    time.sleep(away)


@pytest.mark.parametrize("executor", ["client", "worker"])
def test_a_training_that_retries_nothing_outlives_stops_of_its_daemon(executor: str):
    with (
        running_daemon() as daemon,
        Training(_SCRIPT, [daemon] * 3, 150, EPD_EXECUTOR=executor) as training,
    ):
        for step, away in ((20, 0.0), (60, 1.5)):
            training.reach(step)
            _stop(daemon, away)
            daemon.start()
        training.expect_finish()
        assert "waiting up to 60 s for the daemon" in training.said()[0], "a wait has a name"


@pytest.mark.parametrize("stopped", [0, 1], ids=["coordinator", "other"])
def test_a_training_over_two_nodes_outlives_the_stop_of_one(stopped: int):
    with (
        running_nodes(2) as nodes,
        Training(_SCRIPT, [*nodes.daemons, nodes.daemons[1]], 150) as training,
    ):
        training.reach(30)
        daemon = nodes.daemons[stopped]
        _stop(daemon, 1.0)
        start_again(daemon)
        training.expect_finish()


def test_a_private_daemon_that_is_stopped_is_started_again_and_nothing_fails():
    with short_folder() as folder:
        folder.chmod(0o700)
        private = {"XDG_RUNTIME_DIR": str(folder), "EPD_PROGRAM": harness.binary("epd")}
        with Training(_SCRIPT, [Daemon(folder / "run")] * 2, 100, **private) as training:
            training.reach(20)
            (pid,) = epds_of(folder)
            os.kill(pid, signal.SIGTERM)
            training.expect_finish()
        wait.until(lambda: not epds_of(folder), "the private epd to end")
