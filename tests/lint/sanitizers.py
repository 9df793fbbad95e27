"""Runs the engine under seeds and the codecs on what fuzzing begins with, under AddressSanitizer and UndefinedBehaviorSanitizer.

tests/long/run asan does so with all tests. Each time it first proves that it can fail: programs with a fault each must be refused.
"""

import pathlib
import subprocess

TARGETS = ("//tests/fuzz/...", "//tests/unit/daemon/worker:simulation_test")
# Program of tests/lint/planted -> what its sanitizer says.
_PLANTED = {"heap_overflow": "heap-buffer-overflow", "signed_overflow": "signed integer overflow"}
_QUIETLY = ("--noshow_progress", "--ui_event_filters=-info", "--color=no", "--curses=no")


def planted(root: pathlib.Path, config: str) -> list[str]:
    """Returns complaints about the planted programs in which --config=`config` finds nothing."""
    complaints = []
    for program, word in _PLANTED.items():
        ended = subprocess.run(
            ["bazel", "run", f"--config={config}", *_QUIETLY, f"//tests/lint/planted:{program}"],
            cwd=root,
            check=False,
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        if ended.returncode == 0 or word not in ended.stderr:
            complaints.append(
                f"--config={config} finds no {word} in tests/lint/planted/{program}.cc, which ended with {ended.returncode}"
            )
    return complaints


def check(root: pathlib.Path) -> list[str]:
    if complaints := planted(root, "asan"):
        return complaints
    ended = subprocess.run(
        [
            "bazel",
            "test",
            "--config=asan",
            *_QUIETLY,
            "--keep_going",
            "--test_output=errors",
            *TARGETS,
        ],
        cwd=root,
        check=False,
    )
    return (
        [] if ended.returncode == 0 else [f"bazel test --config=asan ended with {ended.returncode}"]
    )
