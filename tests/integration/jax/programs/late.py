"""A living but absent rank, with a short absent deadline (EPD_ABSENT_TIMEOUT=3)."""

import time

import epd.jax as ep
import jax
from world import World, fails

_CFG = ep.EpLayerConfig(top_k=2)


def check_absent_rank_is_named_and_the_next_call_works(world: World):
    world.bootstrap()
    problem = world.problem(61, tokens=8)
    idx = world.put(problem.topk_idx)
    with world.context():
        prepare = jax.jit(lambda i: ep.ep_prepare(_CFG, i)[0], out_shardings=world.sharding)
        jax.block_until_ready(prepare(idx))
        world.barrier("both are ready")
        late = world.index == world.num_ranks - 1
        if late:
            time.sleep(6)
        began = time.monotonic()
        with fails("DEADLINE_EXCEEDED", f"rank={world.ep - 1}", "host=", "pid=", "phase="):
            jax.block_until_ready(prepare(idx))
        assert time.monotonic() - began < (2 if late else 8)
        world.barrier("both have failed")
        for _ in range(3):
            jax.block_until_ready(prepare(idx))
