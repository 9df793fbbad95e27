"""Goal: a training does not notice that epd's program is replaced under it (`epctl replace`), on one node or on two with TLS."""

import subprocess

import harness
import pytest
from harness import Daemon, running_daemon
from nodes import running_nodes
from trainings import Training

_SCRIPT = "goes_on.py"


def _replace(daemon: Daemon) -> None:
    said = subprocess.run(
        [harness.binary("epctl"), f"--socket={daemon.socket}", "replace"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert "in the same process" in said.stdout


def _expect_nothing_but_steps(training: Training) -> None:
    training.expect_finish()
    for said in training.said():
        others = [line for line in said.splitlines() if not line.startswith("step ")]
        assert others == ["goes_on: fine"], others


@pytest.mark.parametrize("executor", ["client", "worker"])
def test_a_training_notices_no_replacement_of_its_daemon(executor: str):
    with (
        running_daemon() as daemon,
        Training(_SCRIPT, [daemon] * 3, 120, EPD_EXECUTOR=executor) as training,
    ):
        worker = daemon.worker_pid()
        for step in (10, 30, 50, 70):
            training.reach(step)
            _replace(daemon)
        _expect_nothing_but_steps(training)
        assert daemon.worker_pid() == worker


def test_a_training_over_two_nodes_with_tls_notices_no_replacement_of_either():
    with (
        running_nodes(2, tls=True) as nodes,
        Training(_SCRIPT, [*nodes.daemons, nodes.daemons[1]], 120) as training,
    ):
        for step, replaced in ((10, 0), (40, 1), (70, 0)):
            training.reach(step)
            _replace(nodes.daemons[replaced])
        _expect_nothing_but_steps(training)
