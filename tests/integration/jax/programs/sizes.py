"""The sizes that API.md allows: top-k from 1 to 16, rows of 1 to 8192 elements, odd ones too."""

import epd.jax as ep
import jax.numpy as jnp
import numpy as np
from five_operations import run_all
from world import World


def _run(world: World, seed: int, top_k: int, hidden: int, dtype, alignment: int = 4) -> None:
    experts = 5 * world.ep
    world.bootstrap(num_experts=experts, hidden=hidden, max_tokens=8, capacity=1024, dtype=dtype)
    problem = world.problem(seed, 8, top_k, alignment, dtype, capacity=64 * top_k)
    run_all(world, ep.EpLayerConfig(top_k, alignment), problem)


def check_every_top_k_from_1_to_16(world: World):
    for top_k in range(1, 17):
        _run(world, top_k, top_k, 8, np.float32)


def check_rows_of_1_to_8192_elements(world: World):
    for hidden in (1, 2, 3, 7, 31, 65, 127, 1023, 4097, 8191, 8192):
        _run(world, hidden, 2, hidden, jnp.bfloat16)


def check_odd_rows_of_float32(world: World):
    for hidden in (1, 5, 33, 1001):
        _run(world, hidden, 3, hidden, np.float32, alignment=1)
