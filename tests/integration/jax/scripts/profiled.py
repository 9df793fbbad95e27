"""A program of two ranks in one process whose calls stand in named scopes; runs under jax.profiler until its standard input ends.

Argument: the profiler's folder. Prints "running" once the profiler does.
"""

import sys
import threading
import time

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

_CFG = ep.EpLayerConfig(top_k=2)
_TOKENS, _HIDDEN, _CAPACITY = 128, 32, 512
_PAUSE_SECONDS = 0.05


def _loss(tokens, weights, idx):
    with jax.named_scope("layer_3"):
        recv, recv_weights, handle, counts, _ = ep.ep_dispatch(
            _CFG, idx, tokens, weights, _CAPACITY
        )

    @jax.checkpoint
    def experts(rows):
        with jax.named_scope("out"):
            return ep.ep_combine(_CFG, handle, counts, jnp.sin(rows), idx.shape[0])

    return (experts(recv * recv_weights[..., None]) ** 2).sum()


def main(folder: str) -> None:
    mesh = Mesh(np.array(jax.devices()), ("ep",))
    resource = ep.MeshResource(ep_resource="ep")
    with jax.set_mesh(mesh), ep.global_shard_guard(resource):
        ep.ep_bootstrap(
            world_size=2,
            rank=0,
            num_experts=4,
            max_tokens_per_rank=_TOKENS,
            recv_capacity_per_rank=_CAPACITY,
            hidden_dim=_HIDDEN,
            max_token_dtype=jnp.float32,
        )
        train_step = jax.jit(jax.value_and_grad(_loss))
        tokens = jnp.ones((2 * _TOKENS, _HIDDEN), jnp.float32)
        weights = jnp.full((2 * _TOKENS, 2), 0.5, jnp.float32)
        idx = jnp.tile(jnp.array([[0, 3]], jnp.int32), (2 * _TOKENS, 1))
        jax.block_until_ready(train_step(tokens, weights, idx))
        ended = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
        with jax.profiler.trace(folder):
            print("running", flush=True)
            while not ended.is_set():
                jax.block_until_ready(train_step(tokens, weights, idx))
                time.sleep(_PAUSE_SECONDS)
        ep.ep_finalize()


if __name__ == "__main__":
    main(sys.argv[1])
