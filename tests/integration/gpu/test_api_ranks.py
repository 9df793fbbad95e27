"""Goal: the part of tests/gpu/run that tries JAX ranks over a real epd does its work - here on CPUs - and fails when they do."""

import importlib
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
from fake_gpus import FakeGpus
from running_epd import RunningEpd

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_BIN = _ROOT / ".venv" / "bin"


def _wheel() -> pathlib.Path:
    wheels = sorted((_ROOT / "bazel-bin" / "client" / "python").glob("epd-*.whl"))
    assert wheels, "no wheel: run deploy/setup"
    return wheels[0]


def _api_ranks(*arguments: str | pathlib.Path, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, _ROOT / "tests" / "gpu" / "api_ranks.py", *arguments]
    return subprocess.run(
        command,
        check=False,
        text=True,
        capture_output=True,
        timeout=300,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
    )


@pytest.mark.parametrize("executor", ["worker", "client"])
def test_every_rank_compares_its_steps_and_hears_of_the_bad_index(executor: str) -> None:
    options = ["--ranks", "2", "--steps", "3", "--staging-bytes", "0", "--executor", executor]
    ended = _api_ranks("--bin", _BIN, *options, "jax", _wheel())
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report["passed"]
    assert [rank["steps"] for rank in report["processes"]] == [4, 4]
    for rank in report["processes"]:
        assert "expert index" in rank["heard"] and "got 8" in rank["heard"]


@pytest.mark.parametrize("executor", ["worker", "client"])
def test_ranks_on_a_gpu_compare_their_steps_and_say_nothing_of_it(
    executor: str, tmp_path: pathlib.Path
) -> None:
    """As tests/gpu/run has it, over the fake driver: two processes on one GPU, out of command buffers."""
    gpus = FakeGpus(tmp_path / "told")
    options = ["--ranks", "2", "--steps", "3", "--staging-bytes", "256MiB", "--executor", executor]
    environment = {**gpus.jax(), "EPD_COMMAND_BUFFERS": "off"}
    ended = _api_ranks("--bin", _BIN, *options, "jax", _wheel(), **environment)
    assert ended.returncode == 0, ended.stderr
    for rank in json.loads(ended.stdout)["processes"]:
        assert (rank["platform"], rank["steps"], rank["calls"]) == ("gpu", 4, 15)
        assert "expert index" in rank["heard"] or "names an expert" in rank["heard"]
    assert gpus.launched() and gpus.violations() == ""


_BY_WALL = [
    (what, "wall")
    for what in ("dispatch", "combine", "forward", "forward_backward", "chained pair period")
]
_BY_EVENTS = [(what, "event") for what in ("dispatch", "combine", "pair")]
_RECORD = {
    "identity": {"suite", "case", "implementation"},
    "workload": {
        *("name", "ranks", "tokens_per_rank", "hidden", "top_k", "num_experts", "dtype"),
        *("live_rows", "capacity", "live_bytes", "capacity_bytes"),
    },
    "implementation": {"name", "in_time"},
    "topology": {"nodes", "ranks", "device"},
    "runtime": {"jax", "platform", "platform_version", "command_buffers"},
    "provenance": {"commit", "at"},
    "measurement": {"unit", "rows"},
    "outcome": {"status", "oracle", "problem", "no_events"},
}
_OURS = {"implementation": {"name", "in_time", "backend", "executor"}}


def _keys(record: dict) -> dict:
    return {part: set(fields) for part, fields in record.items()}


def test_the_benchmark_measures_what_runs_here_and_says_what_does_not() -> None:
    options = ["--divide", "64", "--staging-bytes", "0"]
    flags = "--xla_force_host_platform_device_count=2"
    ended = _api_ranks("--bin", _BIN, *options, "bench", _wheel(), XLA_FLAGS=flags)
    assert ended.returncode == 0, ended.stderr
    (report,) = json.loads(ended.stdout)["processes"]
    records = report["records"]
    assert [one["identity"]["implementation"] for one in records] == [
        "epd",
        "ragged_all_to_all",
    ] * 2
    for ours in records[::2]:
        assert _keys(ours) == _RECORD | _OURS
        assert ours["outcome"] == {
            "status": "ok",
            "oracle": {"before": True, "chain": True, "after": True},
            "problem": "",
            "no_events": "no events in a CPU's streams",
        }
        assert 0 < ours["workload"]["live_rows"] < ours["workload"]["capacity"]
        assert [(row["what"], row["clock"]) for row in ours["measurement"]["rows"]] == _BY_WALL
        for row in ours["measurement"]["rows"]:
            assert row["p99_us"] >= row["p90_us"] >= row["p50_us"] > 0
            assert row["received"]["live_rows"] == ours["workload"]["live_rows"]
            assert row["received"]["capacity"] == ours["workload"]["capacity"]
    assert [one["workload"]["tokens_per_rank"] for one in records] == [2, 2, 64, 64]
    for theirs in records[1::2]:
        assert _keys(theirs) == _RECORD
        assert theirs["outcome"]["status"] == "did not run"
        assert "does not run here" in theirs["outcome"]["problem"]


