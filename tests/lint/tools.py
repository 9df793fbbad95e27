"""Runs the formatters and linters that others wrote; each returns complaints, and none means clean.

A tool that is not installed is a complaint, never a pass.
"""

import concurrent.futures
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterable

import tree

_RUFF = (sys.executable, "-m", "ruff")


def run(command: list[str], cwd: pathlib.Path) -> list[str]:
    """Returns what a failing command printed, by line; nothing if it succeeded."""
    try:
        ended = subprocess.run(
            command,
            cwd=cwd,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except FileNotFoundError:
        return [f"{command[0]} is not installed; deploy/setup installs it"]
    if ended.returncode == 0:
        return []
    lines = [line for line in ended.stdout.splitlines() if line.strip()]
    return lines or [f"{' '.join(command[:3])} ... ended with {ended.returncode}"]


def over_all(sources: Iterable[str], look: Callable[[str], list[str]]) -> list[str]:
    """Returns, once each, what `look` complains of, over all sources, as many at a time as there are processors."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        return sorted({line for lines in pool.map(look, sources) for line in lines})


def clang_format(root: pathlib.Path, paths: list[str]) -> list[str]:
    files = [path for path in paths if path.endswith(tree.CPP_SUFFIXES)]
    if not files:
        return []
    printed = run(["clang-format", "--dry-run", "-Werror", *files], root)
    errors = [line.split(":") for line in printed if "[-Wclang-format-violations]" in line]
    first: dict[str, str] = {}
    for path, line, *_ in errors:
        first.setdefault(path, line)
    return [f"{p}:{n}: differs from clang-format" for p, n in first.items()] if errors else printed


def ruff(root: pathlib.Path, paths: list[str]) -> list[str]:
    files = [path for path in paths if path.endswith(".py")]
    if not files:
        return []
    return run([*_RUFF, "format", "--check", *files], root) + run(
        [*_RUFF, "check", "--quiet", "--output-format=concise", *files], root
    )


def mypy(root: pathlib.Path) -> list[str]:
    """Checks the types of the Python package epd, as tests/lint/mypy.ini says."""
    config = root / "tests" / "lint" / "mypy.ini"
    return run(
        [sys.executable, "-m", "mypy", f"--config-file={config}", "--no-error-summary"], root
    )


def pytest(root: pathlib.Path, files: list[str]) -> list[str]:
    options = ("-q", "-c", "tests/pytest.ini", f"--rootdir={root}")
    return run([sys.executable, "-m", "pytest", *options, *files], root)


def _is_shell(root: pathlib.Path, path: str) -> bool:
    with (root / path).open("rb") as file:
        first = file.readline(80)
    return first.startswith(b"#!") and (b"bash" in first or first.rstrip().endswith(b"/sh"))


def shellcheck(root: pathlib.Path, paths: list[str]) -> list[str]:
    files = [path for path in paths if _is_shell(root, path)]
    return run(["shellcheck", "--format=gcc", *files], root) if files else []
