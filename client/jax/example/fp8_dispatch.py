"""Sends tokens to their experts as float8_e4m3 rows with one float32 scale for every 128 values, under one plan.

    python fp8_dispatch.py                four ranks, a process each
    python fp8_dispatch.py --ranks 2

It starts its processes itself; they never initialise jax.distributed, but join a group by name and rank. What arrives is
dequantised and compared with the same computation in NumPy; exit status 0: equal. A quarter of bfloat16's bytes and a
scale travel in place of float32 rows.
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


def expected(ranks: int, rank: int, idx, tokens):
    """What a rank receives, in NumPy: expert-major, then by source rank, token, k."""
    import numpy as np

    experts_per_rank = 2
    received = []
    for expert in range(rank * experts_per_rank, (rank + 1) * experts_per_rank):
        for source in range(ranks):
            received += [tokens[source][t] for t, _ in np.argwhere(idx[source] == expert)]
    return np.stack(received)


def run_rank(ranks: int, rank: int, coordinator: str) -> int:
    del coordinator  # Nobody needs one.
    import epd.jax as ep
    import jax
    import ml_dtypes
    import numpy as np

    rng = np.random.default_rng(0)
    idx = rng.integers(0, 2 * ranks, (ranks, _TOKENS, _TOP_K)).astype(np.int32)
    tokens = rng.standard_normal((ranks, _TOKENS, _HIDDEN)).astype(np.float32)
    weights = rng.random(idx.shape).astype(np.float32)
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
        job="fp8-example",
    )

    @jax.jit
    def step(idx, tokens, weights):
        payload = quantise(tokens)
        received, _, handle, _, total = group.dispatch(layer, idx, payload, weights, _SLOTS)
        return dequantise(received), total, jax.tree.map(lambda leaf: leaf, payload)

    with group:
        rows, total, payload = jax.block_until_ready(step(idx[rank], tokens[rank], weights[rank]))
    sent = []
    for source in range(ranks):
        blocks = tokens[source].reshape(_TOKENS, -1, _BLOCK)
        scales = np.abs(blocks).max(-1, keepdims=True) / np.float32(448)
        quantised = (blocks / scales).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
        sent.append((quantised * scales).reshape(_TOKENS, _HIDDEN))
    want = expected(ranks, rank, idx, sent)
    got, live = np.asarray(rows)[0], int(np.asarray(total)[0, 0])
    error = np.abs(got[:live] - want).max() if live == len(want) else np.inf
    good = error <= 1e-6 * np.abs(want).max() and not got[live:].any()
    lost = np.abs(want - expected(ranks, rank, idx, tokens)).max()
    sizes = {name: leaf.nbytes for name, leaf in payload.items()}
    if rank == 0 or not good:
        print(
            f"rank {rank}: {live} rows received, {'equal to' if good else 'DIFFERENT from'} NumPy's (largest difference"
            f" {error:.1e}); quantisation itself changed values by at most {lost:.2f}; sent {json.dumps(sizes)} bytes"
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(launch.main(__file__, __doc__, run_rank, ranks=4))
