"""Two groups in one program, of processes that never initialise jax.distributed; one of them brings no tokens.

    python joined_groups.py               three ranks, a process each
    python joined_groups.py --ranks 2

Each process joins both groups by name and rank. "wide" has seven experts in a table, of which the last rank owns none;
"narrow" has two experts per rank and shorter rows. The last rank has no tokens: it only computes for the others.
"""

import sys

import launch

_TOKENS, _WIDE, _NARROW, _SLOTS, _TOP_K = 12, 32, 8, 256, 2


def join(ranks: int, rank: int):
    """-> the two groups."""
    import epd.jax as ep
    import jax.numpy as jnp

    def group(name: str, hidden: int, **experts):
        return ep.Group.join(
            name,
            ranks,
            rank,
            max_tokens_per_rank=_TOKENS,
            recv_capacity_per_rank=_SLOTS,
            hidden_dim=hidden,
            max_token_dtype=jnp.float32,
            **experts,
        )

    owners = [expert % max(1, ranks - 1) for expert in range(7)]
    return (
        group("wide", _WIDE, num_experts=7, expert_owner=owners),
        group("narrow", _NARROW, num_experts=2 * ranks),
    )


def through(group, idx, tokens, weights, layer):
    """Tokens to their experts and back; here every expert is a tanh. -> the sums [T, H], and rows per expert."""
    import jax.numpy as jnp

    recv, recv_weights, handle, counts, _ = group.dispatch(layer, idx, tokens, weights, _SLOTS)
    out = jnp.tanh(recv) * recv_weights[..., None]
    rows = group.routing_stats(handle).expert_counts
    return group.combine(layer, handle, out, len(tokens)), rows


def problem(ranks: int, rank: int):
    """-> rows [T, H], weights [T, K], indices in the wide and in the narrow group. The last rank has no tokens."""
    import numpy as np

    rng = np.random.default_rng(rank)
    tokens = 0 if rank == ranks - 1 else _TOKENS
    rows = rng.standard_normal((tokens, _WIDE)).astype(np.float32)
    weights = rng.random((tokens, _TOP_K)).astype(np.float32)
    to_wide = rng.integers(0, 7, (tokens, _TOP_K)).astype(np.int32)
    return rows, weights, to_wide, rng.integers(0, 2 * ranks, (tokens, _TOP_K)).astype(np.int32)


def run_rank(ranks: int, rank: int, coordinator: str, check=lambda *results: None) -> int:
    """``check(problem, loss, gradient)``: what is wrong with the results, or None."""
    del coordinator  # Nobody needs one.
    import epd.jax as ep
    import jax
    import numpy as np

    layer = ep.EpLayerConfig(top_k=_TOP_K)
    given = rows, weights, to_wide, to_narrow = problem(ranks, rank)
    wide, narrow = join(ranks, rank)

    def loss(rows):
        first, in_wide = through(wide, to_wide, rows, weights, layer)
        second, in_narrow = through(narrow, to_narrow, rows[:, :_NARROW], weights, layer)
        return first.sum() + (second**2).sum(), (in_wide, in_narrow)

    with wide, narrow:
        (value, counts), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(rows)
        in_wide, in_narrow = (np.asarray(count)[0].tolist() for count in counts)
        wrong = check(given, float(value), np.asarray(gradient))
    print(
        f"rank {rank}: {len(rows)} tokens; rows at its experts: wide {in_wide}, narrow {in_narrow}",
        flush=True,
    )
    if wrong:
        print(f"rank {rank}: {wrong}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(launch.main(__file__, __doc__, run_rank, ranks=3, least=2))
