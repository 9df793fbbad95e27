"""One rank of a contender in Python: answers the driver's commands (see fleet.py). Imports nothing but Python's own."""

import argparse
import ctypes
import os
import socket
import time
from collections.abc import Callable
from typing import Any


class Rank:
    """Subclasses know the framework. An operation is a function without arguments; its result is held until the next one."""

    def __init__(self, arguments: argparse.Namespace):
        self.rank = arguments.rank
        self._operations: dict[str, Callable[[], Any]] = {}
        self._results: dict[str, Any] = {}
        self._barrier = open_barrier(arguments.barrier_library, f"{arguments.socket}.barrier")

    def load(self, folder: str, numbers: list[int]) -> dict[str, Callable[[], Any]]:
        """The operations on the problem in the folder. ``numbers``: ranks, tokens, hidden, top_k, experts, capacity."""
        raise NotImplementedError

    def await_result(self, result: Any) -> None:
        """Returns once the result is there."""

    def dump(self, result: Any, path: str) -> None:
        """Writes this rank's rows as they lie in memory."""
        raise NotImplementedError

    def unload(self) -> None:
        """Gives the problem up."""

    def versions(self) -> dict[str, str]:
        raise NotImplementedError

    def answer(self, line: str) -> str:
        match line.split():
            case ["load", folder, *numbers]:
                self._operations = self.load(folder, list(map(int, numbers)))
                return "ok"
            case ["run", operation, iterations]:
                return "ok " + " ".join(map(str, self._run(operation, int(iterations))))
            case ["dump", operation, path]:
                self.dump(self._results[operation], f"{path}.{self.rank}")
                return "ok"
            case ["unload"]:
                self._operations, self._results = {}, {}
                self.unload()
                return "ok"
            case ["versions"]:
                return "ok " + " ".join(f"{key}={value}" for key, value in self.versions().items())
        return f"error unknown command '{line}'"

    def _run(self, operation: str, iterations: int) -> list[int]:
        function = self._operations[operation]
        times = []
        for _ in range(iterations):
            self._results[operation] = None  # So that its memory can serve the next one.
            self._barrier()
            begin = time.perf_counter_ns()
            result = function()
            self.await_result(result)
            times.append(time.perf_counter_ns() - begin)
            self._results[operation] = result
        return times


def open_barrier(library: str, path: str) -> Callable[[], None]:
    """The barrier of all contenders (barrier.h). OSError: the file cannot be mapped."""
    barrier = ctypes.CDLL(library, use_errno=True)
    barrier.bench_barrier_open.argtypes = [ctypes.c_char_p]
    barrier.bench_barrier_open.restype = ctypes.c_void_p
    barrier.bench_barrier_wait.argtypes = [ctypes.c_void_p]
    barrier.bench_barrier_wait.restype = None
    opened = barrier.bench_barrier_open(path.encode())
    if not opened:
        raise OSError(ctypes.get_errno(), "the barrier cannot be mapped", path)
    return lambda: barrier.bench_barrier_wait(opened)


def serve(make_rank: Callable[[argparse.Namespace], Rank]) -> None:
    """Connects to the driver and answers until it hangs up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--barrier-library", required=True)
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--num-ranks", type=int, required=True)
    arguments = parser.parse_args()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as driver:
        driver.connect(arguments.socket)
        rank = make_rank(arguments)
        lines = driver.makefile("rw")
        print(f"rank {arguments.rank} {os.getpid()}", file=lines, flush=True)
        for line in lines:
            try:
                reply = rank.answer(line.strip())
            except Exception as error:  # noqa: BLE001 - every failure is the driver's to report.
                reply = f"error {type(error).__name__}: {error}".replace("\n", " | ")
            print(reply, file=lines, flush=True)
