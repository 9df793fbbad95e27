"""Two groups in one program, of processes that never initialise jax.distributed; one of them brings no tokens.

    python joined_groups.py               three ranks, a process each
    python joined_groups.py --ranks 2

Each process joins both groups by name and rank. "wide" has seven experts in a table, of which the last rank owns none;
"narrow" has two experts per rank and shorter rows. The last rank has no tokens: it only computes for the others. Values and
gradients are compared with a dense layer; exit status 0: equal.
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
            job="joined-example",
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
    return group.combine(layer, handle, counts, out, len(tokens)), rows


def run_rank(ranks: int, rank: int, coordinator: str) -> int:
    del coordinator  # Nobody needs one.
    import epd.jax as ep
    import jax
    import jax.numpy as jnp
    import numpy as np

    layer = ep.EpLayerConfig(top_k=_TOP_K)
    rng = np.random.default_rng(rank)
    tokens = 0 if rank == ranks - 1 else _TOKENS
    rows = rng.standard_normal((tokens, _WIDE)).astype(np.float32)
    weights = rng.random((tokens, _TOP_K)).astype(np.float32)
    to_wide = rng.integers(0, 7, (tokens, _TOP_K)).astype(np.int32)
    to_narrow = rng.integers(0, 2 * ranks, (tokens, _TOP_K)).astype(np.int32)
    wide, narrow = join(ranks, rank)

    def loss(rows):
        first, in_wide = through(wide, to_wide, rows, weights, layer)
        second, in_narrow = through(narrow, to_narrow, rows[:, :_NARROW], weights, layer)
        return first.sum() + (second**2).sum(), (in_wide, in_narrow)

    def dense(rows):
        total = weights.sum(-1, keepdims=True)
        narrow_rows = jnp.tanh(rows[:, :_NARROW]) * total
        return (jnp.tanh(rows) * total).sum() + (narrow_rows**2).sum()

    with wide, narrow:
        (value, counts), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(rows)
        value, gradient = float(value), np.asarray(gradient)
        in_wide, in_narrow = (np.asarray(count)[0].tolist() for count in counts)
    want, wanted_gradient = jax.value_and_grad(dense)(rows)
    error = max(abs(value - float(want)), *np.abs(gradient - wanted_gradient).ravel(), 0)
    good = error <= 1e-3
    print(
        f"rank {rank}: {tokens} tokens; rows at its experts: wide {in_wide}, narrow {in_narrow};"
        f" {'as' if good else 'NOT as'} the dense layer, by at most {error:.1e}",
        flush=True,
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(launch.main(__file__, __doc__, run_rank, ranks=3, least=2))
