"""Several ranks on one GPU, over a real epd: starts it and the ranks, and prints one JSON object.

    api_ranks.py --bin DIR [--ranks 4] [--processes 4] [--gpus 1] [--steps 200] [--executor worker] streams PROGRAM
    api_ranks.py --bin DIR [--ranks 4] [--steps 50] [--executor worker] jax WHEEL
    api_ranks.py --bin DIR [--divide 1] [--events LIBRARY] [--peers COMMAND] [--executor worker] [--backend cuda] bench WHEEL

``streams``: PROGRAM's ranks put their calls into streams, several in a process or one. ``jax``: a process per rank runs
api_rank.py with the package of WHEEL. ``bench``: one process on all GPUs runs api_bench.py; LIBRARY is event_call.so, COMMAND
that of machine.peers(). DIR has epd, epd-worker and epctl. All: --staging auto; --seconds 400, after which what still runs is
ended and its logs are shown; --log-says WORDS, without which in epd's log the part fails.
"""

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator

_HERE = pathlib.Path(__file__).resolve().parent
_REFERENCE = _HERE.parent / "integration"
_START_SECONDS = 30
_END_SECONDS = 10
_TAIL = 3000  # characters of a log that a failure shows


@contextlib.contextmanager
def _epd(folder: pathlib.Path, options: argparse.Namespace) -> Iterator[str]:
    """Runs an epd of its own; gives the socket's path."""
    socket = folder / "epd.sock"
    command = [str(options.bin / "epd"), f"--socket={socket}", f"--staging={options.staging}"]
    command += [f"--cuda_staging_bytes={options.staging_bytes}"]
    if nccl := os.environ.get("EPD_LIBNCCL"):
        command += [f"--nccl_library={nccl}"]
    with (folder / "epd.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not socket.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("epd does not start: " + _tail(folder / "epd.log"))
            time.sleep(0.05)
        yield str(socket)
    finally:
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _tail(log: pathlib.Path) -> str:
    return log.read_text(errors="replace")[-_TAIL:]


def _commands(options: argparse.Namespace, folder: pathlib.Path, socket: str) -> list[list[str]]:
    """A command per process."""
    if options.kind == "streams":
        command = [options.what, f"--socket={socket}", f"--ranks={options.ranks}"]
        command += [f"--processes={options.processes}", f"--steps={options.steps}"]
        command += [f"--gpus={options.gpus}"]
        return [[*command, f"--executor={options.executor}"]]
    with zipfile.ZipFile(options.what) as wheel:
        wheel.extractall(folder / "package")
    if options.kind == "bench":
        bench = [sys.executable, str(_HERE / "api_bench.py"), str(options.divide)]
        return [[*bench, options.events, options.peers]]
    rank = [sys.executable, str(_HERE / "api_rank.py")]
    return [[*rank, str(r), str(options.ranks), str(options.steps)] for r in range(options.ranks)]


def _environment(options: argparse.Namespace, folder: pathlib.Path, socket: str) -> dict[str, str]:
    path = os.pathsep.join(
        filter(None, [str(folder / "package"), str(_REFERENCE), os.environ.get("PYTHONPATH", "")])
    )
    # What ranks that share a GPU may take of it, beside the staging.
    processes = options.ranks if options.kind == "jax" else 1
    fraction = str(round(0.7 / processes, 3))
    deadlines = {"EPD_ABSENT_TIMEOUT": "120", "EPD_FORM_TIMEOUT": "180"}
    return {
        **os.environ,
        **deadlines,
        "EPD_SOCKET": socket,
        "EPD_EXECUTOR": options.executor,
        "EPD_BACKEND": options.backend,
        "PYTHONPATH": path,
        "XLA_PYTHON_CLIENT_MEM_FRACTION": fraction,
    }


def _run(
    options: argparse.Namespace, folder: pathlib.Path, socket: str, deadline: float
) -> list[dict]:
    """What each process printed. RuntimeError with the logs of those that failed."""
    environment = _environment(options, folder, socket)
    logs, processes = [], []
    for number, command in enumerate(_commands(options, folder, socket)):
        logs.append(folder / f"{number}.log")
        with logs[-1].open("wb") as log:
            processes.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
            )
    outputs, failures = [], []
    for number, process in enumerate(processes):
        try:
            output, _ = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        if process.returncode != 0:
            failures.append(
                f"process {number} ended with {process.returncode}: {output}{_tail(logs[number])}"
            )
        outputs.append(output)
    if failures:
        raise RuntimeError("\n".join([*failures, "epd: " + _tail(folder / "epd.log")]))
    if options.log_says not in (folder / "epd.log").read_text(errors="replace"):
        wanted = f"expected {options.log_says!r} in epd's log: "
        raise RuntimeError(wanted + _tail(folder / "epd.log"))
    return [json.loads(output) for output in outputs]


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="api_ranks.py")
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--log-says", default="")
    parser.add_argument("--executor", choices=("worker", "client"), default="worker")
    parser.add_argument("--divide", type=int, default=1)
    parser.add_argument("--events", default="")
    parser.add_argument("--peers", default="")
    parser.add_argument("--backend", choices=("cuda", "nccl_ep"), default="cuda")
    parser.add_argument("--staging", choices=("auto", "vmm", "ipc"), default="auto")
    parser.add_argument("--staging-bytes", default="4GiB")
    parser.add_argument("kind", choices=("streams", "jax", "bench"))
    parser.add_argument("what")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    deadline = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory(prefix="epdg") as name:
        folder = pathlib.Path(name)
        try:
            with _epd(folder, options) as socket:
                results = _run(options, folder, socket, deadline)
        except RuntimeError as error:
            print(json.dumps({"passed": False}))
            print(error, file=sys.stderr)
            return 1
    if skipped := [result["skipped"] for result in results if "skipped" in result]:
        print(json.dumps({"skipped": skipped[0]}))
        return 0
    print(json.dumps({"passed": True, "executor": options.executor, "processes": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
