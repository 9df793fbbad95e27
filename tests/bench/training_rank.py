"""One rank of the training step (training_step.py): two MoE layers forward and backward and an update, in one jitted program.

Its operations are the same step with the rows exchanged through ``epd``, over ``gloo``, and with ``none``: every rank then
keeps its own rows. With ``halves`` a rank's tokens are two micro-batches through epd, and with ``beside`` what the experts make of
one of them is computed beside an exchange of the other one. The experts compute in float32, the rows travel in bfloat16. A rank's experts share one pair of
matrices, so that the arithmetic does not depend on how rows are sorted.
"""

import functools
import pathlib
from collections.abc import Callable

import epd_jax
import gloo_jax
import jax
import jax.numpy as jnp
import jax_rank
import numpy as np
import problem as problems
import rank_protocol
from epd import jax as epd
from jax.sharding import PartitionSpec

_LAYERS = 2
_FFN_SHARE = 4  # Hidden size of an expert: a quarter of the model's, as in fine-grained mixtures.
_RATE = 1e-3

Params = list[tuple[jax.Array, jax.Array]]
# (tokens [R * T, H], the exchange's own inputs, experts' matrices) -> what the experts made of the tokens [R * T, H]
Moe = Callable[[jax.Array, list[jax.Array], tuple[jax.Array, jax.Array]], jax.Array]


