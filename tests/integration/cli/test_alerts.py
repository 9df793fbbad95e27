"""Goal: alerts of a real Prometheus, with the rules of deploy/, fire on what really happens to an epd, the first time that it happens.

Here the rules wait for a second where those of deploy/ wait for minutes (`for`); the others' causes are series that
deploy/test_metrics.py makes up, with the times as they are. EpdRankAwaited is caused in test_four_ways.py.
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import alerting
import certificates
import pytest
import running_epd
import scraped
import wait
from hung_rank import HungRank

_ALERT_SECONDS = 60


@dataclass
class Watched:
    """Whom Prometheus scrapes, and its address."""

    epd: running_epd.RunningEpd  # Room for two sessions; its worker is a copy.
    worker: pathlib.Path  # The copy.
    follower: running_epd.RunningEpd
    coordinator: running_epd.RunningEpd
    base: str

    def wait_for(self, alert: str, epd: running_epd.RunningEpd, **labels: str) -> None:
        """Until it fires for the epd with these labels."""
        instance = scraped.base(epd).removeprefix("http://")
        wanted = {"alertname": alert, "instance": instance, **labels}.items()
        wait.until(
            lambda: any(wanted <= one["labels"].items() for one in alerting.firing(self.base)),
            f"{alert} to fire",
            _ALERT_SECONDS,
        )


@pytest.fixture
def watched(tmp_path) -> Iterator[Watched]:
    authority = certificates.Authority(tmp_path)
    worker = tmp_path / "epd-worker"
    shutil.copy(running_epd.program("epd-worker"), worker)
    rules = tmp_path / "rules.yml"
    rules.write_text(re.sub(r"for: \w+", "for: 1s", alerting.RULES.read_text()))
    served = "--metrics_listen=127.0.0.1:0"
    with contextlib.ExitStack() as stack:
        start = [served, "--max_sessions=2", f"--worker={worker}"]
        epd = stack.enter_context(running_epd.RunningEpd(*start))
        first = ["--node=a", "--listen=127.0.0.1:0", "--start_grace=0", *authority.sign("a")]
        coordinator = stack.enter_context(running_epd.RunningEpd(*first))
        address = re.search(r"\blisten=(\S+)", coordinator.log())[1]
        second = ["--node=b", f"--coordinator={address}", *authority.sign("b"), served]
        follower = stack.enter_context(running_epd.RunningEpd(*second))
        scrapes = alerting.prometheus([epd, follower], tmp_path, rules)
        base = stack.enter_context(scrapes)
        yield Watched(epd, worker, follower, coordinator, base)


def test_what_happens_to_an_epd_is_alerted(watched):
    epd = watched.epd
    watched.wait_for("EpdCertificateEnds", watched.follower)  # It is for a day.
    watched.coordinator.process.kill()
    watched.coordinator.process.wait()
    watched.wait_for("EpdNoCoordinator", watched.follower)
    with contextlib.ExitStack() as stack:
        ranks = [HungRank(epd.socket, rank) for rank in (0, 1)]
        for rank in ranks:
            stack.callback(rank.close)
        for rank in ranks:
            rank.expect("joined")
        watched.wait_for("EpdNearLimit", epd, setting="max_sessions")

        ranks[0].begin("half")
        os.kill(ranks[1].pid, signal.SIGKILL)
        assert ranks[0].result("half")[0] != 0
        watched.wait_for("EpdOperationsFail", epd, kind="prepare")
        watched.wait_for("EpdGroupNotReady", epd, group="hung")
        watched.wait_for("EpdDegraded", epd)

        os.kill(epd.worker_pid(), signal.SIGSTOP)
        watched.wait_for("EpdWorkerSilent", epd)
        watched.worker.unlink()  # So that no other takes its place.
        os.kill(epd.worker_pid(), signal.SIGKILL)
        watched.wait_for("EpdWorkerRestarts", epd, cause="signal_9")
        watched.wait_for("EpdWorkerDown", epd, worker="cpu")
    epd.process.kill()
    epd.process.wait()
    watched.wait_for("EpdAbsent", epd)
