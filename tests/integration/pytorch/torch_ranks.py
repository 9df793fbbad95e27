"""Ranks of epd.torch, each a process of Debian's Python with python3-torch, under one epd."""

import contextlib
import json
import os
import pathlib
import subprocess
import time

import epd_package
import harness

HERE = pathlib.Path(__file__).resolve().parent
PYPI_TORCH = os.environ.get(
    "EPD_TEST_TORCH"
)  # tests/long/torch: a Python with PyPI's torch, which compiles.
PYTHON = PYPI_TORCH or "/usr/bin/python3"  # Of python3-torch.


class Ranks:
    """Processes of one program under one epd."""

    def __init__(self, folder: pathlib.Path, socket: str):
        self.folder, self.socket = folder, socket
        self.path = f"{epd_package.alone_in(folder / 'packages')}:{HERE}"

    def environment(self, **extra: str) -> dict[str, str]:
        return harness.clean_environment(**harness._DEADLINES) | {
            "EPD_SOCKET": self.socket,
            "EPD_JOB": "torch",
            "PYTHONPATH": self.path,
            "PYTHONWARNINGS": "ignore",
            **extra,
        }

    def start(self, program: str, rank: int, ranks: int, **extra: str) -> subprocess.Popen:
        arguments = {"rank": rank, "ranks": ranks, "folder": str(self.folder)}
        with self.log(rank).open("ab") as log:
            return subprocess.Popen(
                [PYTHON, str(HERE / "programs" / f"{program}.py"), json.dumps(arguments)],
                env=self.environment(**extra),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def log(self, rank: int) -> pathlib.Path:
        return self.folder / f"{rank}.log"

    def logs(self) -> str:
        return "\n".join(
            f"{path.name}:\n{path.read_text(errors='replace')[-4000:]}"
            for path in sorted(self.folder.glob("[0-9]*.log"))
        )


def wait_all(processes: list[subprocess.Popen], seconds: float = 240) -> list[int | str]:
    deadline = time.monotonic() + seconds
    statuses: list[int | str] = []
    for process in processes:
        try:
            statuses.append(process.wait(max(0.1, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            statuses.append("killed at the deadline")
    return statuses


@contextlib.contextmanager
def daemon_and_ranks():
    with harness.running_daemon() as daemon:
        yield daemon, Ranks(daemon.folder, daemon.socket)
