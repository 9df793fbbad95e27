"""One rank of a contender in JAX: answers the driver's commands (see fleet.py).

A contender gives `load(problem, rank, mesh)`, which returns {operation: function without arguments}, each function
returning the global array whose local shard is the result; and `unload()`.
"""

import argparse
import ctypes
import pathlib
import socket
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import problem as problems
from jax.sharding import NamedSharding, PartitionSpec

Operations = dict[str, Callable[[], jax.Array]]


class Rank:
    def __init__(self, arguments: argparse.Namespace, contender):
        jax.config.update("jax_platforms", "cpu")
        jax.distributed.initialize(arguments.coordinator, arguments.num_ranks, arguments.rank)
        self._rank = arguments.rank
        self._contender = contender
        self._mesh = jax.make_mesh((arguments.num_ranks,), ("ep",))
        self._operations: Operations = {}
        self._results: dict[str, jax.Array | None] = {}
        self._barrier = open_barrier(arguments.barrier_library, f"{arguments.socket}.barrier")

    def answer(self, line: str) -> str:
        match line.split():
            case ["load", folder, *numbers]:
                num_ranks, tokens, hidden, top_k, *_ = map(int, numbers)
                sizes = problems.Sizes(num_ranks, tokens, hidden, top_k)
                problem = problems.Problem(pathlib.Path(folder), sizes)
                self._operations = self._contender.load(problem, self._rank, self._mesh)
                return "ok"
            case ["run", operation, iterations]:
                return "ok " + " ".join(map(str, self._run(operation, int(iterations))))
            case ["dump", operation, path]:
                shard = self._results[operation].addressable_shards[0].data
                np.asarray(shard).view(np.uint16).tofile(f"{path}.{self._rank}")
                return "ok"
            case ["unload"]:
                self._operations, self._results = {}, {}
                self._contender.unload()
                return "ok"
            case ["versions"]:
                loaded = {"jax": jax.__version__, **self._contender.versions()}
                return "ok " + " ".join(f"{key}={value}" for key, value in loaded.items())
        return f"error unknown command '{line}'"

    def _run(self, operation: str, iterations: int) -> list[int]:
        function = self._operations[operation]
        times = []
        for _ in range(iterations):
            self._results[operation] = None  # So that its memory can serve the next one.
            self._barrier()
            begin = time.perf_counter_ns()
            result = function()
            result.block_until_ready()
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


def global_array(mesh: jax.sharding.Mesh, local: np.ndarray) -> jax.Array:
    """An array whose leading dimension is split over the ranks, from this rank's part."""
    sharding = NamedSharding(mesh, PartitionSpec("ep"))
    return jax.make_array_from_process_local_data(sharding, jnp.asarray(local))


def serve(contender) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--barrier-library", required=True)
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--num-ranks", type=int, required=True)
    arguments = parser.parse_args()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as driver:
        driver.connect(arguments.socket)
        rank = Rank(arguments, contender)
        lines = driver.makefile("rw")
        print(f"rank {arguments.rank}", file=lines, flush=True)
        for line in lines:
            try:
                reply = rank.answer(line.strip())
            except Exception as error:  # noqa: BLE001 - every failure is the driver's to report.
                reply = f"error {type(error).__name__}: {error}".replace("\n", " | ")
            print(reply, file=lines, flush=True)
