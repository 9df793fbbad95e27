"""Runs `bazel test`, prints a line per test target as it ends, and returns the single test cases."""

import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator

import tally

_NO_TESTS_FOUND = 4


def command(targets: list[str], events: pathlib.Path, at_once: int) -> list[str]:
    jobs = os.environ.get("EPD_BAZEL_JOBS", str(os.cpu_count() or 2))
    return [
        "bazel",
        "test",
        f"--jobs={jobs}",
        f"--local_test_jobs={at_once}",
        "--keep_going",
        "--build_tests_only",
        "--test_summary=none",
        "--show_progress_rate_limit=15",
        f"--build_event_json_file={events}",
        *([] if sys.stdout.isatty() else ["--color=no", "--curses=no"]),
        "--",
        *targets,
    ]


def _follow(path: pathlib.Path, process: subprocess.Popen) -> Iterator[dict]:
    """Yields the build events that Bazel appends to `path`, until it has ended and all are read."""
    pending = ""
    position = 0
    while True:
        ended = process.poll() is not None
        text = ""
        if path.exists():
            with path.open(encoding="utf-8") as file:
                file.seek(position)
                text = file.read()
                position = file.tell()
        *lines, pending = (pending + text).split("\n")
        for line in lines:
            if line.strip():
                yield json.loads(line)
        if ended and not text:
            return
        if not text:
            time.sleep(0.2)


class Results:
    """What the build events have said so far, per test target."""

    def __init__(self) -> None:
        self._expected: set[str] = set()
        self._xml: dict[str, list[pathlib.Path]] = {}
        self._status: dict[str, str] = {}

    def take(self, event: dict) -> str | None:
        """Takes one event in; returns a line to print if a test target has ended."""
        ident = event["id"]
        if "targetConfigured" in ident:
            if "_test rule" in event.get("configured", {}).get("targetKind", ""):
                self._expected.add(ident["targetConfigured"]["label"])
        elif "testResult" in ident:
            outputs = event.get("testResult", {}).get("testActionOutput", [])
            paths = [_local_path(o["uri"]) for o in outputs if o.get("name") == "test.xml"]
            self._xml.setdefault(ident["testResult"]["label"], []).extend(paths)
        elif "testSummary" in ident:
            label = ident["testSummary"]["label"]
            summary = event.get("testSummary", {})
            self._status[label] = summary.get("overallStatus", "NO_STATUS")
            seconds = int(summary.get("totalRunDurationMillis", 0)) / 1000
            return f"{self._status[label]:8} {label} ({seconds:.1f} s)"
        return None

    def cases(self) -> list[tally.Case]:
        return [
            case for label in sorted(self._expected | set(self._status)) for case in self._of(label)
        ]

    def _of(self, label: str) -> list[tally.Case]:
        status = self._status.get(label, "NO_STATUS")
        if status in ("NO_STATUS", "FAILED_TO_BUILD"):
            return [tally.Case(label, "failed", "did not build")]
        cases: list[tally.Case] = []
        for path in self._xml.get(label, []):
            try:
                cases += tally.cases_in(path, prefix=label + " ")
            except ValueError as error:
                cases.append(tally.Case(label, "failed", str(error)))
        if not cases:
            return [tally.Case(label, "failed", "left no test.xml")]
        if status != "PASSED" and not tally.failed(cases):
            cases.append(tally.Case(label, "failed", f"ended with {status}, see its log"))
        return cases


def _local_path(uri: str) -> pathlib.Path:
    return pathlib.Path(urllib.parse.unquote(urllib.parse.urlparse(uri).path))


# Tests have deadlines; two at a time keeps those honest on a small machine.
def run(root: pathlib.Path, targets: list[str], at_once: int = 2) -> list[tally.Case]:
    """Builds and runs `targets` of the workspace at `root`. Every target counts, built or not."""
    events = root / "out" / "bazel_events.json"
    events.parent.mkdir(exist_ok=True)
    events.unlink(missing_ok=True)
    process = subprocess.Popen(command(targets, events, at_once), cwd=root)
    results = Results()
    for event in _follow(events, process):
        line = results.take(event)
        if line:
            print(line, flush=True)
    status = process.wait()
    cases = results.cases()
    if status == _NO_TESTS_FOUND:
        cases.append(tally.Case("bazel", "failed", f"no test target in {' '.join(targets)}"))
    elif status != 0 and not tally.failed(cases):
        cases.append(tally.Case("bazel", "failed", f"exit status {status}, see above"))
    return cases
