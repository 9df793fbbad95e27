"""Runs the formatters and linters that others wrote; each returns complaints, and none means clean.

A tool that is not installed is a complaint, never a pass.
"""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

import tree

_RUFF = (sys.executable, "-m", "ruff")
# g++'s options that clang does not know, and those that name outputs.
_DROP = {"-MD", "-c", "-fno-canonical-system-headers", "-Wno-free-nonheap-object"}
_DROP_WITH_VALUE = {"-MF", "-o"}


def _run(command: list[str], cwd: pathlib.Path) -> list[str]:
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


def clang_format(root: pathlib.Path, paths: list[str]) -> list[str]:
    files = [path for path in paths if path.endswith(tree.CPP_SUFFIXES)]
    if not files:
        return []
    printed = _run(["clang-format", "--dry-run", "-Werror", *files], root)
    errors = [line.split(":") for line in printed if "[-Wclang-format-violations]" in line]
    first: dict[str, str] = {}
    for path, line, *_ in errors:
        first.setdefault(path, line)
    return [f"{p}:{n}: differs from clang-format" for p, n in first.items()] if errors else printed


def ruff(root: pathlib.Path, paths: list[str]) -> list[str]:
    files = [path for path in paths if path.endswith(".py")]
    if not files:
        return []
    return _run([*_RUFF, "format", "--check", *files], root) + _run(
        [*_RUFF, "check", "--quiet", "--output-format=concise", *files], root
    )


def _is_shell(root: pathlib.Path, path: str) -> bool:
    with (root / path).open("rb") as file:
        first = file.readline(80)
    return first.startswith(b"#!") and (b"bash" in first or first.rstrip().endswith(b"/sh"))


def shellcheck(root: pathlib.Path, paths: list[str]) -> list[str]:
    files = [path for path in paths if _is_shell(root, path)]
    return _run(["shellcheck", "--format=gcc", *files], root) if files else []


def tidy_arguments(compile_arguments: list[str]) -> list[str]:
    """Turns a compile command of Bazel's into what follows `clang-tidy FILE --`, the file left out."""
    kept = []
    arguments = iter(compile_arguments[1:])
    for argument in arguments:
        if argument in _DROP_WITH_VALUE:
            next(arguments)
        elif argument not in _DROP and not argument.endswith((".cc", ".d", ".o")):
            kept.append(argument)
    return kept


def compile_commands(root: pathlib.Path, targets: list[str]) -> dict[str, list[str]]:
    """Returns source -> arguments of its compilation with clang, for the sources in `targets`."""
    query = f'mnemonic("CppCompile", {" + ".join(targets)})'
    printed = subprocess.run(
        ["bazel", "aquery", "--config=clang", "--noshow_progress", "--output=jsonproto", query],
        cwd=root,
        check=True,
        stdout=subprocess.PIPE,
    )
    commands = {}
    for action in json.loads(printed.stdout).get("actions", []):
        arguments = action["arguments"]
        source = arguments[arguments.index("-c") + 1]
        if not source.startswith(("bazel-out/", "external/")):
            commands.setdefault(source, arguments)
    return commands


def clang_tidy(root: pathlib.Path, commands: dict[str, list[str]]) -> list[str]:
    """Checks each source of `commands`, run from `root`, against the .clang-tidy above it."""

    def one(source: str) -> list[str]:
        arguments = tidy_arguments(commands[source])
        printed = _run(["clang-tidy", "--quiet", source, "--", *arguments], root)
        return [line for line in printed if "error:" in line] or printed

    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        return sorted({line for lines in pool.map(one, sorted(commands)) for line in lines})