# XLA has no such collective on CPUs, and its streams there no events: the same by what it has, a place being a callback
# that notes the time, and each of them a millisecond later than the ones that it stands behind.
_EMULATED = """
import sys, time, jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec as P

def ragged_all_to_all(rows, out, starts, sizes, targets, came, axis_name):
    from_all = [jax.lax.all_gather(a, axis_name) for a in (rows, starts, sizes, targets)]
    ranks, slices = from_all[1].shape
    here, place = slices // ranks, jnp.arange(rows.shape[0])

    def one_slice(number, out):
        rows, starts, sizes, targets = (a[number // here] for a in from_all)
        i = jax.lax.axis_index(axis_name) * here + number % here
        to = jnp.where(place < sizes[i], targets[i] + place, out.shape[0])
        return out.at[to].set(rows.at[starts[i] + place].get(mode="fill"), mode="drop")

    # A loop, since so many slices written one after another take minutes to compile.
    out = jax.lax.fori_loop(0, slices, one_slice, jax.lax.pcast(out, axis_name, to="varying"))
    return out

jax.lax.ragged_all_to_all = ragged_all_to_all
import api_bench

class Marks:
    def __init__(self):
        self.at, self.count = {}, 0

    def mark(self, mesh, number, *arrays):
        self.count += 1  # As XLA captures: when a program runs first.

        def note(device, *local):
            time.sleep(0.001)
            self.at[int(device), number] = 1e6 * time.perf_counter()
            return local

        def on_each_device(*local):
            same = tuple(jax.ShapeDtypeStruct(one.shape, one.dtype) for one in local)
            return jax.pure_callback(note, same, jax.lax.axis_index("ep"), *local)

        spec = P("ep")
        return jax.shard_map(on_each_device, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(*arrays)

    def elapsed_us(self, device, start, end):
        return self.at[device, end] - self.at[device, start]

    def captured(self):
        return self.count

api_bench._made_events = lambda mesh, library: (api_bench._Events(Marks(), mesh), "")
api_bench.bench_shapes.WARM, api_bench.bench_shapes.RUNS = 1, 3  # What is compared is right or wrong at once; how fast is not asked here.
sys.argv = ["api_bench.py", "64"]
sys.exit(api_bench.main())
"""


def test_what_the_benchmark_compares_with_gives_the_same() -> None:
    with RunningEpd() as epd:
        run = subprocess.run(
            [sys.executable, "-c", _EMULATED],
            check=False,
            text=True,
            capture_output=True,
            timeout=300,
            env={
                **os.environ,
                "JAX_PLATFORMS": "cpu",
                "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
                "PYTHONPATH": str(_ROOT / "tests" / "gpu"),
                "EPD_SOCKET": epd.socket,
                "EPD_BACKEND": "cuda",
                "EPD_EXECUTOR": "client",
            },
        )
    assert run.returncode == 0, run.stderr
    for one in json.loads(run.stdout)["records"]:
        assert one["outcome"]["status"] == "ok", one
        looked_at = ["before", "chain", "before events", "after events", "after"]
        assert list(one["outcome"]["oracle"]) == looked_at
        rows = one["measurement"]["rows"]
        assert [(row["what"], row["clock"]) for row in rows] == _BY_WALL + _BY_EVENTS
        dispatch, combine, pair = rows[len(_BY_WALL) :]
        # Three pairs of each of three runs. A place stands behind all that it ends: the time is in the later of two.
        assert {row["n"] for row in (dispatch, combine, pair)} == {9}
        assert pair["in_graph"]
        assert dispatch["p50_us"] > 1000 and combine["p50_us"] > 1000
        assert pair["p99_us"] >= max(dispatch["p50_us"], combine["p50_us"]) + 1000


_LOWERED = """
import jax, numpy as np
import event_marks
from jax.sharding import Mesh

marks = object.__new__(event_marks.EventMarks)  # Without a driver: how it is written into a program is asked here.
mesh = Mesh(np.array(jax.devices()), ("ep",))
rows, idx = np.ones((4, 8), np.float32), np.ones((4, 2), np.int32)
marked = jax.jit(lambda rows, idx: marks.mark(mesh, 5, rows, idx))
print(marked.trace(rows, idx).lower(lowering_platforms=("cuda",)).as_text())
"""


