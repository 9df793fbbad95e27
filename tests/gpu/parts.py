"""The parts of tests/gpu/run, the most telling first, and why one cannot run here."""

import dataclasses
import functools
import os
import pathlib
import subprocess
import sys

import machine
import programs

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_HERE = _ROOT / "tests" / "gpu"
# XLA makes a command buffer of one call too.
_ALL_GRAPHS = "--xla_gpu_graph_min_graph_size=1"


@dataclasses.dataclass(frozen=True)
class Part:
    """One process of the suite; it prints one JSON object."""

    name: str
    command: list[str]
    seconds: int
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    skip: str = ""  # why it cannot run here


@functools.cache
def why_no_jax() -> str:
    """Nothing, or that this Python has no JAX on a GPU."""
    try:
        asked = subprocess.run(
            [sys.executable, "-c", "import jax; assert jax.devices('gpu')"],
            check=False,
            capture_output=True,
            timeout=120,
        )
    except subprocess.TimeoutExpired:
        return f"{sys.executable}: JAX does not find its devices within 120 s"
    return "" if asked.returncode == 0 else f"{sys.executable} has no JAX that sees a GPU"


# One of PyTorch's and JAX's wheels with CUDA often shuts the other out.
_TORCH_PYTHON = os.environ.get("EPD_TORCH_PYTHON", sys.executable)


def deepep() -> Part:
    """Says itself what of DeepEP is not there."""
    command = [_TORCH_PYTHON, str(_HERE / "deepep_bench.py")]
    return Part("bench deepep", command, 600, skip=_why_no_numpy(_TORCH_PYTHON))


def _why_no_numpy(python: str) -> str:
    try:
        asked = subprocess.run([python, "-c", "import numpy"], check=False, capture_output=True)
    except OSError as error:
        return str(error)
    return "" if asked.returncode == 0 else f"{python} has no NumPy"


def _installed(*places: str) -> pathlib.Path | None:
    """The first that is there: a bundle has other places than a clone that was set up."""
    found = (path for place in places for path in sorted(_ROOT.glob(place)))
    return next(found, None)


class _Programs:
    """Parts that are a program of tests/gpu."""

    def __init__(self, built: programs.Programs) -> None:
        self._built = built

    def path(self, name: str) -> str:
        return str(self._built.folder / name)

    def why_not(self, *names: str) -> str:
        gone = [f"no {name}: {why}" for name, why in self._built.missing.items() if name in names]
        return "; ".join(gone)

    def part(self, name: str, program: str, *arguments: str, seconds: int = 300) -> Part:
        return Part(name, [self.path(program), *arguments], seconds, skip=self.why_not(program))

    def with_image(
        self, name: str, program: str, *arguments: str, seconds: int = 300, skip: str = ""
    ) -> Part:
        command = [self.path(program), "--image", self.path(programs.IMAGE), *arguments]
        return Part(name, command, seconds, skip=skip or self.why_not(program, programs.IMAGE))

    def event_call(self) -> str:
        """Nothing where it is missing: what needs it says so."""
        return "" if self.why_not(programs.EVENT_CALL) else self.path(programs.EVENT_CALL)

    def sanitized(self, name: str, tool: str) -> Part:
        sanitizer = machine.beside_nvcc("compute-sanitizer")
        part = self.with_image(name, "kernel_tests", "--seeds", "12", seconds=900)
        # Few exchanges: the tools slow kernels down a hundredfold.
        tooled = [sanitizer or "", "--tool", tool, "--error-exitcode", "9", *part.command]
        no_tool = "" if sanitizer else "no compute-sanitizer: it comes with the CUDA toolkit"
        return dataclasses.replace(part, command=tooled, skip=no_tool or part.skip)

    def jax_probe(self) -> Part:
        command = [sys.executable, str(_HERE / "jax_probe.py"), self.path(programs.MEMOP_CALL)]
        environment = {"XLA_FLAGS": _ALL_GRAPHS, "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2"}
        skip = self.why_not(programs.MEMOP_CALL) or why_no_jax()
        return Part("T4 T5 jax", command, 600, environment, skip)


