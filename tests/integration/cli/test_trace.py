"""Goal: epctl trace shows what each rank did when, of all nodes on one clock, so that the rank which others waited for is seen;
also while that rank is stopped."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections import defaultdict

import pytest
import running_epd
import wait
from hung_rank import HungRank
from nodes import running_nodes

_PHASES = ["announce", "admit", "copy", "publish", "pull", "release"]
# Longer than any pause of the scheduler that a rank may have beside it.
_LATE_SECONDS = 0.3


class _Trace:
    """A trace as a viewer reads it: slices by what they are."""

    def __init__(self, text: str):
        whole = json.loads(text)
        self.other = whole["otherData"]
        self.events = whole["traceEvents"]
        self.names = {
            (event["pid"], event["tid"]): event["args"]["name"]
            for event in self.events
            if event["name"] == "thread_name"
        }
        self.operations = defaultdict(dict)
        for event in self._slices("operation"):
            self.operations[event["args"]["trace_id"]][self.rank(event)] = event

    def _slices(self, category: str) -> list[dict]:
        return [e for e in self.events if e["ph"] == "X" and e["cat"] == category]

    def rank(self, event: dict) -> int:
        return int(self.names[event["pid"], event["tid"]].split()[1])

    def phases(self, operation: dict) -> list[dict]:
        """Those of this slice, in order."""
        begin, end = operation["ts"], operation["ts"] + operation["dur"]
        inside = [
            e
            for e in self._slices("phase")
            if (e["pid"], e["tid"]) == (operation["pid"], operation["tid"])
            and begin - 0.01 <= e["ts"]
            and begin + 0.01 < e["ts"] + e["dur"]  # The one before may end where this one begins.
            and e["ts"] + e["dur"]
            <= end + 0.01  # The next operation may begin where this one ends.
        ]
        return sorted(inside, key=lambda e: e["ts"])

    def whole(self) -> list[dict[int, dict]]:
        """Operations that ended on both ranks inside the trace."""
        return [
            ranks
            for ranks in self.operations.values()
            if len(ranks) == 2 and not any(e["args"].get("open") for e in ranks.values())
        ]


def _check_phases(trace: _Trace, operation: dict) -> None:
    phases = trace.phases(operation)
    names = [phase["name"] for phase in phases]
    assert names == [name for name in _PHASES if name in names] and names[0] == "announce", names
    at = operation["ts"]
    for phase in phases:
        assert phase["ts"] == pytest.approx(at, abs=0.1), (phase, operation)
        at = phase["ts"] + phase["dur"]
    assert at == pytest.approx(operation["ts"] + operation["dur"], abs=0.1), operation


def _announced(epctl, key: str) -> None:
    """Rank 0 has called, and rank 1 is waited for."""

    def waits() -> bool:
        operations = epctl.json("why", "hung")["operations"]
        return any(f"name={key} " in o["key"] and o["waiting_for"] == [1] for o in operations)

    wait.until(waits, f"rank 0 to wait in {key}")


def _run_late(epctl, ranks, key: str) -> None:
    """One operation that rank 1 comes to late, for its process is stopped."""
    waiting, absent = ranks
    os.kill(absent.pid, signal.SIGSTOP)
    waiting.begin(key)
    _announced(epctl, key)
    time.sleep(_LATE_SECONDS)
    os.kill(absent.pid, signal.SIGCONT)
    absent.begin(key)
    assert [rank.result(key)[0] for rank in ranks] == [0, 0]


def _traced_while(socket: str, work) -> _Trace:
    """Does `work` again and again until a trace of some seconds is there."""
    command = [str(running_epd.program("epctl")), "--socket", socket, "trace", "hung"]
    number = 0
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        tracing = subprocess.Popen([*command, "--seconds", "4"], stdout=out, stderr=errors)
        while tracing.poll() is None:
            work(f"step{number}")
            number += 1
        out.seek(0)
        errors.seek(0)
        error = errors.read()
        assert tracing.returncode == 0 and not error, error
        return _Trace(out.read())


def _check_late(trace: _Trace) -> None:
    assert trace.whole(), trace.operations
    for ranks in trace.whole():
        assert ranks.keys() == {0, 1}
        late = _LATE_SECONDS * 1e6 * 0.9
        assert ranks[1]["ts"] - ranks[0]["ts"] > late, ranks
        for operation in ranks.values():
            assert operation["name"] == "prepare" and operation["args"]["last"] == "rank 1"
            _check_phases(trace, operation)
        announce = trace.phases(ranks[0])[0]
        assert announce["dur"] > late
    arrows = [e for e in trace.events if e["ph"] in "sf"]
    assert {trace.rank(e) for e in arrows if e["ph"] == "s"} == {1}
    assert {trace.rank(e) for e in arrows if e["ph"] == "f"} == {0}


def test_the_stopped_rank_of_another_node_is_the_one_that_comes_last(epctl_of):
    with running_nodes(2, loopback=True) as nodes, contextlib.ExitStack() as stack:
        ranks = [HungRank(node.socket, rank) for rank, node in enumerate(nodes.daemons)]
        for rank in ranks:
            stack.callback(rank.close)
        for rank in ranks:
            rank.expect("joined")
        for node in nodes.daemons:  # Whichever is asked.
            epctl = epctl_of(nodes.daemons[0].socket)
            trace = _traced_while(node.socket, lambda key, e=epctl: _run_late(e, ranks, key))
            _check_late(trace)
            workers = {
                e["pid"]: e["args"]["name"] for e in trace.events if e["name"] == "process_name"
            }
            assert sorted(workers.values()) == ["node n0, worker cpu", "node n1, worker cpu"]
            (clock,) = [c for c in trace.other["clocks"] if c["node"] == "n1"]
            # Both nodes are this machine, so their clocks are one.
            assert clock["by"] == "round trips" and clock["num_samples"] >= 1, clock
            assert abs(clock.get("offset_ms", 0)) <= clock["error_ms"] + 0.001, clock


def test_while_a_rank_is_stopped_the_open_operation_says_who_is_missing(epctl, hung):
    waiting, absent = hung
    epctl.json("trace", "hung", "--seconds=0.1")  # Workers keep traces from here on.
    os.kill(absent.pid, signal.SIGSTOP)
    waiting.begin("stuck")
    _announced(epctl, "stuck")
    shown = epctl("trace", "hung", "--seconds=0.1")
    assert shown.returncode == 0, shown.stderr
    trace = _Trace(shown.stdout)
    (ranks,) = trace.operations.values()
    assert ranks.keys() == {0}
    assert ranks[0]["args"]["open"] and ranks[0]["args"]["missing"] == "rank 1"
    assert [phase["name"] for phase in trace.phases(ranks[0])] == ["announce"]
    os.kill(absent.pid, signal.SIGCONT)
    absent.begin("stuck")
    assert [rank.result("stuck")[0] for rank in hung] == [0, 0]


def test_the_span_that_the_program_was_started_in_is_named(epd, epctl, monkeypatch):
    trace_id, span_id = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    monkeypatch.setenv("TRACEPARENT", f"00-{trace_id}-{span_id}-01")
    first = HungRank(epd.socket, 0)
    monkeypatch.setenv("TRACEPARENT", "\udcff no trace")  # No UTF-8: harms nothing.
    second = HungRank(epd.socket, 1)
    with contextlib.closing(first), contextlib.closing(second):
        for rank in (first, second):
            rank.expect("joined")

        def work(key: str) -> None:
            for rank in (first, second):
                rank.begin(key)
            assert [rank.result(key)[0] for rank in (first, second)] == [0, 0]

        trace = _traced_while(epd.socket, work)
    assert trace.whole()
    for ranks in trace.whole():
        assert ranks[0]["args"]["client_trace_id"] == trace_id
        assert ranks[0]["args"]["client_span_id"] == span_id
        assert "client_trace_id" not in ranks[1]["args"]


def test_a_group_that_is_not_there_is_named(epctl, hung):
    refused = epctl("trace", "nobody", "--seconds=0.1")
    assert refused.returncode == 2, refused
    assert "nobody" in refused.stderr and "hung" in refused.stderr
    quiet = epctl("trace", "hung", "--seconds=0.1")
    assert quiet.returncode == 0 and "did nothing" in quiet.stderr
