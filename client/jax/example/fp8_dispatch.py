"""Sends tokens to their experts as float8_e4m3 rows with one float32 scale for every 128 values, under one plan.

    python fp8_dispatch.py                four ranks, a process each
    python fp8_dispatch.py --ranks 2

It starts its processes itself; they never initialise jax.distributed, but join a group by name and rank. Half of bfloat16's
bytes and a scale per 128 values travel.
"""

import json
import sys

import launch

_BLOCK = 128  # Values that share a scale.
_TOKENS, _HIDDEN, _TOP_K, _SLOTS = 64, 512, 2, 1024


def quantise(rows):
    """float32 [T, H] -> float8_e4m3fn [T, H] and float32 scales [T, H / 128]: row = quantised x its scale."""
    import jax.numpy as jnp

    blocks = rows.reshape(*rows.shape[:-1], -1, _BLOCK)
    largest = jnp.abs(blocks).max(-1, keepdims=True)
    scales = jnp.where(largest > 0, largest / float(jnp.finfo(jnp.float8_e4m3fn).max), 1)
    quantised = (blocks / scales).astype(jnp.float8_e4m3fn)
    return {"rows": quantised.reshape(rows.shape), "scales": scales[..., 0]}


def dequantise(payload):
    """The rows of ``quantise``, float32."""
    import jax.numpy as jnp

    rows = payload["rows"].astype(jnp.float32)
    return (rows.reshape(*rows.shape[:-1], -1, _BLOCK) * payload["scales"][..., None]).reshape(
        rows.shape
    )


def exchange(ranks: int, rank: int, idx, tokens, weights):
    """-> the rows that this rank receives, dequantised; how many there are; what it sent."""
    import epd.jax as ep
    import jax
    import ml_dtypes

    layer = ep.EpLayerConfig(top_k=_TOP_K)
    group = ep.Group.join(
        "fp8",
        ranks,
        rank,
        num_experts=2 * ranks,
        max_tokens_per_rank=_TOKENS,
        recv_capacity_per_rank=_SLOTS,
        hidden_dim=_HIDDEN,
        max_token_dtype=ml_dtypes.float8_e4m3fn,
    )

    @jax.jit
    def step(idx, tokens, weights):
        payload = quantise(tokens)
        received, _, handle, _, total = group.dispatch(layer, idx, payload, weights, _SLOTS)
        return dequantise(received)[0], total[0, 0], payload

    with group:
        return jax.block_until_ready(step(idx, tokens, weights))


def problem(ranks: int):
    """-> indices, tokens and weights of all ranks."""
    import numpy as np

    rng = np.random.default_rng(0)
    idx = rng.integers(0, 2 * ranks, (ranks, _TOKENS, _TOP_K)).astype(np.int32)
    tokens = rng.standard_normal((ranks, _TOKENS, _HIDDEN)).astype(np.float32)
    return idx, tokens, rng.random(idx.shape).astype(np.float32)


def run_rank(ranks: int, rank: int, coordinator: str) -> int:
    del coordinator  # Nobody needs one.
    _, total, payload = exchange(ranks, rank, *(part[rank] for part in problem(ranks)))
    sizes = {name: leaf.nbytes for name, leaf in payload.items()}
    print(f"rank {rank}: {total} rows received; sent {json.dumps(sizes)} bytes", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(launch.main(__file__, __doc__, run_rank, ranks=4))
