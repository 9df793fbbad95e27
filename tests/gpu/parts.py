"""The parts of tests/gpu/run, the most telling first, and why one cannot run here."""

import dataclasses
import functools
import os
import pathlib
import shlex
import subprocess
import sys

import machine
import programs

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_HERE = _ROOT / "tests" / "gpu"
# XLA makes a command buffer of one call too.
_ALL_GRAPHS = "--xla_gpu_graph_min_graph_size=1"
# Of what is right or wrong at once, and of what is measured: a part that hangs leaves most of a visit to the others.
_RIGHT_SECONDS, _BENCH_SECONDS, _SANITIZER_SECONDS = 120, 240, 300
# How rows go between GPUs, as epctl groups says (LINK): what epd is told in its environment, and what its log says then.
_LINKS = {
    "peer_memory": ({}, "rows go directly between"),
    "nccl": ({"EPD_CUDA_PEER_ACCESS": "no"}, "rows go by NCCL between"),
}
_ASK_SECONDS = 60  # for what a Python has
_END_SECONDS = 20  # of a part, in which api_ranks.py ends what it started and says what went wrong


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
            timeout=_ASK_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"{sys.executable}: JAX does not find its devices within {_ASK_SECONDS} s"
    return "" if asked.returncode == 0 else f"{sys.executable} has no JAX that sees a GPU"


# One of PyTorch's and JAX's wheels with CUDA often shuts the other out.
_TORCH_PYTHON = os.environ.get("EPD_TORCH_PYTHON", sys.executable)


def deepep(divide: int, peers: str) -> Part:
    """Says itself what of DeepEP is not there; `peers`: as machine.peers() takes it."""
    command = [_TORCH_PYTHON, str(_HERE / "deepep_bench.py"), str(divide), peers]
    return Part("bench deepep", command, _BENCH_SECONDS, skip=_why_no_numpy(_TORCH_PYTHON))


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

    def part(self, name: str, program: str, *arguments: str, skip: str = "") -> Part:
        command = [self.path(program), *arguments]
        return Part(name, command, _RIGHT_SECONDS, skip=skip or self.why_not(program))

    def with_image(
        self,
        name: str,
        program: str,
        *arguments: str,
        seconds: int = _RIGHT_SECONDS,
        skip: str = "",
    ) -> Part:
        command = [self.path(program), "--image", self.path(programs.IMAGE), *arguments]
        return Part(name, command, seconds, skip=skip or self.why_not(program, programs.IMAGE))

    def event_call(self) -> str:
        """Nothing where it is missing: what needs it says so."""
        return "" if self.why_not(programs.EVENT_CALL) else self.path(programs.EVENT_CALL)

    def peers(self) -> str:
        """How fast GPUs read each other's memory, as machine.peers() asks; nothing where it cannot."""
        part = self.with_image("peers", "bench", "--peers")
        return "" if part.skip else shlex.join(part.command)

    def sanitized(self, name: str, tool: str) -> Part:
        sanitizer = machine.beside_nvcc("compute-sanitizer")
        part = self.with_image(name, "kernel_tests", "--seeds", "12", seconds=_SANITIZER_SECONDS)
        # Few exchanges: the tools slow kernels down a hundredfold.
        tooled = [sanitizer or "", "--tool", tool, "--error-exitcode", "9", *part.command]
        no_tool = "" if sanitizer else "no compute-sanitizer: it comes with the CUDA toolkit"
        return dataclasses.replace(part, command=tooled, skip=no_tool or part.skip)

    def jax_probe(self) -> Part:
        command = [sys.executable, str(_HERE / "jax_probe.py"), self.path(programs.MEMOP_CALL)]
        environment = {"XLA_FLAGS": _ALL_GRAPHS, "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2"}
        skip = self.why_not(programs.MEMOP_CALL) or why_no_jax()
        return Part("T4 T5 jax", command, _RIGHT_SECONDS, environment, skip)


