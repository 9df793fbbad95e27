"""The checks of .ci/run that follow the tests. Each counts as one case in the closing line."""

import functools
import sys
import time
from collections.abc import Callable

import backends
import clang
import clean
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
import sanitizers
import skips
import style
import tally
import tensors
import tidy
import tools
import top_level
import tree
import words

_OUT = tree.ROOT / "out"


def _clang() -> list[str]:
    """Parses what the tests have of locks. The product's sources are clang-tidy's, which is clang as well."""
    commands = compile_commands.read(tree.ROOT, compile_commands.TESTS)
    return clang.check(tree.ROOT, clang.with_locks(tree.ROOT, commands), clean.folder("clang"))


def _clang_tidy() -> list[str]:
    """Checks the product's sources: its own rules, and clang's warnings and thread-safety analysis."""
    commands = compile_commands.read(tree.ROOT, compile_commands.PRODUCT)
    return tidy.check(tree.ROOT, commands, clean.folder("tidy"))


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
        tensors,
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
        "sanitizers": lambda: sanitizers.check(tree.ROOT),
        "clang": _clang,
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
