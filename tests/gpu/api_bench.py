"""dispatch and combine through epd.jax on all of a machine's GPUs, forward and backward, against ragged_all_to_all.

Started by api_ranks.py; prints one JSON object. One process, a rank per GPU; bfloat16, top-8, zones unpadded. Argument: what
the two shapes' sizes are divided by (1; more where it is only tried).
"""

import functools
import json
import os
import sys
import time

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

_TOP_K, _LOCAL_EXPERTS, _HIDDEN = 8, 32, 7168
_SHAPES = {"decode 128": 128, "train 4096": 4096}
_WARM, _RUNS = 5, 40
# Sums of bfloat16 rows in another order.
_TOLERANCE = 2**-6


def _exclusive(sizes: jax.Array, axis: int = 0) -> jax.Array:
    return jnp.cumsum(sizes, axis) - sizes


def _ragged(tokens: jax.Array, idx: jax.Array, capacity: int, ranks: int) -> jax.Array:
    """What a user would write without epd, of one device: rows to their experts, expert-major, and the sums back."""
    me, experts = jax.lax.axis_index("ep"), ranks * _LOCAL_EXPERTS
    flat = idx.reshape(-1)
    order = jnp.argsort(flat, stable=True)
    counts = jnp.bincount(flat, length=experts).astype(jnp.int32)
    everybodys = jax.lax.all_gather(counts, "ep")
    before = _exclusive(everybodys)
    zones = _exclusive(everybodys.sum(0).reshape(ranks, _LOCAL_EXPERTS), 1).reshape(-1)
    here = me * _LOCAL_EXPERTS
    mine = functools.partial(jax.lax.dynamic_slice_in_dim, start_index=here, axis=1)
    came = mine(everybodys, slice_size=_LOCAL_EXPERTS).reshape(-1)
    at = mine((zones + before), slice_size=_LOCAL_EXPERTS).reshape(-1)
    at_home = mine(_exclusive(everybodys, 1), slice_size=_LOCAL_EXPERTS).reshape(-1)
    rows = tokens[order // _TOP_K]
    recv = jax.lax.ragged_all_to_all(
        rows,
        jnp.zeros((capacity, tokens.shape[1]), tokens.dtype),
        _exclusive(counts),
        counts,
        zones + before[me],
        came,
        axis_name="ep",
    )
    back = jax.lax.ragged_all_to_all(
        recv, jnp.zeros_like(rows), at, came, at_home, counts, axis_name="ep"
    )
    sums = jnp.zeros(tokens.shape, jnp.float32).at[order // _TOP_K].add(back.astype(jnp.float32))
    return sums.astype(tokens.dtype)


def _timed(step, *arguments) -> dict[str, float]:
    """Microseconds of one call, results awaited."""
    taken = []
    for run in range(_WARM + _RUNS):
        begin = time.perf_counter()
        jax.block_until_ready(step(*arguments))
        if run >= _WARM:
            taken.append(1e6 * (time.perf_counter() - begin))
    p50, p99 = np.percentile(taken, [50, 99])
    return {"p50_us": round(float(p50), 1), "p99_us": round(float(p99), 1)}


def _measure(step, tokens, idx) -> tuple[dict, jax.Array]:
    """A step's times, forward alone and with its backward, and what it gives."""
    forward = jax.jit(step)
    both = jax.jit(jax.grad(lambda t, i: (step(t, i).astype(jnp.float32) ** 2).sum()))
    return {
        "forward": _timed(forward, tokens, idx),
        "forward_backward": _timed(both, tokens, idx),
    }, forward(tokens, idx)


def _bench(mesh: Mesh, group: ep.Group, name: str, count: int, capacity: int) -> dict:
    ranks = mesh.size
    rng = np.random.default_rng(count)
    sharding = NamedSharding(mesh, P("ep"))
    tokens = rng.integers(-4, 5, (ranks * count, group.config.hidden_dim)).astype(jnp.bfloat16)
    # A token's experts are distinct, as a router's are.
    idx = np.argsort(rng.random((ranks * count, ranks * _LOCAL_EXPERTS)))[:, :_TOP_K]
    tokens = jax.device_put(tokens, sharding)
    idx = jax.device_put(idx.astype(np.int32), sharding)
    layer = ep.EpLayerConfig(top_k=_TOP_K)

    def through_epd(tokens, idx):
        weights = jnp.ones(idx.shape, jnp.float32)
        recv, _, handle, counts, _ = group.dispatch(layer, idx, tokens, weights, capacity)
        return group.combine(layer, handle, recv, tokens.shape[0])

    spec = P("ep")
    through_xla = jax.shard_map(
        functools.partial(_ragged, capacity=capacity, ranks=ranks),
        mesh=mesh,
        in_specs=(spec, spec),
        out_specs=spec,
        check_vma=False,
    )
    measured = {"shape": name, "hidden": tokens.shape[1], "tokens_per_rank": count}
    measured["epd"], got = _measure(through_epd, tokens, idx)
    ep.check()
    try:
        measured["ragged_all_to_all"], want = _measure(through_xla, tokens, idx)
    except (NotImplementedError, jax.errors.JaxRuntimeError) as error:
        measured["ragged_all_to_all"] = f"does not run here: {str(error)[:200]}"
    else:
        got, want = (np.asarray(array, np.float32) for array in (got, want))
        np.testing.assert_allclose(got, want, _TOLERANCE, _TOLERANCE)
    return measured


def main() -> int:
    divisor = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    devices = jax.devices()
    on_gpus = devices[0].platform in ("gpu", "cuda")
    if on_gpus:
        ep.enable_cuda()
    mesh = Mesh(np.array(devices), ("ep",))
    counts = {name: max(1, count // divisor) for name, count in _SHAPES.items()}
    capacity = len(devices) * max(counts.values()) * _TOP_K
    result = {
        "device": devices[0].device_kind,
        "ranks": len(devices),
        "backend": os.environ["EPD_BACKEND"] if on_gpus else "cpu",
        "executor": os.environ["EPD_EXECUTOR"],
    }
    with jax.set_mesh(mesh):
        try:
            group = ep.Group(
                "bench",
                resource=ep.MeshResource(ep_resource="ep"),
                num_experts=len(devices) * _LOCAL_EXPERTS,
                max_tokens_per_rank=max(counts.values()),
                recv_capacity_per_rank=capacity,
                hidden_dim=max(16, _HIDDEN // divisor),
                max_token_dtype=jnp.bfloat16,
                job="api-bench",
            )
        except ep.EpError as error:
            print(json.dumps(result | {"skipped": str(error)}), flush=True)
            return 0
        with group:
            result["shapes"] = [
                _bench(mesh, group, name, count, len(devices) * count * _TOP_K)
                for name, count in counts.items()
            ]
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
