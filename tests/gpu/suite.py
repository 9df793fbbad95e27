"""tests/gpu/run: runs each part in its own process, and keeps a report that is whole after each."""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import machine
import parts
import programs
from parts import Part

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_BUDGET_SPENT = 3
_NO_GPU = 77
_TAIL = 2000  # characters of a part's messages that the report keeps
_MPS_SECONDS = 30  # for its server to begin, and to end
_GRACE_SECONDS = 5  # for what was killed to be gone
# A part is begun while so much of its limit is left, and cut off so often it has failed: most need less than that.
_LEAST = 0.25
_MOST_CUTS = 2
# CUDA reads it at its start: more streams than hardware queues may wait for each other crosswise.
_ALL_QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}


@contextlib.contextmanager
def _mps(wanted: bool) -> Iterator[dict[str, str]]:
    """A server of its own for the parts that run under MPS."""
    if not wanted:
        yield {}
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        control = machine.beside_nvcc("nvidia-cuda-mps-control") or "nvidia-cuda-mps-control"
        everything = {**os.environ, **environment}
        subprocess.run([control, "-d"], check=True, env=everything, timeout=_MPS_SECONDS)
        try:
            yield environment
        finally:
            subprocess.run(
                [control],
                check=False,
                env=everything,
                input="quit\n",
                text=True,
                timeout=_MPS_SECONDS,
            )


def _result(stdout: str) -> dict:
    """The JSON object that a part printed, after whatever a tool printed around it."""
    begin = stdout.find("{")
    end = stdout.rfind("}")
    try:
        return json.loads(stdout[begin : end + 1])
    except json.JSONDecodeError:
        return {}


