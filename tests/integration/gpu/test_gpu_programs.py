"""Goal: in a clone on a machine with a GPU, whichever compilers it has, the programs of tests/gpu are there or say why not."""

import importlib
import json
import pathlib
import subprocess
import types

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_NO_GPU = 77


@pytest.fixture(name="programs")
def _programs(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    monkeypatch.syspath_prepend(str(_ROOT / "tests" / "gpu"))
    programs = importlib.import_module("programs")
    monkeypatch.setattr(programs, "_BUNDLED", _ROOT / "no such folder")
    return programs


def _run(*command: pathlib.Path | str) -> subprocess.CompletedProcess:
    return subprocess.run(command, check=False, text=True, capture_output=True, timeout=120)


@pytest.mark.timeout(900)
def test_each_is_compiled_and_starts(
    programs: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """A source that was moved, or that one needs and programs.py does not name, is seen here and not by a GPU's user."""
    monkeypatch.setenv("CXXFLAGS", "-O0")
    built = programs.provide(tmp_path)
    assert built.missing == {}
    for name in programs.PROGRAMS:
        ended = _run(tmp_path / name, "--image", tmp_path / programs.IMAGE)
        assert ended.returncode == _NO_GPU and "no GPU" in ended.stderr, (name, ended)
    ended = _run(tmp_path / "kernel_tests", "--host", "--seeds", "2")
    said = json.loads(ended.stdout)
    assert (ended.returncode, said["failed"]) == (0, 0) and said["passed"] > 0


def test_a_source_that_is_gone_is_a_reason(
    programs: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(programs, "_SOURCES", {"poison": ["tests/gpu/poisson"]})
    monkeypatch.setattr(programs._Build, "image", lambda self: "")
    assert programs.provide(tmp_path).missing == {"poison": "there is no tests/gpu/poisson.cc"}


_NVCC = """#!/bin/sh
echo "$@" >{asked}
while [ "$1" != -o ]; do shift; done
{does}
"""


def _with_nvcc(
    programs: types.ModuleType, monkeypatch: pytest.MonkeyPatch, folder: pathlib.Path, does: str
) -> None:
    """In a clone of which nothing but such an nvcc is there, with a GPU of compute capability 9.0."""
    kernels = folder / "kernels" / "cuda"
    if not kernels.exists():
        kernels.mkdir(parents=True)
        (kernels / "nvcc.options").write_text(
            (_ROOT / "kernels" / "cuda" / "nvcc.options").read_text()
        )
        (kernels / "one.h").touch()
    nvcc = folder / "nvcc"
    nvcc.write_text(_NVCC.format(asked=folder / "asked", does=does))
    nvcc.chmod(0o755)
    monkeypatch.setenv("NVCC", str(nvcc))
    monkeypatch.setattr(programs, "_ROOT", folder)
    monkeypatch.setattr(programs, "_SOURCES", {})
    monkeypatch.setattr(programs.machine, "compute_capability", lambda: (9, 0))


def test_kernels_are_compiled_for_this_gpu_whatever_its_nvcc_warns_of(
    programs: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    _with_nvcc(programs, monkeypatch, tmp_path, 'echo compiled >"$2"')
    assert programs.provide(tmp_path / "out").missing == {}
    assert (tmp_path / "out" / programs.IMAGE).read_text() == "compiled\n"
    asked = (tmp_path / "asked").read_text().split()
    assert "-arch=sm_90" in asked and "--fmad=false" in asked and "-std=c++20" in asked
    assert not [word for word in asked if "error" in word.lower() or "code=" in word]


def test_where_nvcc_fails_the_kernels_are_those_that_bazel_left(
    programs: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    _with_nvcc(programs, monkeypatch, tmp_path, "echo too old >&2; exit 1")
    assert programs.provide(tmp_path / "out").missing == {programs.IMAGE: "too old\n"}
    left = tmp_path / "bazel-bin" / "kernels" / "cuda" / programs.IMAGE
    left.parent.mkdir(parents=True)
    left.write_text("left")
    left.chmod(0o444)
    for _ in range(2):
        assert programs.provide(tmp_path / "out").missing == {}
        assert (tmp_path / "out" / programs.IMAGE).read_text() == "left"
