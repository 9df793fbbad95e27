"""Goal: after a partition heals, ranks that tried again all the time meet at their first call: no rank fails more than once
after the first good call of any, and no text names an innocent rank."""

import contextlib
import pathlib
import subprocess
import sys
import time
from dataclasses import dataclass

import epd_process
import etcd_process
import namespaces
import pytest
import wait
from running_epd import program

pytestmark = [
    pytest.mark.skipif(bool(etcd_process.missing()), reason=etcd_process.missing()),
    pytest.mark.skipif(bool(namespaces.allowed()), reason=f"no namespaces: {namespaces.allowed()}"),
]

_SCRIPT = pathlib.Path(__file__).with_name("retrying_rank.py")
_NUM_NODES = 3
_CUT_SECONDS = 8


@dataclass(frozen=True)
class Call:
    time: float
    what: str  # "good", "failed" or "refused" with the error.


class RetryingRank:
    def __init__(self, folder: pathlib.Path, socket: str, rank: int):
        self._out = folder / f"rank{rank}"
        command = [sys.executable, str(_SCRIPT), socket, str(rank), str(_NUM_NODES)]
        with self._out.open("wb") as out:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT
            )

    def calls(self) -> list[Call]:
        whole = self._out.read_text().rpartition("\n")[0]
        lines = [line.split(" ", 1) for line in whole.splitlines()]
        return [Call(float(time), what) for time, what in lines]

    def num_good(self) -> int:
        return sum(call.what == "good" for call in self.calls())

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait(10)


def _cluster(
    folder: pathlib.Path, network: namespaces.Network
) -> tuple[list[epd_process.Daemon], etcd_process.Etcd]:
    """An etcd on the last node, and an epd that knows no more than its address on each of the others."""
    (folder / "etcd").mkdir()
    etcd = etcd_process.Etcd(
        folder / "etcd", network.addresses[-1], wrap=network.inside(_NUM_NODES)
    )
    etcd.start()
    daemons = []
    for i in range(_NUM_NODES):
        (folder / f"n{i}").mkdir()
        daemon = epd_process.Daemon(folder / f"n{i}")
        daemon.start(
            f"--node=n{i}",
            f"--listen={network.addresses[i]}:0",
            f"--rendezvous=etcd://{etcd.address}/test",
            f"--worker={program('epd-worker')}",
            wrap=network.inside(i),
        )
        daemon.wait_for_log("leading" if i == 0 else "coordinator connected")
        daemons.append(daemon)
    return daemons, etcd


def test_ranks_that_tried_again_through_a_partition_meet_at_once_when_it_heals(tmp_path):
    with namespaces.Network(_NUM_NODES + 1) as network, contextlib.ExitStack() as ending:
        daemons, etcd = _cluster(tmp_path, network)
        ending.callback(etcd.kill)
        for daemon in daemons:
            ending.callback(daemon.stop)
        ranks = [RetryingRank(tmp_path, daemon.socket, i) for i, daemon in enumerate(daemons)]
        for rank in ranks:
            ending.callback(rank.end)
        wait.until(lambda: all(rank.num_good() > 10 for rank in ranks), "good calls", 30)
        network.cut(0)  # Who leads, with rank 0.
        wait.until(
            lambda: all(rank.calls()[-1].what != "good" for rank in ranks), "the cut is heard", 30
        )
        cut = time.monotonic()
        wait.until(lambda: time.monotonic() > cut + _CUT_SECONDS, "it lasts", _CUT_SECONDS + 1)
        healed = time.monotonic()
        network.heal(0)
        before = [rank.num_good() for rank in ranks]
        wait.until(
            lambda: all(
                rank.num_good() > num + 100 for rank, num in zip(ranks, before, strict=True)
            ),
            "good calls again",
            60,
        )
        after = [[call for call in rank.calls() if call.time > healed] for rank in ranks]
        first = min(call.time for calls in after for call in calls if call.what == "good")
        for rank in ranks[1:]:
            for error in (call.what for call in rank.calls() if call.what != "good"):
                assert "rank=0" in error and "UNAVAILABLE" in error, error
        print(f"the first good call came {first - healed:.1f} s after the link was whole")
        for number, calls in enumerate(after):
            late = [call.what for call in calls if call.time > first and call.what != "good"]
            assert len(late) <= 1, f"rank {number} failed {len(late)} times: {late}"
