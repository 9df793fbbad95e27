"""Runs every test of epd and prints one closing line. tests/run sets up and calls it with .venv's Python."""

import argparse
import os
import pathlib
import signal
import subprocess
import sys

import bazel_tests
import tally

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_PYTHON_TESTS = ["tests/lint", "client/python", "client/cli", "deploy", "tests/integration"]
_NO_TESTS_COLLECTED = 5
# Most tests wait, for processes and deadlines: two files at a time keep a small machine busy and
# its deadlines honest. A file stays in one process, since its fixtures start daemons.
_TWO_AT_A_TIME = ("--numprocesses=2", "--dist=loadfile")
# So many failures may be the machine's (its load, a deadline missed); more are a change's.
_MOST_RUN_AGAIN = 5


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/run")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--cpp-only", action="store_true")
    only.add_argument("--python-only", action="store_true")
    parser.add_argument("-k", dest="pattern", metavar="PATTERN")
    return parser.parse_args(arguments)


def _bazel_targets(pattern: str | None) -> list[str]:
    # Not "//...": it would walk into the bazel-* links of another output base.
    targets = [
        f"//{folder.name}/..."
        for folder in sorted(_ROOT.iterdir())
        if folder.is_dir()
        and not folder.name.startswith((".", "bazel-", "out"))
        and any(folder.rglob("BUILD"))
    ]
    if not pattern:
        return targets
    query = f"filter('{pattern}', tests({' + '.join(targets)}))"
    found = subprocess.run(
        ["bazel", "query", "--noshow_progress", query],
        cwd=_ROOT,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    )
    return found.stdout.split()


def _run_cpp(pattern: str | None) -> list[tally.Case]:
    targets = _bazel_targets(pattern)
    return bazel_tests.run(_ROOT, targets) if targets else []


def _run_python(pattern: str | None, *options: str) -> list[tally.Case]:
    xml = _ROOT / "out" / "pytest.xml"
    xml.unlink(missing_ok=True)
    folders = [folder for folder in _PYTHON_TESTS if (_ROOT / folder).is_dir()]
    command = [sys.executable, "-m", "pytest", "-c", "tests/pytest.ini", f"--rootdir={_ROOT}"]
    command += [f"--junitxml={xml}", "--tb=short", "--durations=5"]
    command += ["--continue-on-collection-errors", *options]
    command += ["-k", pattern] if pattern else []
    ended = subprocess.run([*command, *folders], cwd=_ROOT, check=False)
    if ended.returncode == _NO_TESTS_COLLECTED and pattern:
        return []
    try:
        cases = tally.cases_in(xml)
    except ValueError as error:
        return [tally.Case("pytest", "failed", f"exit status {ended.returncode}; {error}")]
    if ended.returncode != 0 and not tally.failed(cases):
        cases.append(tally.Case("pytest", "failed", f"exit status {ended.returncode}, see above"))
    return cases


def _run_failed_again(cases: list[tally.Case]) -> list[tally.Case]:
    """Runs what failed once more, alone, if it is little: what passes then is told, and does not fail the run."""
    failed = tally.failed(cases)
    if len(failed) > _MOST_RUN_AGAIN:
        return cases
    targets = sorted({case.name.split()[0] for case in failed if case.name.startswith("//")})
    second = bazel_tests.run(_ROOT, targets, at_once=1) if targets else []
    if any(not case.name.startswith("//") for case in failed):
        second += _run_python(None, "--last-failed", "--last-failed-no-failures=none")
    return tally.with_second_run(cases, second)


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    # A shell ignores it in what it runs in the background, and tests of Ctrl-C would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.geteuid() != 0:
        os.environ["EPD_DUMPABLE"] = "yes"  # Tests count descriptors of epd and its workers.
    (_ROOT / "out").mkdir(exist_ok=True)
    cases: list[tally.Case] = []
    if not options.python_only:
        cases += _run_cpp(options.pattern)
    if not options.cpp_only:
        cases += _run_python(options.pattern, *_TWO_AT_A_TIME)
    cases = _run_failed_again(cases)
    if not cases:
        cases = [tally.Case("tests/run", "failed", f"no test matches -k {options.pattern}")]
    tally.save(cases, _ROOT / "out" / "tests.json")
    return tally.report(cases)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
