"""One of three processes of jax.distributed, of which number 1 dies. Arguments: the coordinator's port, its number, and its part.

"stays": is told who died, goes on with the other survivor in a group of their devices for longer than JAX's heartbeats take to
find a dead process, and then with the process that "comes" in the place of the one that "dies". Each waits for a line before it ends.
"""

import os
import signal
import sys
import time

import compiles
import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from world import fails

_PROCESSES, _VICTIM = 3, 1
_TOKENS, _HIDDEN, _CAPACITY = 8, 16, 64
_CFG = ep.EpLayerConfig(top_k=2)
_HEARTBEAT_SECONDS, _STEPS = 4, 100
_PATIENCE_SECONDS = 60


class _Layer:
    """A group of one rank on each of ``devices``, and a step in it."""

    def __init__(self, name: str, devices: list[jax.Device]):
        self._mesh = Mesh(devices, ("ep",))
        self._rows = len(devices) * _TOKENS
        self.group = ep.Group(
            name,
            mesh=self._mesh,
            resource=ep.MeshResource(ep_resource="ep"),
            num_experts=2 * len(devices),
            max_tokens_per_rank=_TOKENS,
            recv_capacity_per_rank=_CAPACITY,
            hidden_dim=_HIDDEN,
            max_token_dtype=jnp.float32,
        )

        @jax.jit
        def step(idx, tokens, weights):
            recv, _, handle, *_ = self.group.dispatch(_CFG, idx, tokens, weights, _CAPACITY)
            return self.group.combine(_CFG, handle, recv, self._rows)

        self._step = step

    def _put(self, array: np.ndarray) -> jax.Array:
        sharding = NamedSharding(self._mesh, PartitionSpec("ep"))
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    def run(self) -> None:
        rng = np.random.default_rng(self._rows)
        idx = rng.integers(0, self._rows // _TOKENS * 2, (self._rows, 2)).astype(np.int32)
        tokens = rng.standard_normal((self._rows, _HIDDEN)).astype(np.float32)
        weights = np.ones(idx.shape, np.float32)
        with ep.ep_errors():
            out = self._step(self._put(idx), self._put(tokens), self._put(weights))
            (mine,) = jax.block_until_ready(out).addressable_shards
        np.testing.assert_array_equal(np.asarray(mine.data), 2 * tokens[mine.index])

    def run_until_good(self) -> None:
        until = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return self.run()
            except ep.EpError as error:
                assert error.retry == "call again" and time.monotonic() < until, error
                time.sleep(0.05)


def main() -> None:
    port, index, part = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    jax.distributed.initialize(
        f"127.0.0.1:{port}", _PROCESSES, index, heartbeat_timeout_seconds=_HEARTBEAT_SECONDS
    )
    whole = _Layer("whole", jax.devices())
    if part == "comes":
        whole.run_until_good()
    else:
        whole.run()
    if part == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if part == "stays":
        with fails("UNAVAILABLE", f"rank={_VICTIM}", "pid="):
            whole.run()
        print("told", flush=True)
        rest = _Layer("rest", [d for d in jax.devices() if d.process_index != _VICTIM])
        for _ in range(_STEPS):
            rest.run()
            time.sleep(3 * _HEARTBEAT_SECONDS / _STEPS)
        print("outlived", flush=True)
        with compiles.none():
            whole.run_until_good()
    print("whole", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
