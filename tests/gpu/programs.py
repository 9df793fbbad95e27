"""The C++ programs of tests/gpu and the kernels' image: a bundle's, or compiled here with a C++ compiler alone."""

import concurrent.futures
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys

import machine

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_BUNDLED = _ROOT / "gpu"  # What deploy/bundle compiled.
_TAIL = 600  # characters of what a compiler said

IMAGE = "kernels.fatbin"
MEMOP_CALL, EVENT_CALL = "memop_call.so", "event_call.so"
_XLA_CALLS = (MEMOP_CALL, EVENT_CALL)
PROGRAMS = (
    "kernel_tests bench handover graph_replay device_words shared_memory poison nccl_ranks".split()
)
_SHARED = """tests/gpu/driver tests/gpu/executor tests/fakes/cuda/host_run
    kernels/kernel_error kernels/simd kernels/routing_spec kernels/routing_plan kernels/routing_plan_view
    kernels/cuda/launch""".split()
_SOURCES = {program: [f"tests/gpu/{program}", *_SHARED] for program in PROGRAMS} | {
    "bench": ["tests/gpu/bench", "tests/gpu/peer_bandwidth", *_SHARED],
    MEMOP_CALL: ["tests/gpu/memop_call", "tests/gpu/driver"],
    EVENT_CALL: ["tests/gpu/event_call", "tests/gpu/event_marks", "tests/gpu/driver"],
}


@dataclasses.dataclass(frozen=True)
class Programs:
    """Where they are, and of those that are not: why."""

    folder: pathlib.Path
    missing: dict[str, str]


def _run(command: list[str]) -> str:
    """What is wrong, or nothing."""
    try:
        ended = subprocess.run(command, check=False, text=True, capture_output=True)
    except OSError as error:
        return str(error)
    return "" if ended.returncode == 0 else (ended.stdout + ended.stderr)[:_TAIL]


def _image_options() -> list[str]:
    """Those of the build that ships, without what only its nvcc has to bear: here it is whichever there is, for this GPU, or
    for any from 8.0 on, which the driver then compiles once more."""
    asked = (_ROOT / "kernels" / "cuda" / "nvcc.options").read_text().split("\n")
    kept = [line for line in asked if not line.startswith(("-gencode", "-Werror"))]
    capability = machine.compute_capability()
    arch = "compute_80" if capability is None else f"sm_{capability[0]}{capability[1]}"
    return [*" ".join(kept).split(), f"-arch={arch}"]


def _newest_header() -> float:
    folders = (_ROOT / "kernels", _ROOT / "proto", _ROOT / "tests")
    return max(path.stat().st_mtime for folder in folders for path in folder.rglob("*.h"))


def _xla_headers() -> str:
    code = "import jax.ffi; print(jax.ffi.include_dir())"
    asked = subprocess.run(
        [sys.executable, "-c", code], check=False, text=True, capture_output=True
    )
    return asked.stdout.strip()


class _Build:
    """Compiles into a folder what is older there than its source or any header."""

    def __init__(self, out: pathlib.Path) -> None:
        self._out = out
        self._headers = _newest_header()
        cuda_h, xla = machine.cuda_header(), _xla_headers()
        flags = f"-O2 {os.environ.get('CXXFLAGS', '')} -std=c++20 -fPIC -I{_ROOT}".split()
        self._compile = [machine.cxx(), *flags]
        self._compile += ["-isystem", str(cuda_h.parent)] if cuda_h else []
        self._compile += ["-isystem", xla] if xla else []
        self._no_cuda = "" if cuda_h else "no cuda.h: it comes with CUDA's toolkit or its runtime"
        self._no_xla = "" if xla else f"{sys.executable} has no JAX, whose headers it needs"

    def object_of(self, source: str) -> str:
        """Compiles one source; what is wrong, or nothing."""
        made, path = self._object(source), _ROOT / f"{source}.cc"
        if not path.exists():
            return f"there is no {source}.cc"
        newest = max(self._headers, path.stat().st_mtime)
        if made.exists() and made.stat().st_mtime >= newest:
            return ""
        made.parent.mkdir(parents=True, exist_ok=True)
        return _run([*self._compile, "-c", "-o", str(made), str(path)])

    def link(self, name: str, wrong: dict[str, str]) -> str:
        """Links a program whose objects `wrong` speaks of; what is wrong, or nothing."""
        if reason := self._no_cuda or (self._no_xla if name in _XLA_CALLS else ""):
            return reason
        sources = _SOURCES[name]
        if reason := next((wrong[source] for source in sources if wrong[source]), ""):
            return reason
        shared = ["-shared"] if name in _XLA_CALLS else []
        objects = [str(self._object(source)) for source in sources]
        made = str(self._out / name)
        return _run([machine.cxx(), *shared, "-o", made, *objects, "-ldl", "-lpthread"])

    def image(self) -> str:
        """The kernels by this machine's nvcc, else as Bazel left them; what is wrong, or nothing."""
        made, compiler = self._out / IMAGE, machine.nvcc()
        reason = "no nvcc: set NVCC or CUDA_HOME, or put it on PATH"
        if compiler:
            command = [compiler, *_image_options(), f"-I{_ROOT}", "-fatbin", "-o", str(made)]
            reason = _run([*command, str(_ROOT / "kernels" / "cuda" / "kernels.cu")])
        built = _ROOT / "bazel-bin" / "kernels" / "cuda" / IMAGE
        if not reason or not built.exists():
            return reason
        shutil.copyfile(built, made)
        return ""

    def _object(self, source: str) -> pathlib.Path:
        return self._out / f"{source}.o"


def provide(out: pathlib.Path) -> Programs:
    """What the bundle brought; in a clone, what compiles: the rest is missing with its reason, and nothing stops."""
    if _BUNDLED.exists():
        names = [*PROGRAMS, *_XLA_CALLS, IMAGE]
        absent = [name for name in names if not (_BUNDLED / name).exists()]
        return Programs(_BUNDLED, dict.fromkeys(absent, "the bundle has none"))
    out.mkdir(parents=True, exist_ok=True)
    build = _Build(out)
    sources = sorted({source for needed in _SOURCES.values() for source in needed})
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        image = pool.submit(build.image)
        wrong = dict(zip(sources, pool.map(build.object_of, sources), strict=True))
        names = list(_SOURCES)
        linked = pool.map(lambda name: build.link(name, wrong), names)
        reasons = dict(zip(names, linked, strict=True)) | {IMAGE: image.result()}
    return Programs(out, {name: reason for name, reason in reasons.items() if reason})
