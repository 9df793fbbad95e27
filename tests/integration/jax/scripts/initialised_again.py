"""A process that initialises jax.distributed twice, with another partner each time. Arguments: rank, "both" (lives twice), "first" or
"second" (once), "finalized" or "kept" (the groups of the first life), "first_to_agree" or "last_to_agree", and two ports.
"""

import sys
import time

import epd.jax as ep
import jax
import jax.extend.backend
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

_CFG = ep.EpLayerConfig(top_k=2)
_RANK = int(sys.argv[1])


@jax.jit
def _step(idx, tokens, weights):
    recv, recv_weights, handle, counts, _ = ep.ep_dispatch(_CFG, idx, tokens, weights, 64)
    return ep.ep_combine(_CFG, handle, counts, recv * recv_weights[..., None], len(tokens))


def _put(mesh, array):
    sharding = NamedSharding(mesh, P("ep"))
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def _here(array) -> np.ndarray:
    return np.asarray(array.addressable_shards[0].data)


def _ragged(mesh) -> None:
    """Rank r sends rows 2 r and 2 r + 1 to ranks 0 and 1."""

    def exchange(rows, first, ones, place):
        return ep.ragged_all_to_all(rows, -rows, first, ones, place, ones, axis_name="ep")

    mapped = jax.shard_map(exchange, mesh=mesh, in_specs=P("ep"), out_specs=P("ep"))
    rows = _put(mesh, np.arange(4, dtype=np.int32)[:, None])
    first = _put(mesh, np.tile(np.arange(2, dtype=np.int32), 2))
    ones = _put(mesh, np.ones(4, np.int32))
    place = _put(mesh, np.repeat(np.arange(2, dtype=np.int32), 2))
    got = _here(jax.jit(mapped)(rows, first, ones, place))
    np.testing.assert_array_equal(got.ravel(), [_RANK, 2 + _RANK])


def _live(port: str, *, late: bool, again: bool, finalizes: bool) -> None:
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, _RANK, initialization_timeout=60)
    mesh = Mesh(jax.devices(), ("ep",))
    if late:
        time.sleep(2)  # The other one makes the nonce.
    with jax.set_mesh(mesh), ep.global_shard_guard(ep.MeshResource(ep_resource="ep")):
        tokens = np.arange(16 * 8, dtype=np.float32).reshape(16, 8)
        idx, weights = np.tile(np.array([0, 3], np.int32), (16, 1)), np.full((16, 2), 0.5)
        operands = [_put(mesh, array) for array in (idx, tokens, weights.astype(np.float32))]
        if again and not finalizes:
            try:
                _step(*operands)
            except ep.EpError as error:
                assert error.code == "FAILED_PRECONDITION" and error.retry == "connect again", error
                assert "as it is initialised now" in str(error), error
            else:
                raise AssertionError("a group of the first life was used in the second")
        ep.ep_bootstrap(
            world_size=2,
            rank=_RANK,
            num_experts=4,
            max_tokens_per_rank=8,
            recv_capacity_per_rank=64,
            hidden_dim=8,
            max_token_dtype=jnp.float32,
        )
        np.testing.assert_array_equal(_here(_step(*operands)), tokens[8 * _RANK : 8 * _RANK + 8])
        _ragged(mesh)
        _ragged(mesh)
        if finalizes:
            ep.ep_finalize()
    jax.distributed.shutdown()


def main() -> None:
    lives, groups, agrees, *ports = sys.argv[2:]
    finalizes, late = groups == "finalized", agrees == "last_to_agree"
    if lives != "second":
        _live(ports[0], late=False, again=False, finalizes=finalizes)
    if lives == "both":
        jax.extend.backend.clear_backends()
    if lives != "first":
        _live(ports[1], late=late, again=lives == "both", finalizes=finalizes)
    print("initialised_again: fine")


main()
