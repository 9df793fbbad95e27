"""Goal: alerts of a real Prometheus, with the rules of deploy/, fire on what really happens to an epd, the first time that it happens.

Here the rules wait for a second where those of deploy/ wait for minutes (`for`), and one looks at ten seconds instead of five minutes;
with the times as they are they fire in deploy/test_metrics.py, on series that it makes up. EpdRankAwaited is caused in
test_four_ways.py.
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass

import alerting
import c_client
import certificates
import pytest
import running_epd
import scraped
import wait
import yaml
from hung_rank import HungRank

_ALERT_SECONDS = 60
_HERE = pathlib.Path(__file__).parent
_RETRYING = running_epd.ROOT / "tests" / "integration" / "daemon" / "retrying_rank.py"
_LAGS = "rate(epd_rank_waited_for_seconds_total[{}])"
_PAGE_BYTES = 4096
# A dispatch of the group "full" has eight rows of 512 KiB in each of its two arenas, and a page beside them. So there
# is no room for eager buffers in what a set may have of it.
_HIDDEN = 1 << 17
_FULL_BYTES = 2 * ((4 << 20) + _PAGE_BYTES)


@dataclass
class Watch:
    """A Prometheus, by its address."""

    base: str

    def wait_for(
        self,
        alert: str,
        epd: running_epd.RunningEpd,
        again: Callable[[], object] = lambda: None,
        **labels: str,
    ) -> None:
        """Until it fires for the epd with these labels; does `again` before each look."""
        instance = scraped.base(epd).removeprefix("http://")
        wanted = {"alertname": alert, "instance": instance, **labels}.items()

        def fires() -> bool:
            again()
            return any(wanted <= one["labels"].items() for one in alerting.firing(self.base))

        wait.until(fires, f"{alert} to fire", _ALERT_SECONDS)


@contextlib.contextmanager
def _watching(folder: pathlib.Path, *epds: running_epd.RunningEpd) -> Iterator[Watch]:
    text = alerting.RULES.read_text()
    assert text.count(_LAGS.format("5m")) == 1, "the rule that is to look at less has changed"
    text = re.sub(r"for: \w+", "for: 1s", text).replace(_LAGS.format("5m"), _LAGS.format("10s"))
    rules = folder / "rules.yml"
    rules.write_text(text)
    with alerting.prometheus([*epds], folder, rules) as base:
        yield Watch(base)


@dataclass
class Nodes:
    epd: running_epd.RunningEpd  # Room for two sessions; its worker is a copy.
    worker: pathlib.Path  # The copy.
    follower: running_epd.RunningEpd
    coordinator: running_epd.RunningEpd


@pytest.fixture
def nodes(tmp_path) -> Iterator[Nodes]:
    authority = certificates.Authority(tmp_path)
    worker = tmp_path / "epd-worker"
    shutil.copy(running_epd.program("epd-worker"), worker)
    served = "--metrics_listen=127.0.0.1:0"
    with contextlib.ExitStack() as stack:
        start = [served, "--max_sessions=2", f"--worker={worker}"]
        epd = stack.enter_context(running_epd.RunningEpd(*start))
        first = ["--node=a", "--listen=127.0.0.1:0", "--start_grace=0", *authority.sign("a")]
        coordinator = stack.enter_context(running_epd.RunningEpd(*first))
        address = re.search(r"\blisten=(\S+)", coordinator.log())[1]
        second = ["--node=b", f"--coordinator={address}", *authority.sign("b"), served]
        follower = stack.enter_context(running_epd.RunningEpd(*second))
        yield Nodes(epd, worker, follower, coordinator)


def test_what_happens_to_an_epd_is_alerted(nodes, tmp_path):
    epd = nodes.epd
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(_watching(tmp_path, epd, nodes.follower))
        watch.wait_for("EpdCertificateEnds", nodes.follower)  # It is for a day.
        nodes.coordinator.process.kill()
        nodes.coordinator.process.wait()
        watch.wait_for("EpdNoCoordinator", nodes.follower)
        ranks = [HungRank(epd.socket, rank) for rank in (0, 1)]
        for rank in ranks:
            stack.callback(rank.close)
        for rank in ranks:
            rank.expect("joined")
        watch.wait_for("EpdNearLimit", epd, setting="max_sessions")

        ranks[0].begin("half")
        # Otherwise epd may hear of the death first: then the call is refused, and no operation fails.
        wait.until(lambda: _num_open(epd) == 1, "the call to be waiting")
        os.kill(ranks[1].pid, signal.SIGKILL)
        assert ranks[0].result("half")[0] != 0
        watch.wait_for("EpdOperationsFail", epd, kind="prepare")
        watch.wait_for("EpdGroupNotReady", epd, group="hung")
        watch.wait_for("EpdDegraded", epd)

        os.kill(epd.worker_pid(), signal.SIGSTOP)
        watch.wait_for("EpdWorkerSilent", epd)
        nodes.worker.unlink()  # So that no other takes its place.
        os.kill(epd.worker_pid(), signal.SIGKILL)
        watch.wait_for("EpdWorkerRestarts", epd, cause="signal_9")
        watch.wait_for("EpdWorkerDown", epd, worker="cpu")
        watch.wait_for("EpdUnhealthy", epd)  # Without a worker for ten seconds.
        epd.process.kill()
        epd.process.wait()
        watch.wait_for("EpdAbsent", epd)


@pytest.fixture
def epd() -> Iterator[running_epd.RunningEpd]:
    """Its staging is for one operation of the group "full", and a page."""
    flags = ("--metrics_listen=127.0.0.1:0", f"--staging_bytes={_FULL_BYTES + _PAGE_BYTES}")
    with running_epd.RunningEpd(*flags) as running:
        yield running


@pytest.fixture
def watch(epd, tmp_path) -> Iterator[Watch]:
    with _watching(tmp_path, epd) as watching:
        yield watching


@pytest.fixture
def hung_ranks(epd) -> Iterator[list[HungRank]]:
    """Ranks 0 and 1 of the group "hung", joined."""
    with contextlib.ExitStack() as stack:
        ranks = [HungRank(epd.socket, rank) for rank in (0, 1)]
        for rank in ranks:
            stack.callback(rank.close)
        for rank in ranks:
            rank.expect("joined")
        yield ranks


def _num_open(epd: running_epd.RunningEpd) -> int:
    return sum(group.num_open_operations for group in epd.api.call("ListGroups").groups)


@contextlib.contextmanager
def _two_ranks(
    epd: running_epd.RunningEpd, group: str, **fields: int
) -> Iterator[tuple[futures.ThreadPoolExecutor, list[c_client.Rank]]]:
    """Of this process; and threads for their calls."""
    with futures.ThreadPoolExecutor(2) as pool, contextlib.ExitStack() as stack:
        ranks = list(pool.map(lambda r: c_client.Rank(epd.socket, group, r, 2, **fields), (0, 1)))
        for rank in ranks:
            stack.callback(rank.close)
        yield pool, ranks


def test_rows_that_find_no_room_and_an_expert_that_gets_all_are_alerted(epd, watch):
    fields = {"num_experts": 6, "recv_capacity_per_rank": 8, "drop_on_overflow": 1}
    with _two_ranks(epd, "narrow", **fields) as (pool, ranks):

        def step() -> None:
            list(pool.map(lambda rank: rank.prepare("prepare"), ranks))
            list(pool.map(lambda rank: rank.dispatch("dispatch"), ranks))

        watch.wait_for("EpdRowsDropped", epd, again=step, group="narrow")
        watch.wait_for("EpdExpertsUnbalanced", epd, group="narrow")


def test_a_rank_that_always_comes_last_is_alerted(epd, watch):
    with _two_ranks(epd, "lags") as (pool, ranks):

        def is_late() -> bool:
            awaited = scraped.metric(epd, "epd_rank_awaited_seconds")
            return awaited.get(("lags", "", "1"), 0) > 0.5

        def step() -> None:
            first = pool.submit(ranks[0].prepare, "prepare")
            wait.until(is_late, "rank 1 to be awaited")
            ranks[1].prepare("prepare")
            first.result(_ALERT_SECONDS)

        watch.wait_for("EpdRankLags", epd, again=step, group="lags", rank="1")


def test_a_group_that_forms_anew_again_and_again_is_alerted(epd, watch):
    with contextlib.ExitStack() as stack:
        for rank in (0, 1):
            command = [sys.executable, str(_RETRYING), epd.socket, str(rank), "2"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
            process = stack.enter_context(subprocess.Popen(command, **pipes))
            stack.callback(process.kill)

        def formation() -> int:
            """0 while the group is not READY."""
            groups = epd.api.call("ListGroups").groups
            ready = [g for g in groups if state_name(g.state) == "GROUP_STATE_READY"]
            return ready[0].formation if ready else 0

        def state_name(state: int) -> str:
            return epd.api.enum_name("GroupState", state)

        def lose() -> None:
            before = wait.until(formation, "the group to be READY")
            os.kill(epd.worker_pid(), signal.SIGKILL)
            # Each next worker is started later than the one before.
            wait.until(lambda: formation() > before, "it to be formed anew", _ALERT_SECONDS)

        watch.wait_for("EpdGroupsReform", epd, again=lose, event="worker_lost")


def test_staging_that_is_full_held_or_waited_for_is_alerted(epd, watch, hung_ranks):
    with _two_ranks(epd, "full", hidden=_HIDDEN, recv_capacity_per_rank=32) as (pool, ranks):
        list(pool.map(lambda rank: rank.prepare("prepare"), ranks))
        list(pool.map(lambda rank: rank.dispatch("dispatch"), ranks))
        watch.wait_for("EpdStagingFull", epd)

        for rank in hung_ranks:
            rank.begin("a")
        assert [rank.result("a")[0] for rank in hung_ranks] == [0, 0]
        for rank in hung_ranks:
            rank.hang_up()
        watch.wait_for("EpdStagingQuarantined", epd)
        # What two processes that live may still write is no other's.
        waiting = [pool.submit(rank.dispatch, "dispatch") for rank in ranks]

        wait.until(lambda: _num_open(epd) == 1, "the dispatch to be announced")
        with pytest.raises(futures.TimeoutError):
            waiting[0].result(1)
        for rank in hung_ranks:
            rank.close()
        for one in waiting:
            one.result(_ALERT_SECONDS)
        watch.wait_for("EpdStagingWaits", epd, kind="dispatch")


def test_an_epd_that_does_not_move_while_it_is_scraped_is_alerted(tmp_path, monkeypatch):
    library, hang = tmp_path / "hanging_pages.so", tmp_path / "hang"
    source = _HERE / "hanging_pages.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    with contextlib.ExitStack() as stack:
        with monkeypatch.context() as environment:
            environment.setenv("LD_PRELOAD", str(library))
            environment.setenv("EPD_TEST_HANG", str(hang))
            epd = stack.enter_context(running_epd.RunningEpd("--metrics_listen=127.0.0.1:0"))
        watch = stack.enter_context(_watching(tmp_path, epd))
        stack.callback(lambda: hang.unlink(missing_ok=True))
        wait.until(lambda: "epd_up_seconds" in scraped.get(f"{scraped.base(epd)}/metrics")[2], "it")
        hang.touch()
        rank = HungRank(epd.socket, 0)  # For whose session epd asks the kernel for pages.
        stack.callback(rank.close)
        watch.wait_for("EpdFiguresStale", epd)


def test_every_alert_is_caused_here_or_in_four_ways():
    rules = yaml.safe_load(alerting.RULES.read_text())["groups"][0]["rules"]
    texts = [_HERE.joinpath(name).read_text() for name in ("test_alerts.py", "test_four_ways.py")]
    caused = {
        name
        for text in texts
        for name in re.findall(r'(?:wait_for\(|\["alertname"\] == )"(\w+)"', text)
    }
    assert {rule["alert"] for rule in rules} == caused
