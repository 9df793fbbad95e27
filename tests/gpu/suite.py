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
        subprocess.run([control, "-d"], check=True, env=everything)
        try:
            yield environment
        finally:
            subprocess.run([control], check=False, env=everything, input="quit\n", text=True)


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
        return *process.communicate(), "timeout"
    return stdout, stderr, process.returncode


def run_part(part: Part, left: float = float("inf")) -> dict:
    """Runs one part within `left` seconds, and says how it ended: passed, failed, skipped; unfinished where only the
    budget ended it."""
    if part.skip:
        return {"name": part.name, "status": "skipped", "reason": part.skip}
    start = time.monotonic()
    nccl = machine.libnccl()
    try:
        with _mps(part.name.endswith(" mps")) as environment:
            environment |= {"EPD_LIBNCCL": nccl} if nccl else {}
            stdout, stderr, status = _call(part, environment, min(part.seconds, left))
    except (OSError, subprocess.CalledProcessError) as error:
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
    """What ended, of this visit to a GPU and of those before it; on disk whole at any time."""

    def __init__(self, path: pathlib.Path, resumed: pathlib.Path | None) -> None:
        self._path = path
        document = json.loads(resumed.read_text()) if resumed else {"machines": [], "parts": []}
        self._machines = [*document["machines"], machine.describe(_ROOT)]
        ended = [part for part in document["parts"] if part["status"] != "unfinished"]
        self._entries = {part["name"]: part for part in ended}
        self._write()

    def has(self, name: str) -> bool:
        return name in self._entries

    def add(self, entry: dict) -> None:
        here = {"machine": len(self._machines) - 1}
        self._entries[entry["name"]] = entry | here
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
    parser.add_argument("--build-only", action="store_true")
    options = parser.parse_args(arguments)
    if options.resume and not options.resume.exists():
        parser.error(f"--resume: there is no {options.resume}")
    return options


def _asked(part: Part, options: argparse.Namespace, report: _Report) -> bool:
    """What is named runs, also once more; else what an earlier report does not have."""
    if options.only:
        return any(name in part.name for name in options.only)
    return not report.has(part.name)


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
    for part in parts.parts(built):
        if not _asked(part, options, report):
            continue
        if reason:
            part = dataclasses.replace(part, skip=f"no GPU here: {reason}")
        left = end - time.monotonic()
        unfinished = {"name": part.name, "status": "unfinished", "reason": "the budget is spent"}
        entry = run_part(part, left) if left > 0 or part.skip else unfinished
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
    if counts["failed"] or not counts["passed"]:
        return 1
    return _BUDGET_SPENT if counts["unfinished"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
