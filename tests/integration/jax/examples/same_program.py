"""Programs hold no communicator and no devices: a group comes back as another job, and moves to other devices.

    python same_program.py                one process, four devices, each a rank

The same jitted step runs on a group, then on the group made anew as another job, for which nothing is traced, lowered or
compiled; then on a mesh of the same shape whose devices stand in another order, for which XLA compiles, but nothing is traced
or lowered. All that is counted, and printed. Exit status 0: the counts and the results are as they should be.
"""

import collections
import os
import sys

_RANKS, _TOKENS, _HIDDEN, _TOP_K, _SLOTS = 4, 16, 32, 2, 128
_EVENTS = {
    "lowered": "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "compiled": "/jax/core/compile/backend_compile_duration",
}


def main() -> int:
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={_RANKS}"
    import epd.jax as ep
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    seen = collections.Counter()
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: seen.update([event])
    )
    layer = ep.EpLayerConfig(top_k=_TOP_K)
    resource = ep.MeshResource(ep_resource="ep")
    rng = np.random.default_rng(0)
    rows = _RANKS * _TOKENS
    idx = rng.integers(0, 2 * _RANKS, (rows, _TOP_K)).astype(np.int32)
    tokens = rng.standard_normal((rows, _HIDDEN)).astype(np.float32)
    weights = rng.random((rows, _TOP_K)).astype(np.float32)

    @jax.jit
    def step(idx, tokens, weights):
        seen["traced"] += 1
        recv, recv_weights, handle, counts, _ = ep.ep_dispatch(layer, idx, tokens, weights, _SLOTS)
        experts = recv * recv_weights[..., None]
        return ep.ep_combine(layer, handle, counts, experts, rows)

    def run(what: str, devices, job: str) -> dict[str, int]:
        mesh = Mesh(devices, ("ep",))
        os.environ["EPD_JOB"] = job
        given = [
            jax.device_put(a, NamedSharding(mesh, PartitionSpec("ep")))
            for a in (idx, tokens, weights)
        ]
        with jax.set_mesh(mesh), ep.global_shard_guard(resource):
            ep.ep_bootstrap(_RANKS, 0, 2 * _RANKS, _TOKENS, _SLOTS, _HIDDEN, "float32")
            seen.clear()
            out = np.asarray(step(*given))
            counts = {"traced": seen["traced"]}
            counts |= {name: seen[event] for name, event in _EVENTS.items()}
            ep.ep_finalize()
        np.testing.assert_allclose(
            out, tokens * weights.sum(1, keepdims=True), rtol=1e-5, atol=1e-6
        )
        print(f"{what}: {', '.join(f'{count} {name}' for name, count in counts.items())}")
        return counts

    devices = np.array(jax.devices())
    first = run("the first time", devices, "same-program-1")
    anew = run("the group made anew, as another job", devices, "same-program-2")
    moved = run("on the devices in another order", devices[::-1], "same-program-2")
    good = all(first.values()) and not any(anew.values())
    good = good and moved["traced"] == moved["lowered"] == 0
    print(f"same_program: {'passed' if good else 'FAILED'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
