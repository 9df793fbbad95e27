"""What of CUDA is on this machine: GPU, nvcc, cuda.h, NCCL, compute-sanitizer, MPS."""

import ctypes
import datetime
import os
import pathlib
import shutil
import subprocess
import sys

_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76
_MINIMUM_CAPABILITY = (8, 0)


def why_no_gpu() -> str | None:
    """None if there is a GPU that the kernels run on, else what is missing."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no driver: {error}"
    status = driver.cuInit(0)
    if status != 0:
        return f"cuInit answers {status}"
    count = ctypes.c_int(0)
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "the driver shows no device"
    capability = []
    for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
        value = ctypes.c_int(0)
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0)
        capability.append(value.value)
    if tuple(capability) < _MINIMUM_CAPABILITY:
        return f"compute capability {capability[0]}.{capability[1]} is older than 8.0"
    return None


def num_gpus() -> int:
    """0 where there is no driver."""
    count = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    asked = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return 0 if asked else count.value


def _first(candidates: list[str | None]) -> str | None:
    return next((path for path in candidates if path and os.access(path, os.X_OK)), None)


def nvcc() -> str | None:
    """The nvcc to compile with: $NVCC, $CUDA_HOME's, the one on PATH, /usr/local/cuda's."""
    home = os.environ.get("CUDA_HOME")
    return _first(
        [
            shutil.which(os.environ.get("NVCC", "")),
            f"{home}/bin/nvcc" if home else None,
            shutil.which("nvcc"),
            "/usr/local/cuda/bin/nvcc",
        ]
    )


def cxx() -> str:
    """The C++ compiler: $CXX, else the first that there is."""
    found = _first([shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++")])
    return found or "g++"


def _in_site_packages(pattern: str) -> list[pathlib.Path]:
    """What this Python's wheels of NVIDIA brought."""
    folders = [pathlib.Path(entry) / "nvidia" for entry in sys.path if entry]
    return [path for folder in folders for path in sorted(folder.glob(pattern))]


def cuda_header() -> pathlib.Path | None:
    """cuda.h of the toolkit, or of a wheel."""
    compiler = nvcc()
    toolkits = [pathlib.Path(compiler).resolve().parents[1]] if compiler else []
    toolkits += [pathlib.Path("/usr/local/cuda"), pathlib.Path("/usr")]
    beside = [toolkit / "include" / "cuda.h" for toolkit in toolkits]
    return next(
        (at for at in [*beside, *_in_site_packages("*/include/cuda.h")] if at.exists()), None
    )


def libnccl() -> str | None:
    """$EPD_LIBNCCL, or a wheel's libnccl.so.2, which the loader does not find; None: leave it to the loader."""
    wheels = _in_site_packages("*/lib/libnccl.so.2")
    return os.environ.get("EPD_LIBNCCL") or next((str(path) for path in wheels), None)


def beside_nvcc(name: str) -> str | None:
    """A tool of the toolkit, on PATH or beside nvcc."""
    compiler = nvcc()
    beside = str(pathlib.Path(compiler).resolve().parent / name) if compiler else None
    return _first([shutil.which(name), beside])


def _ask(command: list[str]) -> str:
    try:
        ended = subprocess.run(
            command, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except OSError as error:
        return str(error)
    return ended.stdout.strip()


def _commit(root: pathlib.Path) -> str:
    """Of the bundle, or of the checkout."""
    bundled = root / "COMMIT"
    if bundled.exists():
        return bundled.read_text().strip()
    return _ask(["git", "-C", str(root), "rev-parse", "HEAD"])


def provenance() -> dict[str, str]:
    """What is measured, and when, for a benchmark's record."""
    now = datetime.datetime.now(datetime.UTC)
    root = pathlib.Path(__file__).resolve().parents[2]
    return {"commit": _commit(root), "at": now.isoformat(timespec="seconds")}


def describe(root: pathlib.Path) -> dict:
    """The machine and what is tested, for the report."""
    fields = "name,driver_version,memory.total,compute_cap,mig.mode.current"
    return {
        "gpus": _ask(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]).splitlines(),
        "nvcc": _ask([nvcc() or "nvcc", "--version"]).splitlines()[-1:],
        "commit": _commit(root),
    }
