"""Goal: the part of tests/gpu/run that tries JAX ranks over a real epd does its work - here on CPUs - and fails when they do."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_BIN = _ROOT / ".venv" / "bin"


def _wheel() -> pathlib.Path:
    wheels = sorted((_ROOT / "bazel-bin" / "client" / "jax").glob("epd-*.whl"))
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


def test_a_rank_that_fails_fails_the_part(tmp_path: pathlib.Path) -> None:
    options = ["--ranks", "2", "--steps", "1", "--staging-bytes", "0"]
    ended = _api_ranks("--bin", _BIN, *options, "jax", _wheel(), JAX_PLATFORMS="no_such_platform")
    assert ended.returncode == 1
    assert json.loads(ended.stdout) == {"passed": False}
    assert "process 0 ended with 1" in ended.stderr and "no_such_platform" in ended.stderr
    ended = _api_ranks("--bin", tmp_path, *options, "jax", _wheel())
    assert ended.returncode == 1
