"""What of CUDA is on this machine: GPUs and how they reach each other, nvcc, cuda.h, NCCL, NCCL EP, compute-sanitizer, MPS."""

import ctypes
import datetime
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76
_MINIMUM_CAPABILITY = (8, 0)
_ASK_SECONDS, _PEERS_SECONDS = 30, 60
_TAIL = 300  # characters of what a program said that a record keeps


def why_no_gpu() -> str | None:
    """None if there is a GPU that the kernels run on, else what is missing."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no driver: {error}"
    status = driver.cuInit(0)
    if status != 0:
        return f"cuInit answers {status}"
    capability = compute_capability()
    if capability is None:
        return "the driver shows no device"
    if capability < _MINIMUM_CAPABILITY:
        return f"compute capability {capability[0]}.{capability[1]} is older than 8.0"
    return None


def compute_capability() -> tuple[int, int] | None:
    """Of the first GPU; None where there is none."""
    if num_gpus() == 0:
        return None
    driver = ctypes.CDLL("libcuda.so.1")
    major, minor = ctypes.c_int(0), ctypes.c_int(0)
    driver.cuDeviceGetAttribute(ctypes.byref(major), _CAPABILITY_MAJOR, 0)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), _CAPABILITY_MINOR, 0)
    return major.value, minor.value


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
    """What this Python's wheels brought."""
    folders = [pathlib.Path(entry) for entry in sys.path if entry]
    return [path for folder in folders for path in sorted(folder.glob(pattern))]


def cuda_header() -> pathlib.Path | None:
    """cuda.h of the toolkit, or of a wheel."""
    compiler = nvcc()
    toolkits = [pathlib.Path(compiler).resolve().parents[1]] if compiler else []
    toolkits += [pathlib.Path("/usr/local/cuda"), pathlib.Path("/usr")]
    beside = [toolkit / "include" / "cuda.h" for toolkit in toolkits]
    return next(
        (at for at in [*beside, *_in_site_packages("nvidia/*/include/cuda.h")] if at.exists()),
        None,
    )


def libnccl() -> str | None:
    """$EPD_LIBNCCL, or a wheel's libnccl.so.2, which the loader does not find; None: leave it to the loader."""
    wheels = _in_site_packages("nvidia/*/lib/libnccl.so.2")
    return os.environ.get("EPD_LIBNCCL") or next((str(path) for path in wheels), None)


def libnccl_ep() -> str | None:
    """$EPD_LIBNCCL_EP, or a wheel's libnccl_ep.so for the newest CUDA; None: leave it to epd."""
    wheels = _in_site_packages("nccl/ep/lib/cu1[0-9]/libnccl_ep.so")
    return os.environ.get("EPD_LIBNCCL_EP") or next((str(path) for path in reversed(wheels)), None)


def beside_nvcc(name: str) -> str | None:
    """A tool of the toolkit, on PATH or beside nvcc."""
    compiler = nvcc()
    beside = str(pathlib.Path(compiler).resolve().parent / name) if compiler else None
    return _first([shutil.which(name), beside])


def _ask(command: list[str]) -> str:
    try:
        ended = subprocess.run(
            command,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_ASK_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
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


def peers(command: str) -> dict:
    """How fast each GPU reads each other one's memory, for a benchmark's record: what this command says (bench.cc); {} where
    there is no other one."""
    if num_gpus() < 2:
        return {}
    if not command:
        return {"no_peers": "no bench"}
    try:
        ended = subprocess.run(
            shlex.split(command),
            check=False,
            text=True,
            capture_output=True,
            timeout=_PEERS_SECONDS,
        )
        return {"peers": json.loads(ended.stdout)["peers"]}
    except subprocess.TimeoutExpired:
        return {"no_peers": f"not measured within {_PEERS_SECONDS} s"}
    except OSError as error:
        return {"no_peers": str(error)}
    except (ValueError, KeyError):
        return {"no_peers": (ended.stdout + ended.stderr)[-_TAIL:]}


def describe(root: pathlib.Path) -> dict:
    """The machine and what is tested, for the report."""
    fields = "name,driver_version,memory.total,compute_cap,mig.mode.current"
    return {
        "gpus": _ask(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]).splitlines(),
        "nvcc": _ask([nvcc() or "nvcc", "--version"]).splitlines()[-1:],
        "commit": _commit(root),
    }
