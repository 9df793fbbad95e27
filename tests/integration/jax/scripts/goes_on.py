"""One of the processes of a training that retries nothing while daemons stop and start. Arguments: steps, ranks, its rank.

Says "step N" on stdout; every step's results are compared, so a row of another step or rank is found.
"""

import sys
import time

import compiles
import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np

_TOKENS, _HIDDEN, _CAPACITY = 8, 4, 256
_CFG = ep.EpLayerConfig(2)


def _layer(group: ep.Group, rank: int, ranks: int):
    """Two exchanges by place in the program and two by name, which add up to nine times the tokens."""
    idx = jnp.array([[(rank + t) % ranks, t % ranks] for t in range(_TOKENS)], jnp.int32)
    ones = jnp.ones(idx.shape, jnp.float32)

    def round_trip(tokens, name=None):
        recv, _, handle, *_ = group.dispatch(_CFG, idx, tokens, ones, _CAPACITY, name=name)
        return group.combine(_CFG, handle, recv, _TOKENS, name=name)

    @jax.jit
    def step(tokens):
        twice = jax.lax.fori_loop(0, 1, lambda _, t: round_trip(t), tokens)
        return round_trip(2 * twice, "by-name") + round_trip(tokens) - tokens

    return step


def main() -> None:
    steps, ranks, rank = (int(word) for word in sys.argv[1:])
    group = ep.Group.join(
        "goes-on",
        ranks,
        rank,
        num_experts=ranks,
        max_tokens_per_rank=_TOKENS,
        recv_capacity_per_rank=_CAPACITY,
        hidden_dim=_HIDDEN,
        max_token_dtype=jnp.float32,
        job="goes-on",
    )
    with group:
        step = _layer(group, rank, ranks)
        tokens = np.arange(_TOKENS * _HIDDEN, dtype=np.float32).reshape(_TOKENS, _HIDDEN)
        np.asarray(step(tokens))
        with compiles.none():
            for n in range(steps):
                mine = tokens + 1000 * n + 100 * rank
                np.testing.assert_array_equal(np.asarray(step(mine)), 9 * mine, err_msg=f"step {n}")
                print("step", n, flush=True)
                time.sleep(0.02)
    print("goes_on: fine", flush=True)


if __name__ == "__main__":
    main()
