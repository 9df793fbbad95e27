"""The checks of .ci/run that follow the tests. Each counts as one case in the closing line."""

import pathlib
import subprocess
import sys
import time
from collections.abc import Callable

import layering
import modules
import skips
import style
import tally
import tools
import top_level
import tree
import words

_OUT = tree.ROOT / "out"
# Every folder with C++ code.
_TARGETS = ["//client/...", "//daemon/...", "//kernels/...", "//proto/...", "//tests/..."]
# clang-tidy parses every header again for each file; gRPC's, CLI11's and XLA's would take longer than all the rest, so
# client/cli, client/jax and daemon/rpc are left to the two compilers.
_TIDY_TARGETS = [
    *("//client/c/...", "//client/cuda/...", "//kernels/..."),
    *(
        f"//daemon/{folder}/..."
        for folder in ("backend", "control", "core", "node", "observe", "packet")
    ),
    "//daemon/worker/...",
]


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
        *_TARGETS,
    )


def _clang_tidy() -> list[str]:
    info = subprocess.run(
        ["bazel", "info", "execution_root"],
        cwd=tree.ROOT,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    )
    commands = tools.compile_commands(tree.ROOT, _TIDY_TARGETS)
    if not commands:
        return ["clang-tidy has no file to check"]
    return tools.clang_tidy(pathlib.Path(info.stdout.strip()), commands)


def _allowed_skips() -> list[str]:
    return skips.check_files(_OUT / "tests.json", tree.ROOT / ".ci" / "allowed_skips.txt")


def _run_check(name: str, check: Callable[[], list[str]]) -> tally.Case:
    start = time.monotonic()
    complaints = check()
    for complaint in complaints:
        print(f"  {complaint}")
    outcome = "failed" if complaints else "passed"
    print(f"{outcome.upper():8} check {name} ({time.monotonic() - start:.1f} s)", flush=True)
    return tally.Case(f"check {name}", outcome, f"{len(complaints)} complaints, see above")


def main() -> int:
    files = tree.read()
    paths = sorted(files)
    checks: dict[str, Callable[[], list[str]]] = {
        "allowed skips": _allowed_skips,
        "top level": lambda: top_level.check(files),
        "layering": lambda: layering.check(files),
        "words": lambda: words.check(files),
        "style": lambda: style.check(files),
        "modules": lambda: modules.check(files),
        "clang-format": lambda: tools.clang_format(tree.ROOT, paths),
        "ruff": lambda: tools.ruff(tree.ROOT, paths),
        "shellcheck": lambda: tools.shellcheck(tree.ROOT, paths),
        "clang build": _clang_build,
        "clang-tidy": _clang_tidy,
    }
    cases = tally.load(_OUT / "tests.json")
    cases += [_run_check(name, check) for name, check in checks.items()]
    return tally.report(cases)


if __name__ == "__main__":
    sys.exit(main())
