"""One rank of a JAX job whose ranks are processes that may share one GPU; started by api_ranks.py. Prints one JSON object.

Arguments: rank, ranks, steps. A layer forward and backward, jitted once, with other rows and routes at every step, against
NumPy; then a bad index, which is an error on every rank, and a good step.
"""

import json
import os
import sys

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
import reference
from epd.jax import _ffi

_TOKENS, _CAPACITY, _HIDDEN, _TOP_K, _ALIGNMENT = 48, 512, 256, 4, 8
_LAYER = ep.EpLayerConfig(top_k=_TOP_K, dispatch_output_per_expert_alignment=_ALIGNMENT)


def _join(ranks: int, rank: int) -> ep.Group:
    return ep.Group.join(
        "gpu",
        ranks,
        rank,
        num_experts=4 * ranks,
        max_tokens_per_rank=_TOKENS,
        recv_capacity_per_rank=_CAPACITY * ranks,
        hidden_dim=_HIDDEN,
        max_token_dtype=jnp.float32,
        job="api-ranks",
    )


def _graded(group: ep.Group, capacity: int):
    """A step: what the layer gives on the way, and the gradient of its tokens."""

    def loss(tokens, idx, weights):
        recv, recv_weights, handle, counts, total = group.dispatch(
            _LAYER, idx, tokens, weights, capacity
        )
        out = group.combine(_LAYER, handle, recv * recv_weights[..., None], len(tokens))
        return (out * out).sum(), (recv, recv_weights, counts, total, out)

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


def _data(ranks: int, seed: int):
    """Of all ranks; small integers, whose sums are the same in any order."""
    rng = np.random.default_rng(seed)
    idx = rng.integers(-1, 4 * ranks, (ranks, _TOKENS, _TOP_K)).astype(np.int32)
    tokens = rng.integers(-8, 9, (ranks, _TOKENS, _HIDDEN)).astype(np.float32)
    return idx, tokens, rng.integers(1, 5, idx.shape).astype(np.float32)


def _wanted(ranks: int, seed: int, capacity: int):
    idx, tokens, weights = _data(ranks, seed)
    plan = reference.plan(idx, 4 * ranks, _ALIGNMENT)
    recv = reference.scatter(plan, tokens, capacity)
    recv_weights = reference.scatter_weights(plan, weights, capacity)
    out = reference.gather(plan, recv * recv_weights[..., None])
    back = reference.scatter(plan, 2 * out, capacity) * recv_weights[..., None]
    return (recv, recv_weights, plan.token_counts, plan.total, out), reference.gather(plan, back)


def _step(graded, ranks: int, rank: int, seed: int, capacity: int) -> None:
    """AssertionError where something differs from NumPy by a bit."""
    idx, tokens, weights = (array[rank] for array in _data(ranks, seed))
    (_, results), gradient = graded(tokens, idx, weights)
    jax.block_until_ready(gradient)
    ep.check()
    wanted, wanted_gradient = _wanted(ranks, seed, capacity)
    names = ("rows", "weights", "token counts", "total", "sums")
    for name, got, want in zip(names, results, wanted, strict=True):
        np.testing.assert_array_equal(
            np.asarray(got).reshape(want[rank].shape), want[rank], f"step {seed}: {name}"
        )
    np.testing.assert_array_equal(
        np.asarray(gradient), wanted_gradient[rank], f"step {seed}: gradient"
    )


def _bad_index(group: ep.Group, ranks: int, rank: int) -> str:
    """What this rank hears when rank 0 names an expert that there is none of."""
    prepare = jax.jit(lambda idx: group.prepare(_LAYER, idx)[0])
    idx = np.full((_TOKENS, _TOP_K), 4 * ranks if rank == 0 else 0, np.int32)
    try:
        jax.block_until_ready(prepare(idx))
        ep.check()
    except Exception as error:  # noqa: BLE001 - JAX raises its own types where a handler fails.
        return str(error)
    return ""


def main() -> int:
    rank, ranks, steps = (int(argument) for argument in sys.argv[1:4])
    platform = jax.devices()[0].platform
    capacity = _CAPACITY * ranks
    with _join(ranks, rank) as group:
        graded = _graded(group, capacity)
        before = _ffi.cuda_calls()
        for seed in range(steps):
            _step(graded, ranks, rank, seed, capacity)
        calls = _ffi.cuda_calls() - before
        if platform in ("gpu", "cuda"):
            # Out of command buffers each step calls each of its five handlers; replayed, only the first few do.
            replays = os.environ.get("EPD_COMMAND_BUFFERS") != "off"
            assert calls < 5 * steps if replays else calls == 5 * steps, f"{calls} calls"
        heard = _bad_index(group, ranks, rank)
        assert "INVALID_ARGUMENT" in heard and "rank=0" in heard, heard or "no error at all"
        _step(graded, ranks, rank, steps, capacity)
    said = {"platform": platform, "steps": steps + 1, "calls": calls, "heard": heard[:300]}
    print(json.dumps(said), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
