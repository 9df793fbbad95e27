"""What .ci/quick does: the checks of .ci/run that take seconds, over what a change touches, and its unit tests."""

import argparse
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable

import ci
import tally
import tools
import tree

_DESCRIPTION = """Formats nothing and installs nothing: checks format, lint and types of the files that differ from
REF (commits, changes, new files), all of the repository's own rules, and runs the unit tests that depend on them.
The last line is "N passed, N failed, N skipped". tests/run and .ci/run do the rest."""
_UNITS = "//tests/unit/..."
# Files that no target names, but on which every one depends.
_EVERYTHING = ("WORKSPACE", ".bazelrc", "bazel/")


def changed(root: pathlib.Path, base: str) -> list[str]:
    """Returns the files that differ from where this branch left `base`, and are still there."""

    def git(*arguments: str) -> list[str]:
        ended = subprocess.run(
            ["git", *arguments], cwd=root, check=True, text=True, stdout=subprocess.PIPE
        )
        return ended.stdout.splitlines()

    (fork,) = git("merge-base", base, "HEAD")
    differ = set(git("diff", "--name-only", "--no-renames", fork))
    differ |= set(git("ls-files", "--others", "--exclude-standard"))
    return sorted(path for path in differ if (root / path).is_file())


def query(paths: list[str]) -> str | None:
    """Returns Bazel's query for the unit tests that depend on `paths`; None if nothing that it builds does."""
    if any(path.startswith(_EVERYTHING) for path in paths):
        return f"tests({_UNITS})"
    labels = []
    for path in paths:
        folder, _, name = path.rpartition("/")
        if name == "BUILD" and folder:
            labels.append(f"//{folder}:*")
        elif path.endswith((*tree.CPP_SUFFIXES, ".proto", ".c", ".inc", ".textproto")):
            labels.append(f'"{path}"')
    return f"tests(rdeps({_UNITS}, {' + '.join(labels)}))" if labels else None


def unit_targets(root: pathlib.Path, paths: list[str]) -> list[str]:
    asked = query(paths)
    if asked is None:
        return []
    # --keep_going: a file may belong to no target.
    ended = subprocess.run(
        ["bazel", "query", "--keep_going", "--noshow_progress", asked],
        cwd=root,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    return ended.stdout.split()


def _units(root: pathlib.Path, targets: list[str], deadline: float) -> list[str]:
    print(f"unit tests: {len(targets)} targets", flush=True)
    bazel = subprocess.Popen(
        ["bazel", "test", "--test_summary=terse", "--noshow_progress", *targets], cwd=root
    )
    try:
        status = bazel.wait(max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        bazel.terminate()  # Its client tells the server to stop.
        bazel.wait()
        return ["not done in time: give --minutes, or run tests/run --cpp-only"]
    return [] if status == 0 else [f"bazel test ended with {status}, see above"]


def _python_units(paths: list[str]) -> list[str]:
    """The tests of this folder that are about the changed files of this folder, or are them."""
    names = {pathlib.PurePath(path).stem.removeprefix("test_") for path in paths}
    folder = "tests/lint"
    touched = [path for path in paths if path.startswith((folder + "/", "tests/tally.py"))]
    if not touched:
        return []
    every = sorted((tree.ROOT / folder).glob("test_*.py"))
    own = [test for test in every if test.stem.removeprefix("test_") in names]
    return [f"{folder}/{test.name}" for test in {*own, tree.ROOT / folder / "test_guards.py"}]


def checks(
    root: pathlib.Path, files: tree.Tree, paths: list[str], deadline: float
) -> dict[str, Callable[[], list[str]]]:
    """Returns what there is to do for `paths`, by name, fastest first."""
    python = _python_units(paths)
    targets = unit_targets(root, paths)
    found: dict[str, Callable[[], list[str]]] = {
        **ci.own_rules(files),
        "clang-format": lambda: tools.clang_format(root, paths),
        "ruff": lambda: tools.ruff(root, paths),
        "shellcheck": lambda: tools.shellcheck(root, paths),
    }
    if any(path.startswith("client/python/epd/") for path in paths):
        found["mypy"] = lambda: tools.mypy(root)
    if python:
        found["tests of the checks"] = lambda: tools.pytest(root, sorted(python))
    if targets:
        found["unit tests"] = lambda: _units(root, targets, deadline)
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog=".ci/quick", description=_DESCRIPTION)
    parser.add_argument("--base", metavar="REF", default="main", help="default: main")
    parser.add_argument("--minutes", metavar="N", type=float, default=3.0, help="default: 3")
    options = parser.parse_args(arguments)
    deadline = time.monotonic() + 60 * options.minutes
    try:
        paths = changed(tree.ROOT, options.base)
    except subprocess.CalledProcessError:
        parser.error(f"no commit in common with {options.base}; give --base")
    print(f"{len(paths)} files differ from {options.base}", flush=True)
    todo = checks(tree.ROOT, tree.read(), paths, deadline)
    return tally.report([ci.run_check(name, check) for name, check in todo.items()])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