def _experts(rows: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """Of one rank: [n, H] bfloat16 -> the same."""
    return (jax.nn.gelu(rows.astype(jnp.float32) @ up) @ down).astype(rows.dtype)


class Rank(jax_rank.MeshRank):
    def load(self, folder: str, numbers: list[int]) -> dict[str, Callable[[], jax.Array]]:
        problem = problems.Problem(pathlib.Path(folder), problems.Sizes(*numbers[:4]))
        tokens = self._place(np.asarray(problem.tokens(self.rank)))
        params = self._params(problem.sizes.hidden)
        epd_moe, routes = self._through_epd(problem)
        moes = {
            "epd": (epd_moe, routes),
            "halves": (self._in_halves(problem.sizes, epd_moe), routes),
            "beside": (self._beside(problem.sizes), routes),
            "gloo": self._over_gloo(problem),
            "none": (self._with_none(problem.sizes), []),
        }
        return {name: self._compiled(*moe, tokens, params) for name, moe in moes.items()}

    def dump(self, result: tuple[jax.Array, Params], path: str) -> None:
        np.asarray(result[0].addressable_shards[0].data).tofile(path)

    def unload(self) -> None:
        epd_jax.unload()

    def _place(self, local: np.ndarray) -> jax.Array:
        return jax_rank.global_array(self._mesh, local)

    def _params(self, hidden: int) -> Params:
        random = np.random.default_rng(self.rank)

        def matrix(rows: int, columns: int) -> jax.Array:
            values = random.standard_normal((1, rows, columns), np.float32) / np.sqrt(rows)
            return self._place(values)

        ffn = hidden // _FFN_SHARE
        return [(matrix(hidden, ffn), matrix(ffn, hidden)) for _ in range(_LAYERS)]

    def _compiled(
        self, moe: Moe, inputs: list[jax.Array], tokens: jax.Array, params: Params
    ) -> Callable:
        @functools.cache
        def compiled() -> Callable:
            with epd_jax.in_mesh(self._mesh):
                step = jax.jit(functools.partial(self._step, moe))
                return step.lower(inputs, tokens, params).compile()

        return lambda: compiled()(inputs, tokens, params)

    def _step(
        self, moe: Moe, inputs: list[jax.Array], tokens: jax.Array, params: Params
    ) -> tuple[jax.Array, Params]:
        """Each rank's mean squares of what came out and of its gradients, [R, 1 + 2 * layers]; and the new parameters."""

        def forward(params: Params) -> jax.Array:
            x = tokens
            for experts in params:
                x = x + moe(x, inputs, experts)
            return x

        def mean_squares(*arrays: jax.Array) -> jax.Array:
            return jnp.stack([jnp.mean(array.astype(jnp.float32) ** 2) for array in arrays])[None]

        out, backward = jax.vjp(forward, params)
        (gradients,) = backward(out)
        new = jax.tree.map(lambda old, gradient: old - _RATE * gradient, params, gradients)
        return self._over_ranks(mean_squares)(out, *jax.tree.leaves(gradients)), new

    def _over_ranks(self, function: Callable) -> Callable:
        ep = PartitionSpec("ep")
        return jax.shard_map(function, mesh=self._mesh, in_specs=ep, out_specs=ep)

    def _through_epd(self, problem: problems.Problem) -> tuple[Moe, list[jax.Array]]:
        sizes = problem.sizes
        epd_jax.bootstrap(self._mesh, self.rank, sizes)
        routes = [self._place(problem.routing[self.rank]), self._place(problem.weights(self.rank))]

        def moe(x, routes, experts):
            recv, weights, *plan = self._dispatch(sizes, x, *routes)
            rows = self._weighted(experts)(recv, weights)
            return self._combine(sizes, plan, rows, len(x))

        return moe, routes

    def _dispatch(self, sizes: problems.Sizes, x, index, weights, start: bool = False):
        """The receive buffer is as large a part of the sizes' as the tokens are of all."""
        capacity = sizes.recv_capacity * len(x) // (sizes.num_ranks * sizes.num_tokens)
        config = epd.EpLayerConfig(top_k=sizes.top_k)
        return epd.ep_dispatch(config, index, x, weights, capacity, start=start)

    def _combine(self, sizes: problems.Sizes, plan, rows, num_tokens: int, start: bool = False):
        config = epd.EpLayerConfig(top_k=sizes.top_k)
        handle, counts, _ = plan
        return epd.ep_combine(config, handle, counts, rows, num_tokens, start=start)

    def _weighted(self, experts) -> Callable:
        """(recv, weights) -> what the experts make of it, weighted."""

        def local(recv: jax.Array, weights: jax.Array, up: jax.Array, down: jax.Array):
            made = _experts(recv[0], up[0], down[0])
            return (made * weights[0][:, None].astype(made.dtype))[None]

        return lambda recv, weights: self._over_ranks(local)(recv, weights, *experts)

    def _split(self, sizes: problems.Sizes, array: jax.Array) -> list[jax.Array]:
        """Of each rank's tokens the first and the second half."""
        ranks, half = sizes.num_ranks, sizes.num_tokens // 2
        of_rank = array.reshape(ranks, 2, half, *array.shape[1:])
        return [of_rank[:, part].reshape(ranks * half, *array.shape[1:]) for part in (0, 1)]

    def _joined(self, sizes: problems.Sizes, parts: list[jax.Array]) -> jax.Array:
        ranks, half = sizes.num_ranks, sizes.num_tokens // 2
        of_rank = [part.reshape(ranks, half, *part.shape[1:]) for part in parts]
        return jnp.concatenate(of_rank, axis=1).reshape(ranks * 2 * half, *parts[0].shape[1:])

    def _in_halves(self, sizes: problems.Sizes, moe: Moe) -> Moe:
        def halves(x, routes, experts):
            parts = zip(*(self._split(sizes, array) for array in (x, *routes)), strict=True)
            return self._joined(
                sizes, [moe(tokens, [index, weights], experts) for tokens, index, weights in parts]
            )

        return halves

    def _beside(self, sizes: problems.Sizes) -> Moe:
        def beside(x, routes, experts):
            parts = list(zip(*(self._split(sizes, array) for array in (x, *routes)), strict=True))
            num_tokens = len(x) // 2
            make = self._weighted(experts)
            first, second = (self._dispatch(sizes, *part, start=True) for part in parts)
            recv, weights, *plan = first.done()
            made = second.beside(make, recv, weights)
            first = self._combine(sizes, plan, made, num_tokens, start=True)
            recv, weights, *plan = second.done()
            made = first.beside(make, recv, weights)
            second = self._combine(sizes, plan, made, num_tokens, start=True)
            return self._joined(sizes, [first.done(), second.done()])

        return beside

    def _over_gloo(self, problem: problems.Problem) -> tuple[Moe, list[jax.Array]]:
        plan = gloo_jax.make_plan(problem, self.rank)
        routes = (plan.send, plan.recv, plan.back, plan.home, problem.weights(self.rank))

        def local(x, send, recv, back, home, weights, up, down):
            rows = gloo_jax.dispatch(x, send, recv)
            return gloo_jax.combine(_experts(rows, up[0], down[0]), back, home, weights)

        def moe(x, routes, experts):
            return self._over_ranks(local)(x, *routes, *experts)

        return moe, [self._place(array) for array in routes]

    def _with_none(self, sizes: problems.Sizes) -> Moe:
        copies = sizes.recv_capacity // sizes.num_tokens

        def local(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
            rows = jnp.broadcast_to(x[None], (copies, *x.shape)).reshape(-1, x.shape[-1])
            made = _experts(rows, up[0], down[0]).reshape(copies, *x.shape)
            return made.astype(jnp.float32).sum(0).astype(x.dtype)

        return lambda x, _, experts: self._over_ranks(local)(x, *experts)


if __name__ == "__main__":
    rank_protocol.serve(Rank)
