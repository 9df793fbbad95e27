"""ragged_all_to_all beside its emulation by all_gather over gloo and memcpy of the rows, in one run: 2048 x 1024 bfloat16 a rank.

``python tests/bench/ragged.py`` measures it alone, with an epd of its own; the benchmark does the same.
"""

import dataclasses
import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile

import numpy as np
from fleet import FleetError

from daemon import Daemon, find_program

_HERE = pathlib.Path(__file__).resolve().parent
_BINARIES = _HERE.parent.parent / "bazel-bin" / "tests" / "bench"
_ROUNDS, _ITERATIONS = 5, 20
_SECONDS = 240
_MIN_EMULATION, _MIN_MEMCPY = 8, 0.4


@dataclasses.dataclass(frozen=True)
class Shape:
    """Milliseconds of the slowest process: p50 and p99."""

    processes: int
    devices: int
    epd_ms: float
    epd_p99_ms: float
    emulation_ms: float
    memcpy_ms: float
    copies_ms: float | None  # Of one process there is nothing between processes.

    @property
    def name(self) -> str:
        return (
            f"{self.processes} processes of {self.devices}"
            if self.processes > 1
            else f"1 process of {self.devices}"
        )

    @property
    def emulation_ratio(self) -> float:
        return self.emulation_ms / self.epd_ms

    @property
    def memcpy_ratio(self) -> float:
        return self.memcpy_ms / self.epd_ms


@dataclasses.dataclass(frozen=True)
class Ragged:
    shapes: list[Shape]

    def to_json(self) -> list[dict[str, float]]:
        return [dataclasses.asdict(shape) for shape in self.shapes]

    def table(self) -> str:
        """Markdown."""
        lines = [
            "| ragged_all_to_all, 2048 x 1024 bf16 a rank | epd.jax | by all_gather | memcpy | two copies | epd:all_gather | epd:memcpy |",
            "| ------------------------------------------ | ------: | ------------: | -----: | ---------: | -------------: | ---------: |",
        ]
        for one in self.shapes:
            copies = "-" if one.copies_ms is None else f"{one.copies_ms:.2f}"
            lines.append(
                f"| {one.name} | {one.epd_ms:.2f} / {one.epd_p99_ms:.2f} | {one.emulation_ms:.2f} | {one.memcpy_ms:.2f} |"
                f" {copies} | {one.emulation_ratio:.2f} | {one.memcpy_ratio:.2f} |"
            )
        return "\n".join(lines)

    def marks(self) -> list[str]:
        """Whether the marks were reached, by the processes of one device."""
        one = self.shapes[0]
        lines = []
        for text, value, least in (
            (
                "at least 8 times as fast as its emulation by all_gather",
                one.emulation_ratio,
                _MIN_EMULATION,
            ),
            ("at least 0.4 of memcpy", one.memcpy_ratio, _MIN_MEMCPY),
        ):
            word = "reached" if value >= least else "MISSED"
            lines.append(f"{word}: ragged_all_to_all, {one.name}, {text}: {value:.2f}")
        if one.copies_ms is not None:
            lines.append(
                f"not judged: the same rows into shared memory and out of it, with nothing but barriers: {one.memcpy_ms / one.copies_ms:.2f}"
                f" of memcpy; epd.jax is {one.copies_ms / one.epd_ms:.2f} of that"
            )
        return lines


def _measure_shape(
    epd_socket: str, folder: pathlib.Path, barrier: pathlib.Path, processes: int, devices: int
) -> Shape:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "EPD_SOCKET": epd_socket,
        "EPD_AUTOSTART": "0",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    shared = folder / f"ragged-{processes}"
    barrier_file = shared.with_suffix(".barrier")
    barrier_file.write_bytes(struct.pack("3I", processes, 0, 0))
    started = []
    for index in range(processes):
        out = folder / f"ragged-{processes}-{index}"
        given = {"coordinator": f"127.0.0.1:{port}", "index": index, "processes": processes}
        given |= {"rounds": _ROUNDS, "iterations": _ITERATIONS, "out": str(out)}
        given |= {"barrier_library": str(barrier), "shared": str(shared)}
        command = [sys.executable, str(_HERE / "ragged_rank.py"), json.dumps(given)]
        started.append((subprocess.Popen(command, env=environment), out))
    try:
        statuses = [process.wait(_SECONDS) for process, _ in started]
    finally:
        for process, _ in started:
            process.kill()
    if any(statuses):
        raise FleetError(f"processes of ragged_all_to_all ended with {statuses}")
    times = [json.loads(out.read_text()) for _, out in started]
    slowest = {name: np.max([one[name] for one in times], 0) / 1e6 for name in times[0]}
    p50 = {name: float(np.median(values)) for name, values in slowest.items()}
    p99 = float(np.percentile(slowest["epd"], 99))
    return Shape(
        *(processes, devices, p50["epd"], p99, p50["emulation"], p50["memcpy"]), p50.get("copies")
    )


def measure(epd_socket: str, folder: pathlib.Path, binaries: pathlib.Path) -> Ragged:
    """Four processes of one device, then one process of four."""
    barrier = binaries / "libbench_barrier.so"
    shapes = ((4, 1), (1, 4))
    return Ragged([_measure_shape(epd_socket, folder, barrier, *shape) for shape in shapes])


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="epdb", dir="/tmp") as name:
        folder = pathlib.Path(name)
        daemon = Daemon(find_program("epd"), folder / "epd", 1 << 30)
        try:
            measured = measure(daemon.socket, folder, _BINARIES)
        finally:
            daemon.stop()
    print(measured.table(), *measured.marks(), sep="\n")


if __name__ == "__main__":
    main()
