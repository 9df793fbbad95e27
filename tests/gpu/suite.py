"""The parts of tests/gpu/run: builds, runs each in its own process, and writes one report."""

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import machine

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_NO_GPU = 77
_TAIL = 2000  # characters of a part's messages that the report keeps


@dataclasses.dataclass(frozen=True)
class Part:
    """One process of the suite; it prints one JSON object."""

    name: str
    command: list[str]
    seconds: int
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    skip: str = ""  # why it cannot run here


def _sanitized(name: str, tool: str, kernel_tests: list[str]) -> Part:
    sanitizer = machine.beside_nvcc("compute-sanitizer")
    skip = "" if sanitizer else "no compute-sanitizer: it comes with the CUDA toolkit"
    # Few exchanges: the tools slow kernels down a hundredfold.
    command = [sanitizer or "", "--tool", tool, "--error-exitcode", "9", *kernel_tests]
    return Part(name, [*command, "--seeds", "12"], 900, skip=skip)


@functools.cache
def _why_no_jax() -> str:
    asked = subprocess.run(
        [sys.executable, "-c", "import jax; assert jax.devices('gpu')"],
        check=False,
        capture_output=True,
    )
    return "" if asked.returncode == 0 else f"{sys.executable} has no JAX that sees a GPU"


def _jax_part(out: pathlib.Path) -> Part:
    probe = str(_ROOT / "tests" / "gpu" / "jax_probe.py")
    flags = "--xla_gpu_graph_min_graph_size=1"
    return Part(
        "T4 T5 jax",
        [sys.executable, probe, str(out / "memop_call.so")],
        600,
        {"XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2"},
        _why_no_jax(),
    )


def _installed(*places: str) -> pathlib.Path | None:
    """The first that is there: a bundle has other places than a clone that was set up."""
    found = (path for place in places for path in sorted(_ROOT.glob(place)))
    return next(found, None)


def _api_parts() -> list[Part]:
    """The API with several ranks on one GPU, over a real epd: ranks in one process and in several, then JAX's."""
    epd = _installed("bin/epd", ".venv/bin/epd")
    streams = _installed("bin/stream_ranks", "bazel-bin/tests/integration/cuda/stream_ranks")
    wheel = _installed("wheel/epd-*.whl", "bazel-bin/client/jax/epd-*.whl")
    command = [sys.executable, str(_ROOT / "tests" / "gpu" / "api_ranks.py")]
    no_jax = "" if epd and wheel else "no epd and wheel: unpack a bundle"
    made = []
    for executor in ("worker", "client"):
        over = [*command, "--bin", str(epd.parent) if epd else "", "--executor", executor]
        missing = "" if epd and streams else "no epd and stream_ranks: unpack a bundle"
        for processes in (1, 2, 4):
            for staging in ("vmm", "ipc") if processes == 2 else ("auto",):
                made.append(
                    Part(
                        f"api streams {executor} {processes} {staging}",
                        [*over, "--processes", str(processes), "--staging", staging]
                        + ["--steps", "200", "streams", str(streams)],
                        500,
                        skip=missing,
                    )
                )
        made.append(
            Part(
                f"api jax {executor}", [*over, "jax", str(wheel)], 500, skip=no_jax or _why_no_jax()
            )
        )
    for executor, backend in (("worker", "cuda"), ("client", "cuda"), ("worker", "nccl_ep")):
        over = [*command, "--bin", str(epd.parent) if epd else "", "--executor", executor]
        over += ["--backend", backend, "--staging-bytes", "16GiB"]
        made.append(
            Part(
                f"bench api {backend} {executor}",
                [*over, "bench", str(wheel)],
                500,
                skip=no_jax or _why_no_jax(),
            )
        )
    return made


