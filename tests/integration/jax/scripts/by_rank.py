"""One of the processes that join a group by rank: no jax.distributed, no mesh. Arguments: ranks, then its own ranks.

Runs a layer forward and backward against the reference, also with a name, what a bad call does to all of them, and
uneven_ranks.
"""

import sys

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
import reference
import uneven_ranks
from jax._src import distributed
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from world import fails

_TOKENS, _CAPACITY, _HIDDEN = 6, 96, 9
_CFG = ep.EpLayerConfig(top_k=3, dispatch_output_per_expert_alignment=2)


def _data(ranks: int, experts: int):
    rng = np.random.default_rng(7)
    idx = rng.integers(-1, experts, (ranks, _TOKENS, 3)).astype(np.int32)
    idx[0] = -1  # A rank that sends nothing.
    tokens = rng.standard_normal((ranks, _TOKENS, _HIDDEN)).astype(np.float32)
    return idx, tokens, rng.random(idx.shape).astype(np.float32)


def _expect(array: jax.Array, want: np.ndarray, held: list[int], what: str) -> None:
    """The rows of the held ranks, bit for bit."""
    want = np.concatenate([want[rank : rank + 1] for rank in held])
    np.testing.assert_array_equal(np.asarray(array).reshape(want.shape), want, err_msg=what)


def main() -> None:
    ranks, held = int(sys.argv[1]), [int(rank) for rank in sys.argv[2:]]
    owners = [(3 * e + 1) % max(1, ranks - 1) for e in range(ranks + 3)]  # The last rank owns none.
    group = ep.Group.join(
        "by-rank",
        ranks,
        held if len(held) > 1 else held[0],
        num_experts=len(owners),
        max_tokens_per_rank=8,
        recv_capacity_per_rank=_CAPACITY,
        hidden_dim=_HIDDEN,
        max_token_dtype=jnp.float32,
        expert_owner=owners,
        resource=ep.MeshResource(ep_resource="here"),
        job="four",
    )
    assert distributed.global_state.client is None
    with group:
        if len(held) > 1:
            mesh = Mesh(np.array(jax.devices()[: len(held)]), ("here",))
            with jax.set_mesh(mesh):
                _check(group, ranks, held, owners, NamedSharding(mesh, PartitionSpec("here")))
        else:
            _check(group, ranks, held, owners, jax.devices()[0])
        uneven = uneven_ranks.UnevenRanks(group, owners, ranks, held, _HIDDEN)
        uneven_ranks.check_every_loss(uneven)
        uneven_ranks.check_every_loss(uneven, start=True)
        uneven_ranks.check_after_different_programs(uneven)
    print("by_rank: fine", flush=True)


def _check(group: ep.Group, ranks: int, held: list[int], owners: list[int], place) -> None:
    idx, tokens, weights = _data(ranks, len(owners))
    plan = reference.plan(idx, len(owners), 2, owners)
    here = [
        jax.device_put(array[held].reshape(-1, array.shape[-1]), place)
        for array in (idx, tokens, weights)
    ]

    def layer(tokens, idx, weights, name=None):
        recv, recv_weights, handle, counts, total = group.dispatch(
            _CFG, idx, tokens, weights, _CAPACITY, name=name
        )
        rows = recv * recv_weights[..., None]
        out = group.combine(_CFG, handle, rows, tokens.shape[0], name=name)
        stats = group.routing_stats(handle)
        return (out**2).sum(), (recv, recv_weights, counts, total, out, stats.expert_counts)

    for name in (None, "named"):
        graded = jax.jit(
            jax.value_and_grad(lambda t, i, w, name=name: layer(t, i, w, name), has_aux=True)
        )
        for _ in range(3):
            (_, results), grad = graded(here[1], here[0], here[2])
        want = reference.scatter(plan, tokens, _CAPACITY)
        want_weights = reference.scatter_weights(plan, weights, _CAPACITY)
        out = reference.gather(plan, want * want_weights[..., None])
        g_recv = reference.scatter(plan, 2 * out, _CAPACITY) * want_weights[..., None]
        counts = [
            [(idx == e).sum() for e in np.flatnonzero(np.array(owners) == r)] for r in range(ranks)
        ]
        n = plan.token_counts.shape[1]
        raw = np.array([row + [0] * (n - len(row)) for row in counts])
        wanted = (want, want_weights, plan.token_counts, plan.total, out, raw)
        for number, (got, expected) in enumerate(zip(results, wanted, strict=True)):
            _expect(got, expected, held, f"result {number}")
        got = np.asarray(grad).reshape(len(held), _TOKENS, _HIDDEN)
        np.testing.assert_allclose(got, reference.gather(plan, g_recv)[held], 1e-5, 1e-5)

    bad = here[0].at[0, 0].set(len(owners)) if held[0] == 0 else here[0]
    prepare = jax.jit(lambda i: group.prepare(_CFG, i)[0])
    with fails("INVALID_ARGUMENT", "rank"):
        jax.block_until_ready(prepare(bad))
    _expect(prepare(here[0]), plan.token_counts, held, "after the error")


if __name__ == "__main__":
    main()
