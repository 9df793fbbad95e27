"""One rank of a pair of a job. Arguments: rank, a number that its job's rows are made of. Prints "right" or the error's code."""

import sys
import time

import epd.jax as ep
import jax.numpy as jnp

rank, value = int(sys.argv[1]), float(sys.argv[2])
sizes = {"num_experts": 2, "max_tokens_per_rank": 2, "recv_capacity_per_rank": 8, "hidden_dim": 4}
try:
    with ep.Group.join("pair", 2, rank, max_token_dtype="float32", **sizes) as group:
        for _ in range(5):
            idx, tokens = jnp.array([[0], [1]], jnp.int32), jnp.full((2, 4), value)
            recv, *_ = group.dispatch(ep.EpLayerConfig(top_k=1), idx, tokens, jnp.ones((2, 1)), 8)
            assert (recv[0, :2] == value).all(), f"rows of another job: {recv[0, :2, 0]}"
            time.sleep(0.05)
    print("right")
except ep.EpError as error:
    print(error.code, error)
