"""One program on four ranks, in whatever processes: a process of four devices, two of two, three devices and one, four of one.

    python process_shapes.py

A rank is a device's place in the mesh, wherever the device lives. Each rank's results and gradients are compared with a dense
layer, and a digest of their bits is printed: a rank's is the same in every shape. Exit status 0: equal to the dense layer.
"""

import argparse
import hashlib
import sys

import launch

_SHAPES = ("4", "2,2", "3,1", "1,1,1,1")  # Devices of each process.
_RANKS, _EXPERTS, _TOKENS, _HIDDEN, _TOP_K, _SLOTS = 4, 8, 16, 32, 2, 128
_TOLERANCE = 1e-4


def gradients(mesh, idx, tokens, weights):
    """Every expert is a tanh. -> the layer's results, and the gradients of half of their square: [ranks * T, H] both."""
    import epd.jax as ep
    import jax
    import jax.numpy as jnp

    layer = ep.EpLayerConfig(top_k=_TOP_K)

    def out_of(tokens, idx, weights):
        recv, recv_weights, handle, counts, _ = ep.ep_dispatch(layer, idx, tokens, weights, _SLOTS)
        experts = jnp.tanh(recv) * recv_weights[..., None]
        return ep.ep_combine(layer, handle, counts, experts, len(idx))

    @jax.jit
    def both(tokens, idx, weights):
        out, pull = jax.vjp(lambda tokens: out_of(tokens, idx, weights), tokens)
        return out, pull(out)[0]

    with jax.set_mesh(mesh), ep.global_shard_guard(ep.MeshResource(ep_resource="ep")):
        ep.ep_bootstrap(_RANKS, jax.process_index(), _EXPERTS, _TOKENS, _SLOTS, _HIDDEN, "float32")
        results = jax.block_until_ready(both(tokens, idx, weights))
        ep.ep_finalize()
    return results


def run_process(shape: list[int], process: int, coordinator: str) -> int:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.config.update("jax_num_cpu_devices", shape[process])
    if len(shape) > 1:
        jax.distributed.initialize(coordinator, len(shape), process)
    mesh = Mesh(np.array(jax.devices()), ("ep",))
    sharding = NamedSharding(mesh, PartitionSpec("ep"))
    rng = np.random.default_rng(0)
    rows = _RANKS * _TOKENS
    given = (
        rng.integers(0, _EXPERTS, (rows, _TOP_K)).astype(np.int32),
        rng.standard_normal((rows, _HIDDEN)).astype(np.float32),
        rng.random((rows, _TOP_K)).astype(np.float32),
    )
    parts = [jax.make_array_from_callback(a.shape, sharding, a.__getitem__) for a in given]
    results = gradients(mesh, parts[0], *parts[1:])

    want, pull = jax.vjp(lambda x: jnp.tanh(x) * given[2].sum(1, keepdims=True), given[1])
    good, here = True, {}
    for got, dense in zip(results, (want, pull(want)[0]), strict=True):
        for shard in got.addressable_shards:
            own = np.asarray(shard.data)
            good = good and np.abs(own - np.asarray(dense)[shard.index]).max() <= _TOLERANCE
            rank = shard.index[0].start // _TOKENS
            here.setdefault(rank, hashlib.sha256()).update(own.tobytes())
    for rank, digest in sorted(here.items()):
        print(
            f"devices {shape}: rank {rank} in process {process}: {digest.hexdigest()[:12]}",
            flush=True,
        )
    return 0 if good else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--timeout", type=float, default=300, help="seconds until a shape is ended")
    parser.add_argument("--shape", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--coordinator", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        shape = [int(devices) for devices in args.shape.split(",")]
        return launch.guarded(lambda: run_process(shape, args.rank, args.coordinator))
    failed = []
    for shape in _SHAPES:
        arguments = [f"--shape={shape}", f"--timeout={args.timeout}"]
        if any(launch.run(__file__, arguments, shape.count(",") + 1, args.timeout)):
            failed.append(shape)
    print(f"process_shapes: {'passed' if not failed else f'FAILED: {failed}'}")
    return 0 if not failed else 1


if __name__ == "__main__":
    sys.exit(main())