def parts(out: pathlib.Path) -> list[Part]:
    """Everything that runs on a GPU, in order; the report has one entry for each."""
    image = ["--image", str(out / "kernels.fatbin")]
    kernel_tests = [str(out / "kernel_tests"), *image]
    mps = machine.beside_nvcc("nvidia-cuda-mps-control")
    no_mps = "" if mps else "no nvidia-cuda-mps-control"
    return [
        Part("kernels", kernel_tests, 600),
        _sanitized("kernels memcheck", "memcheck", kernel_tests),
        _sanitized("kernels racecheck", "racecheck", kernel_tests),
        Part("T1 handover", [str(out / "handover"), *image], 300),
        Part("T1 handover mps", [str(out / "handover"), *image], 300, skip=no_mps),
        Part("T2 graph replay", [str(out / "graph_replay"), "--replays", "1000000"], 600),
        Part("T3 device words", [str(out / "device_words"), *image], 120),
        _jax_part(out),
        Part("T5 shared memory", [str(out / "shared_memory")], 300),
        Part("T6 bench", [str(out / "bench"), *image], 600),
        Part("T7 nccl ranks", [str(out / "nccl_ranks")], 300),
        Part("T8 poison", [str(out / "poison")], 300),
        *_api_parts(),
    ]


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


def _text(output: str | bytes | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def run_part(part: Part) -> dict:
    """Runs one part and says how it ended: passed, failed or skipped."""
    if part.skip:
        return {"name": part.name, "status": "skipped", "reason": part.skip}
    start = time.monotonic()
    try:
        with _mps(part.name.endswith(" mps")) as environment:
            ended = subprocess.run(
                part.command,
                check=False,
                text=True,
                capture_output=True,
                timeout=part.seconds,
                env={**os.environ, **part.environment, **environment},
            )
        stdout, stderr, status = ended.stdout, ended.stderr, ended.returncode
    except subprocess.TimeoutExpired as error:
        stdout, stderr, status = _text(error.stdout), _text(error.stderr), "timeout"
    except (OSError, subprocess.CalledProcessError) as error:
        stdout, stderr, status = "", str(error), "not started"
    result = _result(stdout)
    passed = status == 0 and bool(result)
    outcome = "skipped" if passed and "skipped" in result else "passed" if passed else "failed"
    entry = {
        "name": part.name,
        "status": outcome,
        "exit": status,
        "seconds": round(time.monotonic() - start, 1),
        "result": result,
    }
    if outcome == "failed":
        entry["messages"] = (stdout + stderr)[-_TAIL:]
    return entry


def _build(out: pathlib.Path) -> str | None:
    """Compiles everything; what is wrong, or None."""
    compiler = machine.nvcc()
    if compiler is None:
        return "no nvcc: set NVCC or CUDA_HOME, or put it on PATH"
    make = ["make", "-C", str(_ROOT / "tests" / "gpu"), f"-j{os.cpu_count()}", f"OUT={out}"]
    make += [f"NVCC={compiler}", f"PYTHON={sys.executable}"]
    for variable in ("CXX", "CXXFLAGS"):
        if variable in os.environ:
            make.append(f"{variable}={os.environ[variable]}")
    ended = subprocess.run(make, check=False, stdout=sys.stderr)
    return None if ended.returncode == 0 else f"make ended with {ended.returncode}"


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/gpu/run")
    parser.add_argument("--report", type=pathlib.Path)
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--only", default="")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    out = _ROOT / "out" / "gpu"
    report = options.report or out / "report.json"
    reason = None if options.build_only else machine.why_no_gpu()
    if reason:
        print(f"tests/gpu/run: no GPU here, so nothing ran: {reason}")
        return _NO_GPU
    failure = _build(out)
    if failure:
        print(f"tests/gpu/run: the build failed: {failure}")
        return 1
    if options.build_only:
        print(f"tests/gpu/run: everything compiles; it is in {out}")
        return 0
    entries = []
    for part in parts(out):
        if options.only not in part.name:
            continue
        entries.append(run_part(part))
        print(f"{entries[-1]['status'].upper():8} {part.name}", flush=True)
    document = {"machine": machine.describe(_ROOT), "parts": entries}
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps(document, indent=2) + "\n")
    counts = [
        sum(entry["status"] == status for entry in entries)
        for status in ("passed", "failed", "skipped")
    ]
    print(f"report: {report}")
    print("{} passed, {} failed, {} skipped".format(*counts))
    return 0 if counts[1] == 0 and counts[0] > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
