"""What a JAX user has without epd: all_to_all over gloo, with the gathers before and after it, in one jit.

The plan (which row goes where) is made beforehand, as for the other contenders, and each pair of ranks exchanges as many
rows as the fullest pair needs. Both sides gather: XLA's scatter on CPU is slower.
"""

import dataclasses

import jax
import jax.numpy as jnp
import jax_rank
import numpy as np
import problem as problems
from jax.sharding import PartitionSpec


@dataclasses.dataclass(frozen=True)
class Plan:
    """Indices of one rank; P is the number of rows of the fullest pair of ranks."""

    send: np.ndarray  # int32 [R, P] tokens to send to each rank; padding repeats token 0.
    recv: np.ndarray  # int32 [C] row of the received [R * P] for each slot; R * P in the tail.
    back: np.ndarray  # int32 [R, P] slots to send back to each rank; padding repeats slot 0.
    home: np.ndarray  # int32 [T, K] row of the returned [R * P] for each local route.


def make_plan(problem: problems.Problem, rank: int) -> Plan:
    sizes = problem.sizes
    num_ranks, per_rank = sizes.num_ranks, sizes.num_tokens * sizes.top_k
    received = [problem.received(target) for target in range(num_ranks)]
    pair_rows = max(
        np.count_nonzero(routes // per_rank == source)
        for routes in received
        for source in range(num_ranks)
    )
    send = np.zeros((num_ranks, pair_rows), np.int32)
    home = np.empty(per_rank, np.int32)
    for target, routes in enumerate(received):
        mine = routes[routes // per_rank == rank] % per_rank
        send[target, : len(mine)] = mine // sizes.top_k
        home[mine] = target * pair_rows + np.arange(len(mine))
    sources = received[rank] // per_rank
    recv = np.full(sizes.recv_capacity, num_ranks * pair_rows, np.int32)
    back = np.zeros((num_ranks, pair_rows), np.int32)
    for source in range(num_ranks):
        slots = np.flatnonzero(sources == source)
        recv[slots] = source * pair_rows + np.arange(len(slots))
        back[source, : len(slots)] = slots
    return Plan(send, recv, back, home.reshape(sizes.num_tokens, sizes.top_k))


def _exchange(rows: jax.Array, indices: jax.Array) -> jax.Array:
    """[n, H] rows picked by [R, P] indices -> [R * P, H] rows from all ranks."""
    picked = jax.lax.all_to_all(rows[indices], "ep", split_axis=0, concat_axis=0)
    return picked.reshape(-1, rows.shape[-1])


def dispatch(tokens: jax.Array, send: jax.Array, recv: jax.Array) -> jax.Array:
    return jnp.take(_exchange(tokens, send), recv, axis=0, mode="fill", fill_value=0)


def combine(
    expert_out: jax.Array, back: jax.Array, home: jax.Array, weights: jax.Array | None = None
) -> jax.Array:
    """Each token's sum over its routes, float32 [T, K] `weights` times each."""
    rows = _exchange(expert_out, back)[home].astype(jnp.float32)
    if weights is not None:
        rows = rows * weights[..., None]
    return rows.sum(axis=1).astype(expert_out.dtype)


class Gloo:
    def load(self, problem: problems.Problem, rank: int, mesh) -> jax_rank.Operations:
        plan = make_plan(problem, rank)

        def place(array: np.ndarray) -> jax.Array:
            return jax_rank.global_array(mesh, array)

        def over_ranks(function):
            ep = PartitionSpec("ep")
            return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=(ep, ep, ep), out_specs=ep))

        dispatch_rows, combine_rows = over_ranks(dispatch), over_ranks(combine)
        tokens, send, recv = map(place, (np.asarray(problem.tokens(rank)), plan.send, plan.recv))
        expert_out, back, home = map(
            place, (problem.dispatched(rank, scaled=True), plan.back, plan.home)
        )
        return {
            "dispatch": lambda: dispatch_rows(tokens, send, recv),
            "combine": lambda: combine_rows(expert_out, back, home),
        }

    def unload(self) -> None:
        jax.clear_caches()

    def versions(self) -> dict[str, str]:
        return {"collectives": jax.config.jax_cpu_collectives_implementation}


if __name__ == "__main__":
    jax_rank.serve(Gloo())
