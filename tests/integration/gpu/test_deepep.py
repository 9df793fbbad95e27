"""Goal: what tests/gpu measures of DeepEP is written for the calls that DeepEP documents, keeps wrong results out, and says
why it does not run. A fake deep_ep over gloo on Debian's PyTorch stands in for the real one, which needs GPUs."""

import functools
import importlib
import json
import os
import pathlib
import subprocess

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_FAKE = pathlib.Path(__file__).resolve().parent / "fake_deep_ep"
_PYTHON = "/usr/bin/python3"  # Of python3-torch.


def _bench(**environment: str) -> tuple[subprocess.CompletedProcess, dict]:
    ended = subprocess.run(
        [_PYTHON, _ROOT / "tests" / "gpu" / "deepep_bench.py", "64"],
        check=False,
        text=True,
        capture_output=True,
        timeout=300,
        env={**os.environ, **environment},
    )
    assert ended.stdout, ended.stderr
    return ended, json.loads(ended.stdout)


@functools.cache
def _fake(fault: str = "", gpus: int = 2) -> tuple[int, list[dict], str]:
    """Exit status, records, and why the whole part is skipped."""
    fake = {"PYTHONPATH": str(_FAKE), "EPD_FAKE_GPUS": str(gpus), "EPD_FAKE_DEEP_EP": fault}
    ended, said = _bench(**fake)
    return ended.returncode, said["records"], said.get("skipped", "")


def _rows(record: dict) -> set[tuple[str, str, bool]]:
    return {(row["clock"], row["what"], row["in_graph"]) for row in record["measurement"]["rows"]}


_EAGER = {
    (clock, what, False)
    for clock, one_call in (("wall", "forward"), ("event", "pair"))
    for what in ("dispatch", "combine", one_call, "chained pair period")
}
_RECORD = {
    *("identity", "workload", "implementation", "topology"),
    *("runtime", "provenance", "measurement", "outcome"),
}
_REPLAYED = {(clock, "chained pair period", True) for clock in ("wall", "event")}


def test_both_kinds_of_calls_are_measured_by_both_clocks() -> None:
    status, records, skipped = _fake()
    assert (status, skipped) == (0, "")
    assert [(one["implementation"]["calls"], one["identity"]["case"]) for one in records] == [
        ("normal", "decode 128"),
        ("normal", "train 4096"),
        ("low_latency", "decode 128"),
    ]
    for one in records:
        assert one["outcome"]["status"] == "ok", one["outcome"]
        assert set(one) == _RECORD
        assert set(one["implementation"]) == {"name", "calls", "in_time"}
        graph = (
            ["graph before", "graph after"] if one["implementation"]["calls"] != "normal" else []
        )
        assert sorted(one["outcome"]["oracle"]) == sorted(["before", "chain", "after", *graph])
        assert set(one["provenance"]) == {"commit", "at"}
        assert one["topology"] == {"nodes": 1, "ranks": 2, "device": "fake 0"}
        assert one["runtime"] == {"torch": one["runtime"]["torch"], "deep_ep": "fake"}
        replayed = _REPLAYED if one["implementation"]["calls"] == "low_latency" else set()
        assert _rows(one) == _EAGER | replayed
        for row in one["measurement"]["rows"]:
            assert row["p99_us"] >= row["p50_us"] > 0
            # Two runs, of three pairs each where the parts of a chain are told apart.
            parts = row["clock"] == "event" and row["what"] != "chained pair period"
            assert row["n"] == (6 if parts else 2)


def test_live_rows_and_capacity_are_those_of_the_calls_and_the_problem_is_everybodys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(_ROOT / "tests" / "gpu"))
    shapes = importlib.import_module("bench_shapes")
    _, records, _ = _fake()
    for one in records:
        wanted = shapes.problem(one["identity"]["case"], 2, 64).workload
        assert one["workload"] == wanted.fields()
    normal, _, low_latency = (one["measurement"]["rows"][0]["received"] for one in records)
    # Once to a rank, in a buffer of just so many rows: with 32 experts a rank each of the 4 tokens has one on both.
    assert normal["a_row_per"] == "token and rank"
    assert normal["live_rows"] == normal["capacity"] == 4
    # Room for all tokens of all ranks at each of the 32 experts.
    assert low_latency["a_row_per"] == "token and expert"
    assert low_latency["live_rows"] == records[2]["workload"]["live_rows"]
    assert low_latency["capacity"] == 32 * 4


@pytest.mark.parametrize("fault", ["wrong", "graph"])
def test_results_that_are_wrong_are_no_figures_and_fail(fault: str) -> None:
    status, records, _ = _fake(fault)
    assert status == 1
    outcomes = {one["implementation"]["calls"]: one["outcome"] for one in records}
    assert outcomes["low_latency"]["status"] == "wrong results"
    wrong = {when for when, right in outcomes["low_latency"]["oracle"].items() if not right}
    if fault == "graph":
        assert wrong == {"graph before", "graph after"} or wrong == {"graph before"}
        assert outcomes["normal"]["status"] == "ok"
    else:
        assert outcomes["normal"]["status"] == "wrong results"
        for outcome in outcomes.values():
            assert not outcome["oracle"]["chain"]


def test_a_rank_that_fails_is_named_with_its_last_words() -> None:
    status, records, skipped = _fake("fails")
    assert (status, skipped) == (0, "")
    for one in records[:2]:
        assert one["outcome"]["status"] == "did not run"
        said = "rank 1 ended with 1: RuntimeError: the fake fails as it was told"
        assert said in one["outcome"]["problem"]
    assert records[2]["outcome"]["status"] == "ok", "those calls do not fail"


def test_ranks_that_it_is_not_made_for_are_no_figures() -> None:
    status, records, skipped = _fake(gpus=1)
    assert status == 0
    assert "Unsupported number of EP ranks: 1" in records[0]["outcome"]["problem"]
    assert records[2]["outcome"]["status"] == "ok"


def test_without_deep_ep_every_record_says_so_and_the_part_is_skipped() -> None:
    ended, said = _bench()
    assert ended.returncode == 0
    assert "No module named 'deep_ep'" in said["skipped"]
    assert len(said["records"]) == 3
    for one in said["records"]:
        assert one["outcome"]["status"] == "did not run"
        assert one["outcome"]["problem"] == said["skipped"]
        assert one["workload"]["live_rows"] > 0 and one["measurement"]["rows"] == []
