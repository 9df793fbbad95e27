"""The operations and a layer's gradients where the ranks of one group are on several nodes."""

import epd.jax as ep
import jax.numpy as jnp
import numpy as np
from five_operations import run_all
from programs.transforms import check_scan_of_three_layers_under_remat as _scanned_layers
from programs.transforms import check_set_mesh as _layer_and_gradients
from world import World

_CFG = ep.EpLayerConfig(top_k=2)
_ALIGNED = ep.EpLayerConfig(top_k=4, dispatch_output_per_expert_alignment=8)

# Four floats; a capture of the link is searched for it.
MARK = b"epd-row-on-wire!"


def check_marked_rows(world: World):
    world.bootstrap()
    problem = world.problem(1, tokens=8)
    row = np.frombuffer(MARK, np.float32)
    problem.tokens[:] = np.tile(row, problem.tokens.shape[1] // row.size)
    run_all(world, _CFG, problem)


def check_bfloat16(world: World):
    world.bootstrap()
    run_all(world, _CFG, world.problem(2, tokens=16, dtype=jnp.bfloat16))


def check_large_rows_and_one_expert_for_all(world: World):
    world.bootstrap(hidden=1024, max_tokens=256, capacity=4096)
    run_all(world, _ALIGNED, world.problem(3, tokens=256, top_k=4, alignment=8))
    idx = np.full((world.num_ranks * 8, 1), world.sizes["num_experts"] - 1)
    run_all(world, ep.EpLayerConfig(top_k=1), world.problem(4, tokens=8, top_k=1, topk_idx=idx))


def check_a_layer_and_its_gradients(world: World):
    _layer_and_gradients(world)


def check_a_scan_of_layers_and_its_gradients(world: World):
    _scanned_layers(world)
