"""The smallest use: one round trip. And whether all processes of the host met one daemon."""

import epd.jax as ep
import jax
from epd.jax import _ffi
from jax._src import distributed
from world import World

_CFG = ep.EpLayerConfig(top_k=2)


def check_round_trip(world: World):
    world.bootstrap()
    problem = world.problem(81, tokens=8)

    def step(idx, tokens, weights):
        recv, _, handle, counts, _ = ep.ep_dispatch(_CFG, idx, tokens, weights, problem.capacity)
        return ep.ep_combine(_CFG, handle, counts, recv, idx.shape[0])

    with world.context():
        out = jax.jit(step)(
            *[world.put(a) for a in (problem.topk_idx, problem.tokens, problem.weights)]
        )
    world.expect_equal(out, world.gather(problem, world.scatter(problem, problem.tokens)))


def check_one_daemon(world: World):
    store = distributed.global_state.client
    store.key_value_set(f"test/socket/{world.index}", _ffi.connect(""))
    world.barrier("sockets are known")
    assert len({path for _, path in store.key_value_dir_get("test/socket/")}) == 1