class _Api:
    """Parts that run ranks over a real epd."""

    def __init__(self, run: _Programs, divide: int) -> None:
        self._measures = ["--divide", str(divide)]
        self._measures += ["--events", run.event_call(), "--peers", run.peers()]
        self._epd = _installed("bin/epd", ".venv/bin/epd")
        self._streams = _installed(
            "gpu/stream_ranks", "bazel-bin/tests/integration/cuda/stream_ranks"
        )
        self._wheel = _installed("wheel/epd-*.whl", "bazel-bin/client/python/epd-*.whl")

    def streams(self, executor: str, processes: int, staging: str) -> Part:
        command = [*self._ranks(executor, _RIGHT_SECONDS), "--processes", str(processes)]
        command += ["--staging", staging, "--steps", "200", "streams", str(self._streams)]
        name = f"api streams {executor} {processes} {staging}"
        return Part(name, command, _RIGHT_SECONDS, skip=self._why_no_streams())

    def streams_of_gpus(self, gpus: int, link: str) -> Part:
        """A rank on each GPU, in a process of its own; `link`: how their rows go."""
        environment, said = _LINKS[link]
        command = [*self._ranks("worker", _RIGHT_SECONDS), "--ranks", str(gpus)]
        command += ["--processes", str(gpus), "--gpus", str(gpus), "--log-says", said]
        command += ["--steps", "200", "streams", str(self._streams)]
        name = f"api streams worker {gpus} gpus {link}"
        return Part(name, command, _RIGHT_SECONDS, environment, self._why_no_streams())

    def jax(self, executor: str, command_buffers: str) -> Part:
        command = [*self._ranks(executor, _RIGHT_SECONDS), "jax", str(self._wheel)]
        flags = _ALL_GRAPHS
        if command_buffers == "off":
            flags = "--xla_gpu_enable_command_buffer="
        environment = {"XLA_FLAGS": flags, "EPD_COMMAND_BUFFERS": command_buffers}
        name = f"api jax {executor} command buffers {command_buffers}"
        return Part(name, command, _RIGHT_SECONDS, environment, self._why_no_jax())

    def bench(self, backend: str, executor: str, link: str = "") -> Part:
        """With command buffers, whose replays are what a decode step sees; `link`: as in streams_of_gpus."""
        told, said = _LINKS.get(link, ({}, ""))
        command = [*self._ranks(executor, _BENCH_SECONDS), "--backend", backend]
        command += ["--staging-bytes", "16GiB", "--log-says", said, *self._measures]
        command += ["bench", str(self._wheel)]
        environment = {"XLA_FLAGS": _ALL_GRAPHS, "EPD_COMMAND_BUFFERS": "on", **told}
        name = f"bench api {backend} {executor} {link}".rstrip()
        return Part(name, command, _BENCH_SECONDS, environment, self._why_no_jax())

    def _ranks(self, executor: str, seconds: int) -> list[str]:
        folder = str(self._epd.parent) if self._epd else ""
        ranks = [sys.executable, str(_HERE / "api_ranks.py"), "--bin", folder]
        return [*ranks, "--executor", executor, "--seconds", str(seconds - _END_SECONDS)]

    def _why_no_streams(self) -> str:
        return "" if self._epd and self._streams else "no epd and stream_ranks: unpack a bundle"

    def _why_no_jax(self) -> str:
        there = self._epd and self._wheel
        return why_no_jax() if there else "no epd and wheel: unpack a bundle"


def parts(built: programs.Programs, divide: int = 1) -> list[Part]:
    """Everything that runs on a GPU, in order of worth; the report has one entry for each. `divide`: sizes of benchmarks, where
    they are only tried."""
    run = _Programs(built)
    api = _Api(run, divide)
    smaller = ("--divide", str(divide), "--times", "2") if divide > 1 else ()
    mps = machine.beside_nvcc("nvidia-cuda-mps-control")
    no_mps = "" if mps else "no nvidia-cuda-mps-control"
    eager = [("worker", 1), ("worker", 4), ("client", 1), ("client", 4)]
    gpus = machine.num_gpus()
    links = tuple(_LINKS) if gpus > 1 else ()
    one_gpu = "" if gpus > 1 else "NCCL refuses two ranks on one GPU, and there is no second one"
    return [
        api.streams("worker", 2, "vmm"),
        api.streams("worker", 2, "ipc"),
        run.with_image("T1 handover", "handover"),
        run.part("T2 graph replay", "graph_replay", "--replays", "1000000", "--seconds", "60"),
        run.jax_probe(),
        run.part("T5 shared memory", "shared_memory"),
        run.part("T8 poison", "poison"),
        api.streams("client", 2, "vmm"),
        api.streams("client", 2, "ipc"),
        *(api.streams(executor, processes, "auto") for executor, processes in eager),
        *(api.streams_of_gpus(gpus, link) for link in links),
        *(
            api.jax(executor, buffers)
            for executor in ("worker", "client")
            for buffers in ("off", "on")
        ),
        run.with_image("kernels", "kernel_tests"),
        *(api.bench("cuda", "worker", link) for link in links or ("",)),
        api.bench("cuda", "client"),
        api.bench("nccl_ep", "worker"),
        deepep(divide, run.peers()),
        run.with_image("T3 device words", "device_words"),
        run.with_image("T6 bench", "bench", *smaller, seconds=_BENCH_SECONDS),
        run.part("T7 nccl ranks", "nccl_ranks", skip=one_gpu),
        run.with_image("T1 handover mps", "handover", skip=no_mps),
        run.sanitized("kernels memcheck", "memcheck"),
        run.sanitized("kernels racecheck", "racecheck"),
    ]
