"""Starts an epd and JAX processes, and collects what they found. Every wait has a deadline; only own processes end.

A *program* is a file in programs/ with functions ``check_*(world)``. Every process of a *fleet* runs all of them, one after
another, with a barrier in between; a test asks for one check and gets its outcome on every process. So one start of JAX,
the costly part, serves many tests.
"""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import false_alarms
import wait
import worker_processes

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
START_SECONDS = 20
# Deadlines that let a hang end soon; far above what a busy machine needs.
_DEADLINES = {
    "EPD_WARN_AFTER": "2",
    "EPD_ABSENT_TIMEOUT": "60",
    "EPD_UNDECIDED_TIMEOUT": "30",
    "EPD_FORM_TIMEOUT": "90",
}


def binary(name: str) -> str:
    """Path of an installed program; EPD_TEST_BIN names another folder."""
    path = pathlib.Path(os.environ.get("EPD_TEST_BIN", ROOT / ".venv" / "bin")) / name
    assert path.exists(), f"{path} is missing; run deploy/setup, or set EPD_TEST_BIN"
    return str(path)


@contextlib.contextmanager
def short_folder() -> Iterator[pathlib.Path]:
    """A folder whose path leaves room for a socket's name (107 bytes)."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="epdj", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Daemon:
    """One epd with its worker, on a private socket.

    ``inside`` is what stands in front of the commands of its node, ``address`` where others reach the node."""

    def __init__(
        self, folder: pathlib.Path, inside: tuple[str, ...] = (), address: str = "127.0.0.1"
    ):
        self.inside, self.address = inside, address
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.socket = str(folder / "epd.sock")
        self.log = folder / "epd.log"
        self.process: subprocess.Popen | None = None
        self.options: tuple[str, ...] = ()  # Of the last start.

    def start(self, *options: str) -> None:
        self.options = options
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *self.inside,
                    binary("epd"),
                    f"--socket={self.socket}",
                    f"--worker={binary('epd-worker')}",
                    *options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait.until(self._accepts, "epd accepts connections", START_SECONDS)

    def _accepts(self) -> bool:
        assert self.process.poll() is None, (
            f"epd ended with {self.process.returncode}:\n{self.log_tail()}"
        )
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as probe:
            return probe.connect_ex(self.socket) == 0

    def worker_pid(self) -> int:
        wait.until(lambda: worker_processes.of(self.process.pid), "epd has a worker", START_SECONDS)
        return worker_processes.of(self.process.pid)[0]

    def listen_address(self) -> str:
        """host:port of its gRPC, once it serves."""
        serving = lambda: re.search(r'event="serving".* listen=(\S+)', self.log.read_text())  # noqa: E731
        wait.until(serving, "epd serves", START_SECONDS)
        return serving()[1]

    def end(self) -> None:
        """Ends it however it can; for the end of a test that has failed."""
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return _end(self.process)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(START_SECONDS)

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""


def _end(process: subprocess.Popen, seconds: float = START_SECONDS) -> int:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(START_SECONDS)
        raise


@contextlib.contextmanager
def running_daemon() -> Iterator[Daemon]:
    with short_folder() as folder:
        daemon = Daemon(folder)
        daemon.start()
        try:
            yield daemon
        finally:
            daemon.stop()


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# Half of a program's time goes into compiling, which the other programs ask JAX to do with little effort.
_COMPILED_AS_USERS_DO = ("operations", "process_shapes", "several_nodes", "shardings")


# JAX promotes no rank and no dtype in silence, and takes no mesh as a context, which it deprecates (rank.py has what else it does). A
# run that passes so passes without these modes, too. The other strict modes: ``with_64_bits``, and programs/strict_modes.py.
_STRICT = {
    "JAX_NUMPY_RANK_PROMOTION": "raise",
    "JAX_NUMPY_DTYPE_PROMOTION": "strict",
    "JAX_DISALLOW_MESH_CONTEXT_MANAGER": "1",
}


@dataclass(frozen=True)
class Setup:
    """How a program is run."""

    program: str
    processes: int = 1
    devices: int | tuple[int, ...] = 1  # Per process, or of each.
    mesh: tuple[int, int] = (1, 1)  # (dp, ep), of the first devices; others stay outside.
    cores: int | None = None  # How many CPU cores all processes may use together; None: all.
    environment: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False)
    label: str = ""  # Tells setups of different environments apart.

    def devices_of(self, index: int) -> int:
        return self.devices if isinstance(self.devices, int) else self.devices[index]

    def __str__(self) -> str:
        devices = (
            f"{self.processes}x{self.devices}"
            if isinstance(self.devices, int)
            else "+".join(map(str, self.devices))
        )
        cores = "" if self.cores is None else f"-{self.cores}core"
        return f"{self.program}-{devices}-dp{self.mesh[0]}ep{self.mesh[1]}{cores}{self.label}"


def with_64_bits(setup: Setup) -> Setup:
    """The setup with ``jax_enable_x64``: one of each program's has it."""
    environment = {**setup.environment, "JAX_ENABLE_X64": "1"}
    return dataclasses.replace(setup, environment=environment, label=f"{setup.label}-x64")


_OF_A_JOB = (
    r"EPD_|XLA_|JAX_|(SLURM|PBS|LSB|FLUX|COBALT|PALS|ALPS|PMIX?|OMPI|PRTE|I_MPI|MPI|TORCHELASTIC)_"
)


def clean_environment(**extra: str) -> dict[str, str]:
    """This process's environment without what would reach into a test."""
    kept = {key: value for key, value in os.environ.items() if not re.match(_OF_A_JOB, key)}
    return {**kept, "JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{HERE}:{HERE.parent}", **extra}


