"""Goal: the part of tests/gpu/run that tries JAX ranks over a real epd does its work - here on CPUs - and fails when they do."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
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


def test_the_benchmark_measures_what_runs_here_and_says_what_does_not() -> None:
    options = ["--divide", "64", "--staging-bytes", "0"]
    flags = "--xla_force_host_platform_device_count=2"
    ended = _api_ranks("--bin", _BIN, *options, "bench", _wheel(), XLA_FLAGS=flags)
    assert ended.returncode == 0, ended.stderr
    (report,) = json.loads(ended.stdout)["processes"]
    assert [shape["tokens_per_rank"] for shape in report["shapes"]] == [2, 64]
    for shape in report["shapes"]:
        times = shape["epd"]["forward_backward"]
        assert times["p99_us"] >= times["p50_us"] > shape["epd"]["forward"]["p50_us"] / 2 > 0
        assert "does not run here" in shape["ragged_all_to_all"]


# XLA has no such collective on CPUs: the same by what it has.
_EMULATED = """
import sys, jax, jax.numpy as jnp

def ragged_all_to_all(rows, out, starts, sizes, targets, came, axis_name):
    from_all = [jax.lax.all_gather(a, axis_name) for a in (rows, starts, sizes, targets)]
    ranks, slices = from_all[1].shape
    place = jnp.arange(rows.shape[0])
    for source in range(ranks):
        rows, starts, sizes, targets = (a[source] for a in from_all)
        for local in range(slices // ranks):
            i = jax.lax.axis_index(axis_name) * (slices // ranks) + local
            to = jnp.where(place < sizes[i], targets[i] + place, out.shape[0])
            out = out.at[to].set(rows.at[starts[i] + place].get(mode="fill"), mode="drop")
    return out

jax.lax.ragged_all_to_all = ragged_all_to_all
import api_bench
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
    for shape in json.loads(run.stdout)["shapes"]:
        assert shape["ragged_all_to_all"]["forward_backward"]["p50_us"] > 0


def test_a_rank_that_fails_fails_the_part(tmp_path: pathlib.Path) -> None:
    options = ["--ranks", "2", "--steps", "1", "--staging-bytes", "0"]
    ended = _api_ranks("--bin", _BIN, *options, "jax", _wheel(), JAX_PLATFORMS="no_such_platform")
    assert ended.returncode == 1
    assert json.loads(ended.stdout) == {"passed": False}
    assert "process 0 ended with 1" in ended.stderr and "no_such_platform" in ended.stderr
    ended = _api_ranks("--bin", tmp_path, *options, "jax", _wheel())
    assert ended.returncode == 1
