"""client/jax/example/fp8_dispatch.py: what arrives, dequantised, against the same computation in NumPy."""

import sys

import fp8_dispatch as example
import launch
import ml_dtypes
import numpy as np


def _expected(rank: int, idx, tokens):
    """What a rank receives: expert-major, then by source rank, token, k."""
    received = []
    for expert in range(2 * rank, 2 * rank + 2):
        for source in range(len(idx)):
            received += [tokens[source][t] for t, _ in np.argwhere(idx[source] == expert)]
    return np.stack(received)


def run_rank(ranks: int, rank: int, coordinator: str) -> int:
    del coordinator
    idx, tokens, weights = example.problem(ranks)
    rows, total, _ = example.exchange(ranks, rank, idx[rank], tokens[rank], weights[rank])
    blocks = tokens.reshape(*tokens.shape[:-1], -1, 128)
    scales = np.abs(blocks).max(-1, keepdims=True) / np.float32(448)
    quantised = (blocks / scales).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    want = _expected(rank, idx, (quantised * scales).reshape(tokens.shape))
    got, live = np.asarray(rows), int(total)
    error = np.abs(got[:live] - want).max() if live == len(want) else np.inf
    good = error <= 1e-6 * np.abs(want).max() and not got[live:].any()
    print(
        f"rank {rank}: {'equal to' if good else 'DIFFERENT from'} NumPy's, by at most {error:.1e}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(launch.main(__file__, __doc__, run_rank, ranks=4))
