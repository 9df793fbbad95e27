"""MaxText's processes: what they need installed, and how four of them are started, watched and ended."""

import contextlib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[3]
OUT = ROOT / "out" / "maxtext"
_VENV = OUT / "venv"
_MAXTEXT, _JAX = "maxtext==0.2.5", "0.11.2"
_REQUIREMENTS = "dependencies/requirements/generated_requirements/decoupled-requirements.txt"
# What the decoupled requirements leave out and the trainer imports.
_MISSING = ("ml_collections", "array_record")
_INSTALL_SECONDS, _POLL_SECONDS, _END_SECONDS = 1800, 0.2, 20


class Failed(Exception):
    """A command of the comparison did not do what it should; the text says which, and where its log lies."""


def _run(*command: str) -> None:
    ended = subprocess.run(
        command,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_INSTALL_SECONDS,
    )
    if ended.returncode:
        raise Failed(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stdout[-3000:]}")


def provide() -> pathlib.Path:
    """-> the Python of out/maxtext/venv, which holds MaxText from PyPI and this checkout's wheel.

    Raises:
        Failed: no wheel, a Python other than 3.12, an installation that fails.
    """
    wheels = sorted((ROOT / "bazel-bin" / "client" / "python").glob("*.whl"))
    if not wheels:
        raise Failed("there is no wheel; run deploy/setup first")
    if sys.version_info[:2] != (3, 12):
        raise Failed(
            f"MaxText needs Python 3.12, and deploy/setup made .venv with {sys.version.split()[0]}"
        )
    python = _VENV / "bin" / "python"
    # uv: pip takes minutes to find versions that go together.
    install = (str(_VENV / "bin" / "uv"), "pip", "install", "-q", "--python", str(python))
    if not (_VENV / "made").exists():
        shutil.rmtree(_VENV, ignore_errors=True)
        _run(sys.executable, "-m", "venv", str(_VENV))
        pip = (str(python), "-m", "pip", "--disable-pip-version-check", "-q")
        _run(*pip, "install", "uv")
        _run(*pip, "download", "--no-deps", _MAXTEXT, "-d", str(OUT))
        (package,) = OUT.glob("maxtext-*.whl")
        with zipfile.ZipFile(package) as archive:
            archive.extract(_REQUIREMENTS, OUT)
        versions = (f"jax=={_JAX}", f"jaxlib=={_JAX}")
        _run(*install, "-r", str(OUT / _REQUIREMENTS), *_MISSING, *versions)
        _run(*install, "--no-deps", str(package))
        (_VENV / "made").touch()
    _run(*install, "--no-index", "--no-deps", "--reinstall", str(wheels[-1]))
    return python


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _environment(index: int, count: int, port: int, runtime: pathlib.Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not re.match(r"EPD_|JAX_|XLA_|SLURM_|CUDA_|NNODES|NODE_RANK|PYTHONPATH", name)
    }
    kept |= {
        "DECOUPLE_GCLOUD": "TRUE",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
        "XDG_RUNTIME_DIR": str(runtime),
    }
    if count > 1:
        kept |= {"JAX_COORDINATOR_IP": "127.0.0.1", "JAX_COORDINATOR_PORT": str(port)}
        kept |= {"NNODES": str(count), "NODE_RANK": str(index)}
    return kept


def run_processes(
    count: int, command: Sequence[str], log: pathlib.Path, runtime: pathlib.Path, seconds: float
) -> None:
    """Runs ``command`` as ``count`` processes that find each other; one that fails ends all.

    Raises:
        Failed: one failed, or they did not end within ``seconds``; names its log, ``log`` with its index.
    """
    port, deadline = _free_port(), time.monotonic() + seconds
    started: list[subprocess.Popen] = []
    with contextlib.ExitStack() as stack:
        stack.callback(_end, started)
        for index in range(count):
            file = stack.enter_context(log.with_suffix(f".{index}.log").open("wb"))
            environment = _environment(index, count, port, runtime)
            started.append(
                subprocess.Popen(
                    command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
                )
            )
        while any(process.poll() is None for process in started):
            failed = [index for index, process in enumerate(started) if process.returncode]
            if failed or time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        for index, process in enumerate(started):
            if process.poll() != 0:
                path = log.with_suffix(f".{index}.log")
                why = (
                    "did not end in time"
                    if process.returncode is None
                    else f"ended with {process.returncode}"
                )
                raise Failed(f"process {index} {why}; {path} ends with:\n{_last_lines(path)}")


def _last_lines(path: pathlib.Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-6:])[-2000:]


def _end(started: Sequence[subprocess.Popen]) -> None:
    for process in started:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + _END_SECONDS
    for process in started:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_END_SECONDS)