class _Api:
    """Parts that run ranks over a real epd."""

    def __init__(self) -> None:
        self._epd = _installed("bin/epd", ".venv/bin/epd")
        self._streams = _installed(
            "gpu/stream_ranks", "bazel-bin/tests/integration/cuda/stream_ranks"
        )
        self._wheel = _installed("wheel/epd-*.whl", "bazel-bin/client/python/epd-*.whl")

    def streams(self, executor: str, processes: int, staging: str) -> Part:
        skip = "" if self._epd and self._streams else "no epd and stream_ranks: unpack a bundle"
        asked = ["--processes", str(processes), "--staging", staging, "--steps", "200"]
        command = [*self._ranks(executor), *asked, "streams", str(self._streams)]
        return Part(f"api streams {executor} {processes} {staging}", command, 500, skip=skip)

    def jax(self, executor: str, command_buffers: str) -> Part:
        command = [*self._ranks(executor), "jax", str(self._wheel)]
        flags = _ALL_GRAPHS
        if command_buffers == "off":
            flags = "--xla_gpu_enable_command_buffer="
        environment = {"XLA_FLAGS": flags, "EPD_COMMAND_BUFFERS": command_buffers}
        name = f"api jax {executor} command buffers {command_buffers}"
        return Part(name, command, 500, environment, self._why_no_jax())

    def bench(self, backend: str, executor: str, events: str) -> Part:
        """With command buffers, whose replays are what a decode step sees; `events`: event_call.so."""
        asked = ["--backend", backend, "--staging-bytes", "16GiB", "--events", events]
        command = [*self._ranks(executor), *asked, "bench", str(self._wheel)]
        environment = {"XLA_FLAGS": _ALL_GRAPHS, "EPD_COMMAND_BUFFERS": "on"}
        name = f"bench api {backend} {executor}"
        return Part(name, command, 500, environment, self._why_no_jax())

    def _ranks(self, executor: str) -> list[str]:
        folder = str(self._epd.parent) if self._epd else ""
        ranks = [sys.executable, str(_HERE / "api_ranks.py"), "--bin", folder]
        return [*ranks, "--executor", executor]

    def _why_no_jax(self) -> str:
        there = self._epd and self._wheel
        return why_no_jax() if there else "no epd and wheel: unpack a bundle"


def parts(built: programs.Programs) -> list[Part]:
    """Everything that runs on a GPU; the report has one entry for each."""
    run, api = _Programs(built), _Api()
    mps = machine.beside_nvcc("nvidia-cuda-mps-control")
    no_mps = "" if mps else "no nvidia-cuda-mps-control"
    eager = [("worker", 1), ("worker", 4), ("client", 1), ("client", 4)]
    return [
        api.streams("worker", 2, "vmm"),
        api.streams("worker", 2, "ipc"),
        run.with_image("T1 handover", "handover"),
        run.part("T2 graph replay", "graph_replay", "--replays", "1000000", seconds=600),
        run.jax_probe(),
        run.part("T5 shared memory", "shared_memory"),
        run.part("T8 poison", "poison"),
        api.streams("client", 2, "vmm"),
        api.streams("client", 2, "ipc"),
        *(api.streams(executor, processes, "auto") for executor, processes in eager),
        *(
            api.jax(executor, buffers)
            for executor in ("worker", "client")
            for buffers in ("off", "on")
        ),
        run.with_image("kernels", "kernel_tests", seconds=600),
        run.with_image("T6 bench", "bench", seconds=600),
        *(
            api.bench(backend, executor, run.event_call())
            for backend, executor in (("cuda", "worker"), ("cuda", "client"), ("nccl_ep", "worker"))
        ),
        deepep(),
        run.with_image("T3 device words", "device_words", seconds=120),
        run.part("T7 nccl ranks", "nccl_ranks"),
        run.with_image("T1 handover mps", "handover", skip=no_mps),
        run.sanitized("kernels memcheck", "memcheck"),
        run.sanitized("kernels racecheck", "racecheck"),
    ]
