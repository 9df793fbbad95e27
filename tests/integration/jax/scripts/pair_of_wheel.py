"""Two ranks of one group, in an environment that pip made, which find no daemon; and what epctl and epd.cluster say of it."""

import os
import subprocess
import sys

if "PACKAGES" in os.environ:  # Where JAX and gRPC are; behind the environment's own package.
    sys.path.append(os.environ["PACKAGES"])

if len(sys.argv) == 1:
    ranks = [subprocess.Popen([sys.executable, __file__, rank]) for rank in "01"]
    sys.exit(any([rank.wait() for rank in ranks]))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from epd import cluster  # noqa: E402
from epd.jax import EpLayerConfig, Group  # noqa: E402

cfg, rank = EpLayerConfig(top_k=2), int(sys.argv[1])
group = Group.join(
    "pair",
    ranks=2,
    rank=rank,
    job="wheel",
    num_experts=4,
    max_tokens_per_rank=16,
    recv_capacity_per_rank=64,
    hidden_dim=8,
    max_token_dtype=jnp.float32,
)


@jax.jit
def step(topk_idx, tokens, weights):
    recv, recv_weights, handle, *_ = group.dispatch(cfg, topk_idx, tokens, weights, 64)
    return group.combine(cfg, handle, recv * recv_weights[..., None], len(tokens))


with group:
    out = step(jnp.array([[0, 3]] * 3, jnp.int32), jnp.ones((3, 8)), jnp.full((3, 2), 0.75))
    assert (out == 1.5).all(), out
    if rank == 0:
        with cluster.Node(cluster.default_target()) as node:
            print("cluster says", node.call("GetStatus").version, flush=True)
        subprocess.run(["epctl", "groups"], check=True)
    step(
        jnp.array([[0, 3]] * 3, jnp.int32), jnp.ones((3, 8)), jnp.full((3, 2), 0.75)
    )  # Both stay until then.
