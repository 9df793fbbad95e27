"""Goal: a sanitizer that finds no planted fault fails the check, and so does a test that fails under one."""

import pathlib

import pytest
import sanitizers

_FINDS = """
case "$*" in
  run*heap_overflow*) echo "ERROR: AddressSanitizer: heap-buffer-overflow" >&2; exit 1 ;;
  run*signed_overflow*) echo "runtime error: signed integer overflow" >&2; exit 1 ;;
esac
"""


def _bazel(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Puts a script in bazel's place."""
    script = folder / "bazel"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_a_sanitizer_that_finds_the_faults_and_no_others_passes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _bazel(tmp_path, monkeypatch, _FINDS)
    assert sanitizers.check(tmp_path) == []


@pytest.mark.parametrize("said", ["exit 0", "echo no such target >&2; exit 1"])
def test_one_that_does_not_find_them_fails(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    _bazel(tmp_path, monkeypatch, said)
    found = sanitizers.check(tmp_path)
    assert [line.partition(" in ")[0] for line in found] == [
        "--config=asan finds no heap-buffer-overflow",
        "--config=asan finds no signed integer overflow",
    ]


def test_a_test_that_fails_under_one_fails(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _bazel(tmp_path, monkeypatch, f"{_FINDS}\nexit 3")
    assert sanitizers.check(tmp_path) == ["bazel test --config=asan ended with 3"]
