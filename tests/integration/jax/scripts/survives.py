"""One of the processes of a training over nodes that are lost and come back. Arguments: losses, ranks, its rank.

Steps until one fails, says "loss N" and the error on one line, tries again until a step is good, and says "step N" before it
waits for the next loss. Every good step's results are compared.
"""

import sys
import time

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np

_TOKENS, _HIDDEN, _CAPACITY = 8, 4, 256
_CFG = ep.EpLayerConfig(2)
_PATIENCE_SECONDS = 90


def _layer(group: ep.Group, rank: int, ranks: int):
    idx = jnp.array([[(rank + t) % ranks, t % ranks] for t in range(_TOKENS)], jnp.int32)
    ones = jnp.ones(idx.shape, jnp.float32)

    @jax.jit
    def layer(tokens):
        recv, _, handle, *_ = group.dispatch(_CFG, idx, tokens, ones, _CAPACITY)
        return group.combine(_CFG, handle, recv, _TOKENS)

    def step(number: int) -> None:
        mine = np.arange(_TOKENS * _HIDDEN, dtype=np.float32).reshape(_TOKENS, _HIDDEN)
        mine += 1000 * number + 100 * rank
        with ep.ep_errors():
            got = np.asarray(layer(mine))
        np.testing.assert_array_equal(got, 2 * mine)

    return step


def _first_error(step) -> ep.EpError:
    until = time.monotonic() + _PATIENCE_SECONDS
    number = 0
    while True:
        try:
            step(number)
        except ep.EpError as error:
            return error
        assert time.monotonic() < until, "no node was lost"
        number += 1


def _until_good(step) -> None:
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return step(0)
        except ep.EpError as error:
            assert error.retry in ("call again", "connect again"), error
            assert time.monotonic() < until, error


def main() -> None:
    losses, ranks, rank = (int(word) for word in sys.argv[1:])
    group = ep.Group.join(
        "survives",
        ranks,
        rank,
        num_experts=ranks,
        max_tokens_per_rank=_TOKENS,
        recv_capacity_per_rank=_CAPACITY,
        hidden_dim=_HIDDEN,
        max_token_dtype=jnp.float32,
        job="survives",
    )
    with group:
        step = _layer(group, rank, ranks)
        _until_good(step)
        print("step 0", flush=True)
        for number in range(1, losses + 1):
            error = _first_error(step)
            print("loss", number, error.code, " ".join(str(error).split()), flush=True)
            _until_good(step)
            print("step", number, flush=True)
    print("survives: fine", flush=True)


if __name__ == "__main__":
    main()