def _call(part: Part, environment: dict[str, str], seconds: float) -> tuple[str, str, int | str]:
    """Output, messages, exit status; at its limit it ends with every process that it started."""
    process = subprocess.Popen(
        part.command,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        errors="replace",
        env={**os.environ, **_ALL_QUEUES, **part.environment, **environment},
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        return stdout, stderr, process.returncode
    try:
        return *process.communicate(timeout=_GRACE_SECONDS), "timeout"
    except subprocess.TimeoutExpired:
        return "", "a process of it goes on, in the driver or in a session of its own", "timeout"


def run_part(part: Part, left: float = float("inf")) -> dict:
    """Runs one part within `left` seconds, and says how it ended: passed, failed, skipped; unfinished where only the
    budget ended it."""
    if part.skip:
        return {"name": part.name, "status": "skipped", "reason": part.skip}
    start = time.monotonic()
    libraries = {"EPD_LIBNCCL": machine.libnccl(), "EPD_LIBNCCL_EP": machine.libnccl_ep()}
    try:
        with _mps(part.name.endswith(" mps")) as environment:
            environment |= {name: path for name, path in libraries.items() if path}
            stdout, stderr, status = _call(part, environment, min(part.seconds, left))
    except (OSError, subprocess.SubprocessError) as error:
        stdout, stderr, status = "", str(error), "not started"
    result = _result(stdout)
    outcome = "failed"
    if status == 0 and result:
        outcome = "skipped" if "skipped" in result else "passed"
    elif status == _NO_GPU:
        outcome, result = "skipped", {"skipped": stderr.strip()[-_TAIL:]}
    elif status == "timeout" and left < part.seconds:
        outcome = "unfinished"
    entry = {
        "name": part.name,
        "status": outcome,
        "exit": status,
        "seconds": round(time.monotonic() - start, 1),
        "result": result,
    }
    if outcome in ("failed", "unfinished"):
        entry["messages"] = (stdout + stderr)[-_TAIL:]
    return entry


class _Report:
    """What became of the parts, on this visit to a GPU and on those before it; on disk whole at any time."""

    def __init__(self, path: pathlib.Path, resumed: pathlib.Path | None) -> None:
        self._path = path
        document = json.loads(resumed.read_text()) if resumed else {"machines": [], "parts": []}
        self._machines = [*document["machines"], machine.describe(_ROOT)]
        self._entries = {part["name"]: part for part in document["parts"]}
        self._write()

    def has_ended(self, name: str) -> bool:
        """What was skipped there may run here."""
        return self._entries.get(name, {}).get("status") in ("passed", "failed")

    def cuts(self, name: str) -> list[float]:
        """After how many seconds the end of a budget cut it off, visit by visit."""
        return self._entries.get(name, {}).get("cut_off_after", [])

    def add(self, entry: dict) -> None:
        """What was cut off too often is a failure, in `entry` too."""
        if entry["status"] == "unfinished":
            begun = [entry["seconds"]] if "seconds" in entry else []
            entry["cut_off_after"] = cuts = self.cuts(entry["name"]) + begun
            if len(cuts) >= _MOST_CUTS:
                entry |= {"status": "failed", "reason": f"cut off after {cuts} s: it may hang"}
        self._entries[entry["name"]] = entry | {"machine": len(self._machines) - 1}
        self._write()

    def count(self, status: str) -> int:
        return sum(entry["status"] == status for entry in self._entries.values())

    def _write(self) -> None:
        document = {"machines": self._machines, "parts": list(self._entries.values())}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        whole = self._path.with_suffix(".new")
        whole.write_text(json.dumps(document, indent=2) + "\n")
        whole.replace(self._path)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/gpu/run")
    parser.add_argument("--out", type=pathlib.Path, default=_ROOT / "out" / "gpu")
    parser.add_argument("--report", type=pathlib.Path)
    parser.add_argument("--budget", type=float, default=float("inf"))
    parser.add_argument("--resume", type=pathlib.Path)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--divide", type=int, default=1)
    parser.add_argument("--build-only", action="store_true")
    options = parser.parse_args(arguments)
    if options.resume and not options.resume.exists():
        parser.error(f"--resume: there is no {options.resume}")
    return options


def _asked(made: list[Part], options: argparse.Namespace, report: _Report) -> list[Part]:
    """What is named runs, also once more; else what an earlier report has not ended, and what the end of a budget has cut
    off behind all others: it may hang again."""
    if options.only:
        return [part for part in made if any(name in part.name for name in options.only)]
    left = [part for part in made if not report.has_ended(part.name)]
    return sorted(left, key=lambda part: len(report.cuts(part.name)))


def _run_within(part: Part, left: float) -> dict:
    """What is skipped needs no time."""
    if part.skip or left >= _LEAST * part.seconds:
        return run_part(part, left)
    reason = "the budget is spent" if left <= 0 else f"of the budget {left:.0f} s are left"
    return {"name": part.name, "status": "unfinished", "reason": reason}


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    end = time.monotonic() + options.budget
    if options.build_only:
        missing = programs.provide(options.out).missing
        for name, why in missing.items():
            print(f"tests/gpu/run: no {name}: {why}")
        print(f"tests/gpu/run: {'the rest' if missing else 'everything'} is in {options.out}")
        return 1 if missing else 0
    path = options.report or options.out / "report.json"
    report = _Report(path, options.resume)
    reason = machine.why_no_gpu()
    built = programs.Programs(options.out, {}) if reason else programs.provide(options.out)
    for part in _asked(parts.parts(built, options.divide), options, report):
        if reason:
            part = dataclasses.replace(part, skip=f"no GPU here: {reason}")
        entry = _run_within(part, end - time.monotonic())
        report.add(entry)
        why = entry.get("reason") or entry["result"].get("skipped", "")
        print(f"{entry['status'].upper():10} {part.name}  {why}".rstrip(), flush=True)
    counts = {
        status: report.count(status) for status in ("passed", "failed", "skipped", "unfinished")
    }
    print(f"report: {path}")
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
    if reason:
        print(f"tests/gpu/run: no GPU here, so nothing ran: {reason}")
        return _NO_GPU
    if counts["failed"]:
        return 1
    if counts["unfinished"]:
        return _BUDGET_SPENT
    return 0 if counts["passed"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
