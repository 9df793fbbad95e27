"""One rank of a contender in JAX.

A contender gives `load(problem, rank, mesh)`, which returns {operation: function without arguments}, each function
returning the global array whose local shard is the result; and `unload()`.
"""

import argparse
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problem as problems
import rank_protocol
from jax.sharding import NamedSharding, PartitionSpec

Operations = dict[str, Callable[[], jax.Array]]


class MeshRank(rank_protocol.Rank):
    """A rank whose process is a device of a mesh over all of them."""

    def __init__(self, arguments: argparse.Namespace):
        super().__init__(arguments)
        jax.config.update("jax_platforms", "cpu")
        jax.distributed.initialize(arguments.coordinator, arguments.num_ranks, arguments.rank)
        self._mesh = jax.make_mesh((arguments.num_ranks,), ("ep",))

    def await_result(self, result: Any) -> None:
        jax.block_until_ready(result)

    def versions(self) -> dict[str, str]:
        return {"jax": jax.__version__}


class Rank(MeshRank):
    def __init__(self, arguments: argparse.Namespace, contender):
        super().__init__(arguments)
        self._contender = contender

    def load(self, folder: str, numbers: list[int]) -> Operations:
        problem = problems.Problem(pathlib.Path(folder), problems.Sizes(*numbers[:4]))
        return self._contender.load(problem, self.rank, self._mesh)

    def dump(self, result: jax.Array, path: str) -> None:
        np.asarray(result.addressable_shards[0].data).view(np.uint16).tofile(path)

    def unload(self) -> None:
        self._contender.unload()

    def versions(self) -> dict[str, str]:
        return {**super().versions(), **self._contender.versions()}


def global_array(mesh: jax.sharding.Mesh, local: np.ndarray) -> jax.Array:
    """An array whose leading dimension is split over the ranks, from this rank's part."""
    sharding = NamedSharding(mesh, PartitionSpec("ep"))
    return jax.make_array_from_process_local_data(sharding, jnp.asarray(local))


def serve(contender) -> None:
    rank_protocol.serve(lambda arguments: Rank(arguments, contender))
