"""epd as a JAX user meets it: prepare, dispatch and combine of `epd.jax`, each in its own jit; and a jit of nothing."""

import contextlib
from collections.abc import Iterator

import epd as package
import jax
import jax_rank
import numpy as np
import problem as problems
from epd import jax as epd
from epd.jax import primitives

_RESOURCE = epd.MeshResource(ep_resource="ep")


@contextlib.contextmanager
def in_mesh(mesh: jax.sharding.Mesh) -> Iterator[None]:
    with jax.set_mesh(mesh), epd.global_shard_guard(_RESOURCE):
        yield


def bootstrap(mesh: jax.sharding.Mesh, rank: int, sizes: problems.Sizes) -> None:
    with in_mesh(mesh):
        epd.ep_bootstrap(
            world_size=sizes.num_ranks,
            rank=rank,
            num_experts=sizes.num_experts,
            max_tokens_per_rank=sizes.num_tokens,
            recv_capacity_per_rank=sizes.recv_capacity,
            hidden_dim=sizes.hidden,
        )


def unload() -> None:
    epd.ep_finalize()
    jax.clear_caches()


class EpdJax:
    def load(self, problem: problems.Problem, rank: int, mesh) -> jax_rank.Operations:
        sizes = problem.sizes
        capacity = sizes.recv_capacity
        self._mesh = mesh
        bootstrap(mesh, rank, sizes)
        config = epd.EpLayerConfig(top_k=sizes.top_k)
        total_tokens = sizes.num_ranks * sizes.num_tokens

        def place(array: np.ndarray) -> jax.Array:
            return jax_rank.global_array(mesh, array)

        index, weights = place(problem.routing[rank]), place(problem.weights(rank))
        tokens = place(np.asarray(problem.tokens(rank)))
        expert_out = place(problem.dispatched(rank, scaled=True)[None])
        prepare = jax.jit(lambda index: epd.ep_prepare(config, index)[2])
        dispatch = jax.jit(
            lambda plan, *inputs: primitives.ep_dispatch_fwd(config, plan, *inputs, capacity)[0]
        )
        combine = jax.jit(
            lambda plan, rows: primitives.ep_combine_fwd(config, plan, rows, total_tokens)
        )
        nothing = jax.jit(lambda index: index + 1)
        plan = self._in_mesh(prepare, index)()
        return {
            "prepare": self._in_mesh(prepare, index),
            "dispatch": self._in_mesh(dispatch, plan, index, tokens, weights),
            "combine": self._in_mesh(combine, plan, expert_out),
            "nothing": self._in_mesh(nothing, index),
        }

    def _in_mesh(self, function, *inputs):
        """The call as a user makes it, compiled once beforehand."""
        with in_mesh(self._mesh):
            compiled = function.lower(*inputs).compile()
        return lambda: compiled(*inputs)

    def unload(self) -> None:
        unload()

    def versions(self) -> dict[str, str]:
        return {"epd": package.__version__}


if __name__ == "__main__":
    jax_rank.serve(EpdJax())
