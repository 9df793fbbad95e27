"""One process of the benchmark of ragged_all_to_all: times it, its emulation by all_gather, and memcpy; see ragged.py.

Its argument is JSON: coordinator, index, processes, rounds, iterations, the barrier's library, memory to share, and the file for the
times, [iterations] ns of each contender.
"""

import functools
import json
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
import rank_protocol
from jax.sharding import NamedSharding, PartitionSpec

_ROWS, _WIDTH = 2048, 1024


def _emulated(operand: jax.Array, output: jax.Array, *indices: jax.Array) -> jax.Array:
    """What a JAX user has on CPUs: every rank gathers all rows and takes its own."""
    me = jax.lax.axis_index("ep")
    gather = functools.partial(jax.lax.all_gather, axis_name="ep")
    rows = gather(operand, tiled=True)
    first, size, to, _ = (gather(array)[:, me][:, None] for array in indices)
    row = jnp.arange(len(output))
    inside = (row >= to) & (row < to + size)
    sender = jnp.arange(len(first))[:, None]
    source = jnp.where(inside, sender * len(operand) + first + row - to, 0).sum(0)
    return jnp.where(inside.any(0)[:, None], rows[source], output)


def _sizes(n: int) -> np.ndarray:
    """[n, n] rows from each rank to each; every rank sends and receives all of its rows."""
    sizes = np.empty((n, n), np.int32)
    for sender in range(n):
        for receiver in range(n):
            sizes[sender, receiver] = _ROWS // n + 32 * (2 * ((sender + receiver) % n) - n + 1)
    return sizes


def _arrays(n: int, mesh: jax.sharding.Mesh) -> list[jax.Array]:
    rng = np.random.default_rng(1)
    sizes = _sizes(n)
    before = lambda counts, axis: np.cumsum(counts, axis, dtype=np.int32) - counts  # noqa: E731
    operand = rng.standard_normal((n * _ROWS, _WIDTH), np.float32).astype(jnp.bfloat16)
    indices = [before(sizes, 1), sizes, before(sizes, 0), sizes.T]
    sharding = NamedSharding(mesh, PartitionSpec("ep"))
    return [
        jax.make_array_from_callback(array.shape, sharding, lambda at, array=array: array[at])
        for array in (operand, np.zeros_like(operand), *(index.reshape(-1) for index in indices))
    ]


def _two_copies(given: dict[str, Any]) -> Callable[[], None]:
    """The least that rows cost which go from process to process: into shared memory, and out of it once all are there."""
    n, me = given["processes"], given["index"]
    sizes = _sizes(n)
    sent, landed = np.cumsum(sizes, 1) - sizes, np.cumsum(sizes, 0) - sizes
    barrier = rank_protocol.open_barrier(given["barrier_library"], f"{given['shared']}.barrier")
    with open(given["shared"], "ab") as file:
        file.truncate(n * _ROWS * _WIDTH * 2)
    staged = np.memmap(given["shared"], np.uint16, "r+", shape=(n, _ROWS, _WIDTH))
    operand, result = np.ones((2, _ROWS, _WIDTH), np.uint16)

    def rows(of: np.ndarray, first: int, size: int) -> np.ndarray:
        return of[first : first + size]

    def run() -> None:
        barrier()
        for to in range(n):
            part = sent[me, to], sizes[me, to]
            if to != me:
                np.copyto(rows(staged[me], *part), rows(operand, *part))
        barrier()
        for source in range(n):
            of = operand if source == me else staged[source]
            size = sizes[source, me]
            np.copyto(rows(result, landed[source, me], size), rows(of, sent[source, me], size))

    return run


def main() -> None:
    given = json.loads(sys.argv[1])
    if given["processes"] > 1:
        jax.distributed.initialize(given["coordinator"], given["processes"], given["index"])
    n = len(jax.devices())
    mesh = jax.make_mesh((n,), ("ep",))
    arrays = _arrays(n, mesh)
    ep_spec = PartitionSpec("ep")

    def mapped(function):
        return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=ep_spec, out_specs=ep_spec))

    exchange = mapped(functools.partial(ep.ragged_all_to_all, axis_name="ep"))
    emulation = mapped(_emulated)
    local = lambda array: [np.asarray(shard.data) for shard in array.addressable_shards]  # noqa: E731
    for mine, theirs in zip(local(exchange(*arrays)), local(emulation(*arrays)), strict=True):
        assert (mine == theirs).all(), "the emulation gives other rows"
    source, target = np.ones((2, len(jax.local_devices()), _ROWS * _WIDTH), np.uint16)

    def copy() -> None:
        np.copyto(target, source)

    contenders = {
        "epd": lambda: jax.block_until_ready(exchange(*arrays)),
        "emulation": lambda: jax.block_until_ready(emulation(*arrays)),
        "memcpy": copy,
    }
    if given["processes"] > 1:
        contenders["copies"] = _two_copies(given)
    times: dict[str, list[int]] = {name: [] for name in contenders}
    for _ in range(given["rounds"]):
        for name, function in contenders.items():
            jax.block_until_ready(emulation(*arrays))  # All begin together.
            function()
            if name == "memcpy":
                # Nothing keeps the processes in step, so one copy's time would leave out when others had the core.
                begin = time.perf_counter_ns()
                for _ in range(given["iterations"]):
                    function()
                times[name].append((time.perf_counter_ns() - begin) // given["iterations"])
                continue
            for _ in range(given["iterations"]):
                begin = time.perf_counter_ns()
                function()
                times[name].append(time.perf_counter_ns() - begin)
    pathlib.Path(given["out"]).write_text(json.dumps(times))


if __name__ == "__main__":
    main()
