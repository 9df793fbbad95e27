"""One rank of what payload.py measures: quantised rows and their scales by one dispatch, ``together``, and by a dispatch each,
``apart``; and the exchanges of a layer in one jitted program, with its prepare, ``layer``, and by a plan from before, ``planned``.
"""

import pathlib
from collections.abc import Callable

import epd_jax
import jax
import jax.numpy as jnp
import jax_rank
import numpy as np
import problem as problems
import rank_protocol
from epd import jax as epd
from epd.jax import primitives

_BLOCK = 128  # Elements with a scale of their own.


class Rank(jax_rank.MeshRank):
    def load(self, folder: str, numbers: list[int]) -> dict[str, Callable[[], list[jax.Array]]]:
        problem = problems.Problem(pathlib.Path(folder), problems.Sizes(*numbers[:4]))
        sizes = problem.sizes
        epd_jax.bootstrap(self._mesh, self.rank, sizes)
        config, capacity = epd.EpLayerConfig(top_k=sizes.top_k), sizes.recv_capacity
        total_tokens = sizes.num_ranks * sizes.num_tokens
        tokens = np.asarray(problem.tokens(self.rank))
        scales = np.abs(tokens.astype(np.float32)).reshape(len(tokens), -1, _BLOCK).max(-1)
        routes = (problem.routing[self.rank], problem.weights(self.rank))
        index, weights = (jax_rank.global_array(self._mesh, array) for array in routes)
        arrays = (tokens, scales, tokens.astype(jnp.float8_e4m3fn))
        rows, scales, quantised = (jax_rank.global_array(self._mesh, array) for array in arrays)

        def prepare(index):
            return epd.ep_prepare(config, index)[2]

        def dispatch(plan, payload, index, weights):
            return primitives.ep_dispatch_fwd(config, plan, index, payload, weights, capacity)[0]

        def together(plan, rows, scales, index, weights):
            return dispatch(plan, [rows, scales], index, weights)

        def apart(plan, rows, scales, index, weights):
            return [dispatch(plan, [array], index, weights)[0] for array in (rows, scales)]

        def planned(plan, rows, index, weights):
            received = dispatch(plan, rows, index, weights)
            return [primitives.ep_combine_fwd(config, plan, received, total_tokens)]

        def layer(rows, index, weights):
            return planned(prepare(index), rows, index, weights)

        plan = self._compiled(prepare, index)()
        return {
            "together": self._compiled(together, plan, quantised, scales, index, weights),
            "apart": self._compiled(apart, plan, quantised, scales, index, weights),
            "layer": self._compiled(layer, rows, index, weights),
            "planned": self._compiled(planned, plan, rows, index, weights),
        }

    def dump(self, result: list[jax.Array], path: str) -> None:
        shards = [np.asarray(array.addressable_shards[0].data) for array in result]
        # No sum is zero by itself.
        sums = [np.abs(shard.astype(np.float32)).sum() + 1 for shard in shards]
        np.asarray(sums, np.float32).tofile(path)

    def unload(self) -> None:
        epd_jax.unload()

    def _compiled(self, function: Callable, *inputs: jax.Array) -> Callable:
        with epd_jax.in_mesh(self._mesh):
            compiled = jax.jit(function).lower(*inputs).compile()
        return lambda: compiled(*inputs)


if __name__ == "__main__":
    rank_protocol.serve(Rank)
