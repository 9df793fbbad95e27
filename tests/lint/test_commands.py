"""Goal: the fixed commands explain themselves, and refuse arguments they do not know before doing anything."""

import subprocess

import pytest
import tree

_COMMANDS = [
    "deploy/setup",
    "deploy/quickstart",
    "tests/run",
    "tests/bench/run",
    "tests/long/run",
    ".ci/run",
    ".ci/quick",
    ".ci/format",
    ".ci/compile_commands",
]


def _run(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tree.ROOT / command, *arguments],
        check=False,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
    )


@pytest.mark.parametrize("command", _COMMANDS)
def test_help_explains_the_command(command: str) -> None:
    ended = _run(command, "--help")
    assert ended.returncode == 0
    assert ended.stdout.startswith(f"usage: {command}")


@pytest.mark.parametrize("command", _COMMANDS)
def test_an_unknown_argument_is_an_error(command: str) -> None:
    ended = _run(command, "--no-such-option")
    assert ended.returncode != 0
    assert "usage: " in ended.stdout


def test_a_pattern_that_matches_no_test_is_a_failure() -> None:
    ended = _run("tests/run", "--no-setup", "--python-only", "-k", "no_such_test_anywhere")
    assert ended.returncode == 1
    assert ended.stdout.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"
