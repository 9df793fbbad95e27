"""The checks of .ci/run that follow the tests. Each counts as one case in the closing line."""

import functools
import subprocess
import sys
import time
from collections.abc import Callable

import backends
import compile_commands
import error_numbers
import failpoints
import fault_table
import figures
import glossary
import guarantees
import layering
import modules
import readmes
import skips
import style
import tally
import tidy
import tools
import top_level
import tree
import words

_OUT = tree.ROOT / "out"


def _bazel(*arguments: str) -> list[str]:
    ended = subprocess.run(["bazel", *arguments], cwd=tree.ROOT, check=False)
    return [] if ended.returncode == 0 else [f"bazel {arguments[0]} ended with {ended.returncode}"]


def _clang_build() -> list[str]:
    """Builds all with clang++: its warnings and its thread-safety analysis are errors."""
    return _bazel(
        "build",
        "--config=clang",
        "--keep_going",
        "--color=no",
        "--curses=no",
        "--show_progress_rate_limit=15",
        *compile_commands.ALL,
    )


def _clang_tidy() -> list[str]:
    """Checks the product's sources. Tests are left to the two compilers."""
    return tidy.check(tree.ROOT, compile_commands.read(tree.ROOT, compile_commands.PRODUCT))


def _allowed_skips() -> list[str]:
    return skips.check_files(_OUT / "tests.json", tree.ROOT / ".ci" / "allowed_skips.txt")


def run_check(name: str, check: Callable[[], list[str]]) -> tally.Case:
    start = time.monotonic()
    complaints = check()
    for complaint in complaints:
        print(f"  {complaint}")
    outcome = "failed" if complaints else "passed"
    seconds = time.monotonic() - start
    print(f"{outcome.upper():8} check {name} ({seconds:.1f} s)", flush=True)
    return tally.Case(f"check {name}", outcome, f"{len(complaints)} complaints, see above", seconds)


def own_rules(files: tree.Tree) -> dict[str, Callable[[], list[str]]]:
    """The repository's own rules, over `files`."""
    rules = (
        top_level,
        layering,
        backends,
        error_numbers,
        failpoints,
        figures,
        glossary,
        words,
        style,
        modules,
        readmes,
        guarantees,
    )
    return {rule.__name__.replace("_", " "): functools.partial(rule.check, files) for rule in rules}


def main() -> int:
    files = tree.read()
    paths = sorted(files)
    checks: dict[str, Callable[[], list[str]]] = {
        "allowed skips": _allowed_skips,
        "fault table": fault_table.check,
        **own_rules(files),
        "clang-format": lambda: tools.clang_format(tree.ROOT, paths),
        "ruff": lambda: tools.ruff(tree.ROOT, paths),
        "mypy": lambda: tools.mypy(tree.ROOT),
        "shellcheck": lambda: tools.shellcheck(tree.ROOT, paths),
        "clang build": _clang_build,
        "clang-tidy": _clang_tidy,
    }
    cases = tally.load(_OUT / "tests.json")
    cases += [run_check(name, check) for name, check in checks.items()]
    print("The ten slowest parts, as Bazel, pytest and the checks timed them:")
    for line in tally.slowest(cases):
        print(line)
    return tally.report(cases)


if __name__ == "__main__":
    sys.exit(main())
