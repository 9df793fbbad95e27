"""Two jobs that share one group's ranks and staging, and nothing else: one loses a rank, the other does not notice.

    python tenants.py                     four processes: job "a" and job "b" with two ranks each

Both have the same EPD_JOB (launch.py sets one) and group name, and each its own EPD_TENANT; their specs must be equal. Job b's last rank ends in the
middle of the run, without a word: b's other ranks get an error that names it, a's results stay right to the end. While it
runs, ``epctl ranks`` shows whose rank is whose. Exit status 0: all of that was so.
"""

import os
import sys

import launch

_TOKENS, _HIDDEN, _SLOTS, _TOP_K, _STEPS = 32, 64, 256, 2, 40


def steps(group, rank: int, seed: int, lost: bool):
    """Sends a job's own tokens through experts that double them; ends without a word half-way if ``lost``. -> steps made."""
    import epd.jax as ep
    import jax
    import numpy as np

    layer = ep.EpLayerConfig(top_k=_TOP_K)

    @jax.jit
    def step(idx, tokens, weights):
        recv, recv_weights, handle, counts, _ = group.dispatch(layer, idx, tokens, weights, _SLOTS)
        return group.combine(layer, handle, 2 * recv * recv_weights[..., None], len(tokens))

    rng = np.random.default_rng((seed, rank))
    for number in range(_STEPS):
        if lost and number == _STEPS // 2:
            os._exit(0)
        idx = rng.integers(0, group.config.num_experts, (_TOKENS, _TOP_K)).astype(np.int32)
        tokens = rng.standard_normal((_TOKENS, _HIDDEN)).astype(np.float32)
        weights = rng.random((_TOKENS, _TOP_K)).astype(np.float32)
        with ep.ep_errors():
            out = np.asarray(step(idx, tokens, weights))
        np.testing.assert_allclose(out, 2 * tokens * weights.sum(1, keepdims=True), rtol=1e-5)
    return _STEPS


def run_rank(processes: int, process: int, coordinator: str) -> int:
    del coordinator  # Nobody needs one.
    ranks = processes // 2
    tenant, rank = "ab"[process // ranks], process % ranks
    os.environ["EPD_TENANT"] = tenant
    import epd.jax as ep

    group = ep.Group.join(
        "shared",
        ranks,
        rank,
        num_experts=2 * ranks,
        max_tokens_per_rank=_TOKENS,
        recv_capacity_per_rank=_SLOTS,
        hidden_dim=_HIDDEN,
        max_token_dtype="float32",
    )
    with group:
        try:
            made = steps(group, rank, ord(tenant), lost=tenant == "b" and rank == ranks - 1)
        except ep.EpError as error:
            good = tenant == "b" and error.code == "UNAVAILABLE"
            print(f"job {tenant}, rank {rank}: {error}", flush=True)
            return 0 if good else 1
    print(f"job {tenant}, rank {rank}: all {made} steps right", flush=True)
    return 0 if tenant == "a" else 1


if __name__ == "__main__":
    sys.exit(launch.main(__file__, __doc__, run_rank, ranks=4, least=4))
