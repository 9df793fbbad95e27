"""dispatch and combine through epd.jax on all of a machine's GPUs, forward and backward, against ragged_all_to_all.

Started by api_ranks.py; prints one JSON object with a record (bench_record.py) for each shape and implementation. One
process, a rank per GPU; bfloat16, top-8, zones unpadded. Argument: what the two shapes' sizes are divided by (1; more where
it is only tried).

Two clocks: a call with its results awaited, as a program sees it, and the period of a dispatch and combine in a chain of
them inside one program, which is the device's own time once the chain is longer than what it takes to start it; where XLA
takes calls into command buffers the chain is a replayed graph. What comes back of tokens that no expert has changed is
top-8 times the tokens, exactly in bfloat16: that is looked at before and after everything that is timed.
"""

import datetime
import functools
import json
import os
import pathlib
import subprocess
import sys
import time

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from bench_record import Place, Workload, record, row
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

_TOP_K, _LOCAL_EXPERTS, _HIDDEN = 8, 32, 7168
_SHAPES = {"decode 128": 128, "train 4096": 4096}
_WARM, _RUNS = 5, 40
# Pairs in a chain. Each makes the rows _TOP_K times larger, and bfloat16 ends at 2**127.
_CHAIN = 8
_HERE = pathlib.Path(__file__).resolve().parent


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


def _times(step, *arguments) -> list[float]:
    """Microseconds of single calls, results awaited."""
    taken = []
    for run in range(_WARM + _RUNS):
        begin = time.perf_counter()
        jax.block_until_ready(step(*arguments))
        if run >= _WARM:
            taken.append(1e6 * (time.perf_counter() - begin))
    return taken


def _chain(step):
    """_CHAIN pairs, each behind the one before, in one program."""

    def chained(tokens, idx):
        return jax.lax.scan(lambda t, _: (step(t, idx), None), tokens, length=_CHAIN)[0]

    return chained


def _right(forward, tokens, idx) -> bool:
    got = np.asarray(forward(tokens, idx), np.float32)
    return bool(np.array_equal(got, np.asarray(tokens, np.float32) * _TOP_K))


def _measure(step, tokens, idx) -> tuple[list[dict], dict[str, bool]]:
    """A step's rows - one call, with its backward, in a chain - and whether it was right before and after."""
    forward, chained = jax.jit(step), jax.jit(_chain(step))
    both = jax.jit(jax.grad(lambda t, i: (step(t, i).astype(jnp.float32) ** 2).sum()))
    before = _right(forward, tokens, idx)
    period = [taken / _CHAIN for taken in _times(chained, tokens, idx)]
    rows = [
        row("forward", _times(forward, tokens, idx)),
        row("forward_backward", _times(both, tokens, idx)),
        row("chained pair period", period, pairs=_CHAIN),
    ]
    return rows, {"before": before, "after": _right(forward, tokens, idx)}


def _commit() -> str:
    """Of the bundle, or of the checkout."""
    bundled = _HERE.parents[1] / "COMMIT"
    if bundled.exists():
        return bundled.read_text().strip()
    asked = subprocess.run(
        ["git", "-C", _HERE, "rev-parse", "HEAD"], check=False, text=True, capture_output=True
    )
    return asked.stdout.strip() or "unknown"


def _place(devices: list[jax.Device]) -> Place:
    return Place(
        topology={"nodes": 1, "ranks": len(devices), "device": devices[0].device_kind},
        runtime={
            "jax": jax.__version__,
            "platform": devices[0].platform,
            "platform_version": devices[0].client.platform_version,
            "command_buffers": os.environ.get("EPD_COMMAND_BUFFERS", ""),
        },
        provenance={
            "commit": _commit(),
            "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        },
    )


def _bench(mesh: Mesh, group: ep.Group, name: str, count: int, ours: dict) -> list[dict]:
    """The records of one shape: through epd, and through XLA's collective."""
    ranks = mesh.size
    capacity = ranks * count * _TOP_K
    rng = np.random.default_rng(count)
    sharding = NamedSharding(mesh, P("ep"))
    tokens = rng.integers(-4, 5, (ranks * count, group.config.hidden_dim)).astype(jnp.bfloat16)
    # A token's experts are distinct, as a router's are.
    idx = np.argsort(rng.random((ranks * count, ranks * _LOCAL_EXPERTS)))[:, :_TOP_K]
    live = int(np.bincount(idx.reshape(-1) // _LOCAL_EXPERTS, minlength=ranks).max())
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
    workload = Workload(
        name=name,
        ranks=ranks,
        tokens_per_rank=count,
        hidden=tokens.shape[1],
        top_k=_TOP_K,
        num_experts=ranks * _LOCAL_EXPERTS,
        live_rows=live,
        capacity=capacity,
    )
    place = _place(jax.devices())
    rows, oracle = _measure(through_epd, tokens, idx)
    ep.check()
    records = [record(workload, {"name": "epd", **ours}, place, rows, oracle)]
    theirs, problem = {"name": "ragged_all_to_all"}, ""
    try:
        rows, oracle = _measure(through_xla, tokens, idx)
    except (NotImplementedError, jax.errors.JaxRuntimeError) as error:
        rows, oracle, problem = [], {}, f"does not run here: {str(error)[:200]}"
    return [*records, record(workload, theirs, place, rows, oracle, problem)]


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
            ours = {key: result[key] for key in ("backend", "executor")}
            records = [
                one
                for name, count in counts.items()
                for one in _bench(mesh, group, name, count, ours)
            ]
    print(json.dumps(result | {"records": records}), flush=True)
    wrong = [one["identity"] for one in records if one["outcome"]["status"] == "wrong results"]
    if wrong:
        print(f"wrong results: {wrong}", file=sys.stderr, flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
