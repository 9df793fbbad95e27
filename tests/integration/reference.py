"""What the five operations mean, in NumPy, one domain at a time: plain, slow, and the oracle of every backend.

Arrays have a leading dimension of ranks: topk_idx [R, T, K], tokens [R, T, H], topk_weights [R, T, K].
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Plan:
    """Where every route goes. A route is (source rank, token, k)."""

    destination: np.ndarray  # [R, T, K] rank, -1: no route.
    slot: np.ndarray  # [R, T, K] slot there, before any drop.
    token_counts: np.ndarray  # [R, n] zone lengths, padding included; n: most experts of a rank.
    total: np.ndarray  # [R, 1] their sums.


def plan(topk_idx: np.ndarray, num_experts: int, alignment: int = 0, expert_owner=None) -> Plan:
    """Zones by expert, in order, each padded to the alignment; inside a zone by source rank, token, k.

    ``expert_owner`` [E]: the rank of each expert; None: contiguous blocks.
    """
    ranks, tokens, top_k = topk_idx.shape
    step = max(alignment, 1)
    owners = np.repeat(np.arange(ranks), num_experts // ranks)
    if expert_owner is not None:
        owners = np.asarray(expert_owner)
    local = np.bincount(owners, minlength=ranks).max()
    destination = np.full(topk_idx.shape, -1, np.int64)
    slot = np.zeros(topk_idx.shape, np.int64)
    counts = np.zeros((ranks, local), np.int32)
    for owner in range(ranks):
        begin = 0
        for e, expert in enumerate(np.flatnonzero(owners == owner)):
            next_slot = begin
            for source, t, k in np.argwhere(topk_idx == expert):
                destination[source, t, k], slot[source, t, k] = owner, next_slot
                next_slot += 1
            end = begin + -(-(next_slot - begin) // step) * step
            counts[owner, e], begin = end - begin, end
    assert tokens >= 0 and top_k > 0
    return Plan(destination, slot, counts, counts.sum(1, keepdims=True).astype(np.int32))


def _routes(p: Plan, capacity: int):
    """(source, token, k, owner, slot) of the routes that are not dropped."""
    for source, t, k in np.argwhere(p.destination >= 0):
        if p.slot[source, t, k] < capacity:
            yield source, t, k, p.destination[source, t, k], p.slot[source, t, k]


def scatter(p: Plan, rows: np.ndarray, capacity: int) -> np.ndarray:
    """Dispatch, and the gradient of combine: [R, T, H] -> [R, C, H], zeros where no route leads."""
    out = np.zeros((rows.shape[0], capacity, rows.shape[2]), rows.dtype)
    for source, t, _, owner, slot in _routes(p, capacity):
        out[owner, slot] = rows[source, t]
    return out


def scatter_weights(p: Plan, weights: np.ndarray, capacity: int) -> np.ndarray:
    """[R, T, K] -> [R, C]."""
    out = np.zeros((weights.shape[0], capacity), np.float32)
    for source, t, k, owner, slot in _routes(p, capacity):
        out[owner, slot] = weights[source, t, k]
    return out


def gather(p: Plan, rows: np.ndarray) -> np.ndarray:
    """Combine, and the gradient of dispatch: [R, C, H] -> [R, T, H]: float32 sums in k order, rounded once."""
    ranks, tokens, _ = p.destination.shape
    out = np.zeros((ranks, tokens, rows.shape[2]), np.float32)
    for source, t, _, owner, slot in _routes(p, rows.shape[1]):
        out[source, t] += rows[owner, slot].astype(np.float32)
    return out.astype(rows.dtype)


def gather_weights(p: Plan, weights: np.ndarray) -> np.ndarray:
    """The gradient of the weights: [R, C] -> [R, T, K]."""
    out = np.zeros(p.destination.shape, np.float32)
    for source, t, k, owner, slot in _routes(p, weights.shape[1]):
        out[source, t, k] = weights[owner, slot]
    return out
