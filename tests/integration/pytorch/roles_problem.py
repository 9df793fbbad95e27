"""One rank has tokens, the other one experts: what both frameworks compute, in numbers that float32 holds exactly."""

import numpy as np

TOKENS, HIDDEN, EXPERTS, TOP_K, CAPACITY, STEPS = 6, 8, 4, 2, 16, 3
SIZES = {
    "num_experts": EXPERTS,
    "max_tokens_per_rank": TOKENS,
    "recv_capacity_per_rank": CAPACITY,
    "hidden_dim": HIDDEN,
    "expert_owner": [1] * EXPERTS,
}
_random = np.random.default_rng(5)
IDX = np.array([_random.permutation(EXPERTS)[:TOP_K] for _ in range(TOKENS)], np.int32)
IDX[0, 1] = -1
ROWS = _random.integers(-4, 5, (TOKENS, HIDDEN)).astype(np.float32)
WEIGHTS = _random.integers(1, 5, (TOKENS, TOP_K)).astype(np.float32) / 4
COEFFICIENTS = _random.integers(-2, 3, (TOKENS, HIDDEN)).astype(np.float32)
SCALES = np.array([1, 2, -1, 0.5], np.float32)


def save(folder, role, **arrays):
    np.savez(
        f"{folder}/{role}.npz", **{name: np.asarray(a, np.float32) for name, a in arrays.items()}
    )
