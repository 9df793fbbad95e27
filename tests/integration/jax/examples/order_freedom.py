"""Two exchanges of one program whose tokens come in opposite order on different ranks: they pair up all the same.

    python order_freedom.py               two ranks, a process each
    python order_freedom.py --ranks 4

Nothing in the program says which of the two exchanges is first. A host callback holds back the tokens of one on even ranks
and of the other on odd ranks, step after step until they were ready in opposite order. Were calls matched by their order,
ranks would swap the two, or wait for each other for ever. Exit status 0: every row came back from its own exchange.
"""

import sys
import time

import launch

_TOKENS, _HIDDEN, _TOP_K, _SLOTS, _MOST_STEPS = 64, 64, 2, 1024, 40
_HOLD_SECONDS = 0.1


def held_back(which: int, rank, tokens, ready: list[int]):
    """``tokens``, later where it is the rank's turn to hold back exchange ``which``; notes that they are there."""
    import jax
    import numpy as np

    def wait(rank, tokens):
        time.sleep(_HOLD_SECONDS if int(rank) % 2 == which else 0)
        ready.append(which)
        return np.asarray(tokens)

    return jax.pure_callback(wait, jax.ShapeDtypeStruct(tokens.shape, tokens.dtype), rank, tokens)


def run_rank(ranks: int, rank: int, coordinator: str) -> int:
    import epd.jax as ep
    import jax
    import numpy as np
    from jax.experimental import multihost_utils
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    jax.distributed.initialize(coordinator, ranks, rank)
    mesh = Mesh(np.array(jax.devices()), ("ep",))
    layer, ready = ep.EpLayerConfig(top_k=_TOP_K), []

    @jax.jit
    def step(tokens, idx, weights, noise):
        def hold(which, tokens):
            return held_back(which, jax.lax.axis_index("ep"), tokens, ready)

        outs, kept = [], []
        for which in range(2):
            held = jax.shard_map(
                lambda own, which=which: hold(which, own),
                in_specs=P("ep"),
                out_specs=P("ep"),
                check_vma=False,
            )(tokens[which])
            recv, recv_weights, handle, counts, _ = ep.ep_dispatch(
                layer, idx[which], held, weights, _SLOTS
            )
            outs.append(ep.ep_combine(layer, handle, counts, recv, len(held)))
            kept += [held, recv, recv_weights, handle]
        # Work beside the exchanges, and buffers of their own: XLA runs a small program one operation after another.
        return outs, kept, [(noise * (1.0 + n)) @ noise for n in range(64)]

    def put(array, spec):
        return jax.make_array_from_callback(
            array.shape, NamedSharding(mesh, spec), array.__getitem__
        )

    rng = np.random.default_rng(0)
    rows = ranks * _TOKENS
    tokens = [np.full((rows, _HIDDEN), 1.0 + which, np.float32) for which in range(2)]
    idx = rng.integers(0, 2 * ranks, (2, rows, _TOP_K)).astype(np.int32)
    given = (
        [put(part, P("ep")) for part in tokens],
        [put(part, P("ep")) for part in idx],
        put(np.ones((rows, _TOP_K), np.float32), P("ep")),
        put(rng.standard_normal((64, 64)).astype(np.float32), P()),
    )
    with jax.set_mesh(mesh), ep.global_shard_guard(ep.MeshResource(ep_resource="ep")):
        ep.ep_bootstrap(ranks, rank, 2 * ranks, _TOKENS, _SLOTS, _HIDDEN, "float32")
        wrong, opposite, steps = 0, 0, 0
        while not opposite and steps < _MOST_STEPS:
            outs, *_ = jax.block_until_ready(step(*given))
            for which, out in enumerate(outs):
                own = np.asarray(out.addressable_data(0))
                wrong += int((own != _TOP_K * (1.0 + which)).any())
            first = multihost_utils.process_allgather(np.int32(ready[2 * steps]))  # Of each rank.
            opposite += int(first.min() != first.max())
            steps += 1
        ep.ep_finalize()
    good = opposite and not wrong
    print(
        f"rank {rank}: {steps} steps, in the last one exchange {first[rank]} was ready first;"
        f" {'every row came from its own exchange' if not wrong else f'{wrong} results are WRONG'}",
        flush=True,
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(launch.main(__file__, __doc__, run_rank, ranks=2, least=2))
