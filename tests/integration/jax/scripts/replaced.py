"""One process of two that join a group by rank. Argument: stays (rank 0), dies or comes (rank 1, one after the other).

The one that stays is told who died, and goes on with the one that comes, by the program that it has compiled before.
"""

import os
import signal
import sys
import time

import compiles
import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from world import fails

_CFG = ep.EpLayerConfig(top_k=2)
_TOKENS, _HIDDEN, _CAPACITY, _STEPS = 8, 16, 64, 3


def _step_of(group: ep.Group):
    @jax.jit
    def step(idx, tokens):
        weights = jnp.ones(idx.shape, jnp.float32)
        recv, _, handle, counts, _ = group.dispatch(_CFG, idx, tokens, weights, _CAPACITY)
        return group.combine(_CFG, handle, recv, tokens.shape[0])

    def run(number: int) -> None:
        rng = np.random.default_rng(number)
        idx = rng.integers(0, 4, (_TOKENS, 2)).astype(np.int32)
        tokens = rng.standard_normal((_TOKENS, _HIDDEN)).astype(np.float32)
        np.testing.assert_array_equal(np.asarray(step(idx, tokens)), 2 * tokens)

    return run


def _retry(step) -> None:
    """Until the rank that is missing has come, every call says at once that it is gone, and then that the group forms."""
    deadline = time.monotonic() + 100
    while True:
        try:
            with ep.ep_errors():
                return step(0)
        except ep.EpError as error:
            assert error.code in ("UNAVAILABLE", "ABORTED"), error
            assert time.monotonic() < deadline, "no other process came"
            time.sleep(0.05)


def main() -> None:
    part = sys.argv[1]
    group = ep.Group.join(
        "replaced",
        2,
        0 if part == "stays" else 1,
        num_experts=4,
        max_tokens_per_rank=_TOKENS,
        recv_capacity_per_rank=_CAPACITY,
        hidden_dim=_HIDDEN,
        max_token_dtype=jnp.float32,
        job="replaced",
    )
    step = _step_of(group)
    with group:
        if part == "comes":
            _retry(step)
        else:
            step(0)
        if part == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        with compiles.none():
            if part == "stays":
                with fails("UNAVAILABLE", "rank=1", "pid="):
                    step(0)
                print("told", flush=True)
                _retry(step)
            for number in range(1, _STEPS):
                step(number)
    print("replaced: fine", flush=True)


if __name__ == "__main__":
    main()