def python(*arguments: str) -> list[str]:
    return [sys.executable, "-W", "ignore::DeprecationWarning", *arguments]


def run_together(
    commands: Iterable[tuple[list[str], dict[str, str]]], daemon: Daemon, seconds: float = 200
) -> list[tuple[str, str]]:
    """Runs commands, each in its environment, at a time. What each printed, and its errors with the daemon's log; all end well."""
    started = [
        subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command, environment in commands
    ]
    try:
        ended = [process.communicate(timeout=seconds) for process in started]
    finally:
        for process in started:
            process.kill()
    said = [(out, errors + daemon.log_tail()) for out, errors in ended]
    for process, (_, errors) in zip(started, said, strict=True):
        assert process.returncode == 0, errors
    return said


def epds_of(folder: pathlib.Path) -> list[int]:
    """Processes whose environment names the folder and that run epd."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if os.path.basename(
            words[0]
        ) == b"epd" and f"XDG_RUNTIME_DIR={folder}".encode() in environment.split(b"\0"):
            found.append(int(entry.name))
    return found


def checks_of(program: str) -> list[str]:
    """Names of a program's checks, in order."""
    return re.findall(
        r"^def (check_\w+)\(", (HERE / "programs" / f"{program}.py").read_text(), re.MULTILINE
    )


class Fleet:
    """The processes of one setup and what they reported; with several daemons, blocks of them on each one's node."""

    def __init__(self, setup: Setup, folder: pathlib.Path, *daemons: Daemon | None):
        self._setup, self._folder, self._daemons = setup, folder, daemons
        self._processes: list[subprocess.Popen] = []

    def run(self, seconds: float = 280) -> "Report":
        port = free_port()
        for index in range(self._setup.processes):
            self._spawn(index, port)
        deadline = time.monotonic() + seconds
        statuses = []
        for process in self._processes:
            try:
                statuses.append(process.wait(max(0.1, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(START_SECONDS)
                statuses.append("killed at the deadline")
        return self._report(statuses)

    def _spawn(self, index: int, port: int) -> None:
        setup = self._setup
        environment = clean_environment(**_DEADLINES, **_STRICT)
        daemon = self._daemons[index * len(self._daemons) // setup.processes]
        if daemon is not None:
            environment |= {
                "EPD_SOCKET": daemon.socket,
                "EPD_TEST_EPD_PID": str(daemon.process.pid),
            }
        if setup.program not in _COMPILED_AS_USERS_DO:
            environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
        environment |= {
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={setup.devices_of(index)}",
            **setup.environment,
        }
        arguments = {
            "index": index,
            "coordinator": f"{self._daemons[0].address if self._daemons[0] else '127.0.0.1'}:{port}",
            "folder": str(self._folder),
            "program": setup.program,
        }
        arguments |= {"processes": setup.processes, "mesh": setup.mesh}
        with (self._folder / f"{index}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [
                        *(daemon.inside if daemon else ()),
                        *self._on_cores(),
                        *python(str(HERE / "rank.py"), json.dumps(arguments)),
                    ],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def _on_cores(self) -> list[str]:
        if self._setup.cores is None:
            return []
        allowed = sorted(os.sched_getaffinity(0))[: self._setup.cores]
        return ["taskset", "--cpu-list", ",".join(map(str, allowed))]

    def _report(self, statuses: list) -> "Report":
        outcomes, logs = [], []
        for index in range(self._setup.processes):
            path = self._folder / f"{index}.json"
            outcomes.append(json.loads(path.read_text()) if path.exists() else {})
            logs.append((self._folder / f"{index}.log").read_text(errors="replace")[-6000:])
        tails = [daemon.log_tail() for daemon in self._daemons if daemon]
        return Report(statuses, outcomes, logs, "\n".join(tails))


@dataclass(frozen=True)
class Report:
    """Per process: exit status, outcome of each check ("ok" or a traceback), and the log's end."""

    statuses: list
    outcomes: list[dict[str, str]]
    logs: list[str]
    daemon_log: str
    compared: false_alarms.Compared = false_alarms.Compared()
    failure: str = ""  # Of the daemon or the fleet as a whole; then every check fails with it.

    def expect(self, check: str) -> None:
        """AssertionError with everything known unless the check was fine on every process."""
        assert not self.failure, self.failure
        wrong = {
            i: o.get(check, "it did not run")
            for i, o in enumerate(self.outcomes)
            if o.get(check) != "ok"
        }
        assert not wrong, "\n".join(
            [f"process {i}: {text}" for i, text in wrong.items()]
            + [f"log of process {i} (status {self.statuses[i]}):\n{self.logs[i]}" for i in wrong]
            + [f"log of epd:\n{self.daemon_log}"]
        )

    def expect_clean_exit(self) -> None:
        assert not self.failure, self.failure
        assert all(status == 0 for status in self.statuses), (self.statuses, self.logs)


@functools.cache
def report_of(setup: Setup) -> Report:
    """Runs the setup once per test session, with an epd of its own. A failure is kept, not repeated."""
    try:
        with running_daemon() as daemon:
            report = Fleet(setup, daemon.folder, daemon).run()
            compared = false_alarms.compared(daemon.socket)
            status = daemon.stop()
            failure = f"epd ended with {status}:\n{daemon.log_tail()}" if status != 0 else ""
            return dataclasses.replace(report, compared=compared, failure=failure)
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        return Report([], [], [], "", failure=f"{type(error).__name__}: {error}")
