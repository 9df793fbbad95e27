"""Goal: a collector gets every rank's part of each operation from that rank's node, and they are one trace with one parent."""

import contextlib
from collections import defaultdict

import wait
from collector import Collector
from hung_rank import HungRank
from nodes import running_nodes

_PROGRAM = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")


def _attribute(span, key: str) -> str:
    return next((a.value.string_value for a in span.attributes if a.key == key), "")


def _by_trace(collector: Collector) -> dict[bytes, dict[str, tuple[str, object]]]:
    """Of each operation its own span and those of its ranks, by name, with their nodes; without phases."""
    traces: dict[bytes, dict[str, tuple[str, object]]] = defaultdict(dict)
    for node, span in collector.spans():
        if span.name.startswith("prepare"):
            traces[span.trace_id][span.name] = (node, span)
    return traces


def test_a_collector_sees_one_trace_of_both_nodes(monkeypatch):
    monkeypatch.setenv("TRACEPARENT", f"00-{_PROGRAM[0]}-{_PROGRAM[1]}-01")
    with Collector() as collector, contextlib.ExitStack() as stack:
        flags = (f"--otlp_endpoint={collector.endpoint}",)
        nodes = stack.enter_context(running_nodes(2, *flags, loopback=True))
        ranks = [HungRank(node.socket, rank) for rank, node in enumerate(nodes.daemons)]
        for rank in ranks:
            stack.callback(rank.close)
        for rank in ranks:
            rank.expect("joined")
        number = 0

        def traced() -> list[dict[str, tuple[str, object]]]:
            nonlocal number
            for rank in ranks:
                rank.begin(f"step{number}")
            assert [rank.result(f"step{number}")[0] for rank in ranks] == [0, 0]
            number += 1
            return [trace for trace in _by_trace(collector).values() if len(trace) == 3]

        whole = wait.until(traced, "a trace of both ranks at the collector", 30)
        phases = defaultdict(list)
        for _, span in collector.spans():
            phases[span.parent_span_id].append(span)
        for trace in whole:
            parent = trace["prepare"][1]
            assert not parent.parent_span_id and len(parent.trace_id) == 16
            assert _attribute(parent, "epd.group") == "hung"
            for rank in (0, 1):
                node, span = trace[f"prepare rank {rank}"]
                assert node == f"n{rank}"
                assert span.parent_span_id == parent.span_id
                assert [(link.trace_id.hex(), link.span_id.hex()) for link in span.links] == [
                    _PROGRAM
                ]
                inside = phases[span.span_id]
                assert inside[0].name == "announce" and inside[-1].name == "release"
                assert inside[0].start_time_unix_nano == span.start_time_unix_nano
                assert inside[-1].end_time_unix_nano == span.end_time_unix_nano
