"""One process that is a whole job: bootstraps, runs a layer, compares. Imported by the other scripts and run by tests."""

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np

_CFG = ep.EpLayerConfig(2)


def context():
    mesh = jax.make_mesh((jax.device_count(),), ("ep",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.set_mesh(mesh), ep.global_shard_guard(ep.MeshResource(ep_resource="ep"))


def bootstrap() -> None:
    mesh, guard = context()
    with mesh, guard:
        ep.ep_bootstrap(
            jax.device_count(), jax.process_index(), 2 * jax.device_count(), 8, 64, 4, jnp.float32
        )


def layer():
    """A jitted round trip that returns twice its tokens."""

    @jax.jit
    def step(tokens):
        idx = jnp.zeros((tokens.shape[0], 2), jnp.int32)
        recv, _, handle, counts, _ = ep.ep_dispatch(
            _CFG, idx, tokens, jnp.ones(idx.shape, jnp.float32), 64
        )
        return ep.ep_combine(_CFG, handle, counts, recv, tokens.shape[0])

    return step


def run_once(step) -> None:
    mesh, guard = context()
    tokens = np.arange(4 * 4 * jax.device_count(), dtype=np.float32).reshape(-1, 4)
    with mesh, guard:
        out = step(tokens)
        for shard in out.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), 2 * tokens[shard.index])


def main() -> None:
    bootstrap()
    run_once(layer())
    print("alone: fine", flush=True)


if __name__ == "__main__":
    main()
