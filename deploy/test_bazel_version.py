"""Goal: another Bazel than the one that builds epd is told so in one sentence, whoever runs it."""

import os
import pathlib
import subprocess
import types

import pytest

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_WHAT_TO_INSTALL = "bazel-bootstrap"


def _check(**native: object) -> str | None:
    """Runs bazel/version.bzl as a Bazel would whose `native` has these members; returns what it fails with."""
    said: list[str] = []
    scope = {"native": types.SimpleNamespace(**native), "fail": said.append}
    exec((_ROOT / "bazel" / "version.bzl").read_text(), scope)
    scope["check_bazel"]()
    assert len(said) < 2
    return said[0] if said else None


@pytest.mark.parametrize("version", ["5.4.1", "6.5.0", "7.1.0", "4.1.0", "3.7.2"])
def test_a_workspace_of_another_bazel_fails_with_both_versions(version: str) -> None:
    said = _check(bazel_version=version)
    assert said and "Bazel 4.2.3" in said and f"this is Bazel {version}" in said
    assert _WHAT_TO_INSTALL in said and "\n" not in said


def test_a_package_of_a_bazel_that_reads_no_workspace_fails() -> None:
    said = _check(module_name=lambda: "epd", cc_library=None)
    assert said and "this is Bazel 6 or newer" in said


@pytest.mark.parametrize(
    "native",
    [{"bazel_version": ""}, {"bazel_version": "4.2.3"}, {"bazel_version": "4.2.3- (@non-git)"}, {}],
)
def test_the_bazel_of_debian_and_its_original_pass(native: dict[str, object]) -> None:
    assert _check(**native) is None


def test_workspace_asks_before_it_does_anything_else() -> None:
    lines = [
        line
        for line in (_ROOT / "WORKSPACE").read_text().splitlines()
        if line.strip() and not line.startswith("#")
    ]
    assert lines[1:3] == ['load("//bazel:version.bzl", "check_bazel")', "check_bazel()"]


def _with_bazel(tmp_path: pathlib.Path, version: str, *command: str) -> tuple[int, list[str]]:
    bazel = tmp_path / "bazel"
    bazel.write_text(f"#!/bin/sh\necho 'bazel {version}'\n")
    bazel.chmod(0o755)
    ended = subprocess.run(
        [_ROOT / command[0], *command[1:]],
        check=False,
        text=True,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
    )
    return ended.returncode, ended.stdout.splitlines()


def test_setup_says_it_in_one_line(tmp_path: pathlib.Path) -> None:
    code, lines = _with_bazel(tmp_path, "7.1.0", "deploy/setup", "--deps-only")
    assert code == 1
    (said,) = [line for line in lines if "Bazel 4.2.3" in line]
    assert said == lines[-1] and said.startswith("setup: error: ") and said.endswith("is 7.1.0")
    assert _WHAT_TO_INSTALL in said and str(tmp_path / "bazel") in said


def test_the_tests_say_it_before_they_run_any(tmp_path: pathlib.Path) -> None:
    code, lines = _with_bazel(tmp_path, "7.1.0", "tests/run", "--cpp-only")
    assert code == 1
    assert any("Bazel 4.2.3" in line and _WHAT_TO_INSTALL in line for line in lines)
    assert lines[-1] == "0 passed, 1 failed, 0 skipped"
