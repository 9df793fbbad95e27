"""A receive buffer that is too small: an error on every rank, after which all goes on; or dropped routes, counted.

    python overflow.py                    two ranks, a process each
    python overflow.py --ranks 4

All ranks send all their tokens to rank 0. In the group "strict" every rank gets the same error, which names the rank that
overflows, its demand and its capacity; the next call, with fewer tokens, works. In the group "dropping" the first routes
take the slots; ``routing_stats`` tells the rows of each expert before any drop, what fits, and whose routes were dropped.
Exit status 0: the error and the numbers are as expected.
"""

import sys

import launch

_TOKENS, _HIDDEN, _SLOTS, _ROOM = 16, 32, 64, 24  # _ROOM: slots of the calls that overflow.


def exchange(group, tokens):
    """Each token to expert 0, of rank 0, and back. -> what came back [T, H], routing_stats of this rank."""
    import epd.jax as ep
    import jax
    import numpy as np

    layer = ep.EpLayerConfig(top_k=1)

    @jax.jit
    def step(idx, tokens, weights):
        recv, _, handle, counts, _ = group.dispatch(layer, idx, tokens, weights, _ROOM)
        stats = group.routing_stats(handle, _ROOM)
        return group.combine(layer, handle, recv, len(tokens)), stats

    idx = np.zeros((len(tokens), 1), np.int32)
    with ep.ep_errors():
        return jax.tree.map(np.asarray, step(idx, tokens, np.ones(idx.shape, np.float32)))


def run_rank(ranks: int, rank: int, coordinator: str) -> int:
    del coordinator  # Nobody needs one.
    import epd.jax as ep
    import numpy as np

    def group(name: str, drop: bool):
        return ep.Group.join(
            name,
            ranks,
            rank,
            num_experts=2 * ranks,
            max_tokens_per_rank=_TOKENS,
            recv_capacity_per_rank=_SLOTS,
            hidden_dim=_HIDDEN,
            max_token_dtype="float32",
            drop_on_overflow=drop,
        )

    tokens = np.full((_TOKENS, _HIDDEN), 1.0 + rank, np.float32)
    demand = ranks * _TOKENS
    with group("strict", drop=False) as strict, group("dropping", drop=True) as dropping:
        try:
            exchange(strict, tokens)
            told = ""
        except ep.EpError as error:
            told = str(error)
        fewer = tokens[: _ROOM // ranks]
        out, _ = exchange(strict, fewer)
        good = error_is_right(told, demand) and (out == fewer).all()
        print(
            f"rank {rank}: {told or 'NO ERROR'}\nrank {rank}: the next call: {len(out)} rows",
            flush=True,
        )

        out, stats = exchange(dropping, tokens)
        kept = min(max(_ROOM - rank * _TOKENS, 0), _TOKENS)  # Slots are taken in the ranks' order.
        good = good and (out == np.where(np.arange(_TOKENS)[:, None] < kept, tokens, 0)).all()
        if rank == 0:
            drops = [_TOKENS - min(max(_ROOM - r * _TOKENS, 0), _TOKENS) for r in range(ranks)]
            good = good and stats.expert_counts[0].tolist() == [demand, 0]
            good = good and stats.group_sizes[0].tolist() == [_ROOM, 0]
            good = good and stats.drops_per_source[0].tolist() == drops
            print(
                f"rank 0: {demand} routes, {_ROOM} slots; dropped by source: {stats.drops_per_source[0]}"
            )
    print(f"rank {rank}: {'as expected' if good else 'NOT as expected'}", flush=True)
    return 0 if good else 1


def error_is_right(told: str, demand: int) -> bool:
    return "RESOURCE_EXHAUSTED" in told and str(demand) in told and str(_ROOM) in told


if __name__ == "__main__":
    sys.exit(launch.main(__file__, __doc__, run_rank, ranks=2, least=2))