def test_a_mark_is_a_call_with_effects_that_gives_its_operands_back_in_place() -> None:
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": str(_ROOT / "tests" / "gpu"),
    }
    run = subprocess.run(
        [sys.executable, "-c", _LOWERED],
        check=False,
        text=True,
        capture_output=True,
        timeout=120,
        env=environment,
    )
    assert run.returncode == 0, run.stderr
    (call,) = [line for line in run.stdout.splitlines() if "@epd_event_mark" in line]
    assert "has_side_effect = true" in call and "number = 5 : i64" in call
    for operand in (0, 1):
        assert f"output_tuple_indices = [{operand}], operand_index = {operand}" in call
    # Of each device: half of the rows.
    assert "(tensor<2x8xf32>, tensor<2x2xi32>) -> (tensor<2x8xf32>, tensor<2x2xi32>)" in call


def test_results_that_are_wrong_are_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(_ROOT / "tests" / "gpu"))
    bench_record = importlib.import_module("bench_record")
    workload = bench_record.Workload("x", 2, 4, 8, 2, 4, live_rows=5, capacity=16)
    place = bench_record.Place({}, {}, {})
    rows = [bench_record.row("forward", [3.0, 1.0, 2.0])]
    assert rows[0]["p50_us"] == 2.0 and rows[0]["p90_us"] == 2.8 and rows[0]["n"] == 3
    received = bench_record.expert_rows(workload)

    def made(oracle: dict[str, bool], problem: str = "") -> dict:
        measured = bench_record.Measured(rows, oracle, received, problem)
        return bench_record.record(workload, {"name": "epd"}, place, measured)

    right = made({"before": True, "after": True})
    assert right["outcome"]["status"] == "ok"
    (measured,) = right["measurement"]["rows"]
    assert measured["clock"] == "wall"
    assert measured["received"] == {
        "a_row_per": "token and expert",
        "live_rows": 5,
        "capacity": 16,
        "live_bytes": 5 * 16,
        "capacity_bytes": 16 * 16,
    }
    assert made({"before": True, "after": False})["outcome"]["status"] == "wrong results"
    assert made({})["outcome"]["status"] == "wrong results", "nobody has looked"
    silent = made({}, problem="no such thing here")
    assert silent["outcome"]["status"] == "did not run" and silent["measurement"]["rows"] == []
    assert silent["workload"]["live_bytes"] == 5 * 16
    with pytest.raises(ValueError, match="got none"):
        bench_record.row("forward", [])


def test_the_slowest_rank_of_each_run_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(_ROOT / "tests" / "gpu"))
    bench_record = importlib.import_module("bench_record")
    assert bench_record.slowest([[1.0, 5.0], [3.0, 2.0]]) == [3.0, 5.0]
    with pytest.raises(ValueError, match="zip"):
        bench_record.slowest([[1.0, 5.0], [3.0]])


def test_a_part_whose_rows_did_not_go_as_it_asks_fails() -> None:
    """As epd's log has it."""
    options = ["--ranks", "1", "--steps", "1", "--staging-bytes", "0", "--log-says", "rows go by"]
    ended = _api_ranks("--bin", _BIN, *options, "jax", _wheel())
    assert ended.returncode == 1
    assert "expected 'rows go by' in epd's log" in ended.stderr


def test_a_rank_that_hangs_is_ended_in_time_and_epds_log_is_shown(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "hangs"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    options = ["--ranks", "1", "--seconds", "3", "--staging-bytes", "0"]
    began = time.monotonic()
    ended = _api_ranks("--bin", _BIN, *options, "streams", program)
    assert time.monotonic() - began < 20
    assert ended.returncode == 1
    assert "process 0 ended with -9" in ended.stderr and "epd: " in ended.stderr


def test_a_rank_that_fails_fails_the_part(tmp_path: pathlib.Path) -> None:
    options = ["--ranks", "2", "--steps", "1", "--staging-bytes", "0"]
    ended = _api_ranks("--bin", _BIN, *options, "jax", _wheel(), JAX_PLATFORMS="no_such_platform")
    assert ended.returncode == 1
    assert json.loads(ended.stdout) == {"passed": False}
    assert "process 0 ended with 1" in ended.stderr and "no_such_platform" in ended.stderr
    ended = _api_ranks("--bin", tmp_path, *options, "jax", _wheel())
    assert ended.returncode == 1
