"""Goal: while a rank is stopped, somebody who knows nothing of the job finds it by each of four ways: why, the page, an alert of a
real Prometheus with the rules of deploy/, and the trace. Each leads to what to do."""

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import alerting
import pytest
import running_epd
import scraped
import wait
from epctl_process import Epctl
from hung_rank import HungRank

_RUNBOOK = running_epd.ROOT / "deploy" / "runbook.md"
# The alert fires once a rank is awaited for 20 s.
_ALERT_SECONDS = 90


@dataclass(frozen=True)
class Stuck:
    """Rank 0 of the group "hung" has called, rank 1 is stopped."""

    epd: running_epd.RunningEpd
    epctl: Epctl
    waiting_pid: int
    stopped_pid: int


@pytest.fixture(scope="module")
def stuck() -> Iterator[Stuck]:
    with contextlib.ExitStack() as stack:
        epd = stack.enter_context(running_epd.RunningEpd("--metrics_listen=127.0.0.1:0"))
        epctl = Epctl(epd.socket)
        ranks = [HungRank(epd.socket, rank) for rank in (0, 1)]
        for rank in ranks:
            stack.callback(rank.close)
        for rank in ranks:
            rank.expect("joined")
        os.kill(ranks[1].pid, signal.SIGSTOP)
        ranks[0].begin("step7")
        wait.until(
            lambda: scraped.metric(epd, "epd_rank_awaited_seconds").get(("hung", "", "1"), 0) > 1,
            "rank 1 to be awaited",
        )
        yield Stuck(epd, epctl, ranks[0].pid, ranks[1].pid)


def test_by_why(stuck):
    ended = stuck.epctl("why", "hung")
    assert "culprit: rank 1" in ended.stdout, ended
    assert f"pid {stuck.stopped_pid}" in ended.stdout
    assert "step7" in ended.stdout


def test_by_the_page(stuck, tmp_path):
    command = [alerting.needs("chromium"), "--headless=new", "--no-sandbox", "--disable-gpu"]
    command += [f"--user-data-dir={tmp_path}/browser", "--virtual-time-budget=3000", "--dump-dom"]
    page = subprocess.run(
        [*command, scraped.base(stuck.epd)], capture_output=True, text=True, timeout=120
    ).stdout
    assert "Group hung waits for rank 1" in page
    assert f"pid {stuck.stopped_pid}) since" in page


def test_by_an_alert(stuck, tmp_path):
    with alerting.prometheus([stuck.epd], tmp_path, alerting.RULES) as base:
        alerts = wait.until(
            lambda: [
                a for a in alerting.firing(base) if a["labels"]["alertname"] == "EpdRankAwaited"
            ],
            "the alert fires",
            _ALERT_SECONDS,
        )
        others = {a["labels"]["alertname"] for a in alerting.firing(base)} - {"EpdRankAwaited"}
    (alert,) = alerts
    assert (alert["labels"]["group"], alert["labels"]["rank"]) == ("hung", "1")
    assert re.match(r"group hung waits for rank 1 since \d", alert["annotations"]["summary"])
    place = alert["annotations"]["runbook"].removeprefix("deploy/runbook.md: ")
    assert f"**{place}" in _RUNBOOK.read_text() or f"## {place}\n" in _RUNBOOK.read_text()
    assert others <= {"EpdDegraded"}, others  # None leads elsewhere.


def test_by_the_trace(stuck):
    trace = json.loads(stuck.epctl("trace", "hung", "--seconds=0.1").stdout)
    (operation,) = [e for e in trace["traceEvents"] if e.get("cat") == "operation"]
    assert operation["args"]["open"] and operation["args"]["missing"] == "rank 1"
    assert "name=step7" in operation["args"]["key"]
    threads = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"]
    assert threads == [f"rank 0 (pid {stuck.waiting_pid})"]
