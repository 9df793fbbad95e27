"""Forward and backward on whatever processes and devices there are, also where some stand outside the mesh."""

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from five_operations import run_all
from programs import groups
from world import World

_CFG = ep.EpLayerConfig(top_k=2)


def _holds_ranks(world: World) -> bool:
    return any(device.process_index == jax.process_index() for device in world.mesh.devices.flat)


def check_five_operations(world: World):
    if _holds_ranks(world):
        world.bootstrap()
        run_all(world, _CFG, world.problem(1, tokens=8))


def check_several_layers_with_matmuls_between(world: World):
    """Enough work to fill XLA's thread pools, and several exchanges under way at once: nothing starves."""
    if not _holds_ranks(world):
        return
    world.bootstrap(hidden=64, max_tokens=32, capacity=512)
    problem = world.problem(2, tokens=32)
    square = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32) / 8
    layers = 3

    def loss(tokens, matrix, idx, weights):
        branches = []
        for layer in range(layers):
            recv, recv_weights, handle, counts, _ = ep.ep_dispatch(
                _CFG, idx, tokens * (layer + 1), weights, problem.capacity
            )
            out = jnp.tanh(recv @ matrix) * recv_weights[..., None]
            branches.append(ep.ep_combine(_CFG, handle, counts, out, idx.shape[0]))
        return sum((branch**2).sum() for branch in branches)

    def dense(tokens, matrix, idx, weights):
        live = jnp.where(idx >= 0, weights, 0).sum(-1, keepdims=True)
        return sum(
            ((jnp.tanh(tokens * (layer + 1) @ matrix) * live) ** 2).sum() for layer in range(layers)
        )

    operands = (problem.tokens, square, problem.topk_idx, problem.weights)
    replicated = jax.sharding.PartitionSpec()
    shards = [world.put(array, replicated if array is square else None) for array in operands]
    expected = jax.grad(dense, (0, 1))(*map(jnp.asarray, operands))
    with world.context():
        step = jax.jit(jax.grad(loss, (0, 1)))
        for _ in range(3):
            gradients = step(*shards)
    for got, wanted in zip(gradients, expected, strict=True):
        world.expect_close(got, np.asarray(wanted), 2e-4)


def check_tables_that_leave_ranks_without_experts(world: World):
    """E not divisible by R; only the first and the last rank own experts, then only one in the middle."""
    if not _holds_ranks(world):
        return
    count = 2 * world.ep + 1
    groups.expect_layer_of_table(world, [(world.ep - 1) * (e % 3 > 0) for e in range(count)])
    groups.expect_layer_of_table(world, [world.ep // 2] * count)


def check_leaving_with_results_in_flight(world: World):
    """Programs that were launched before ep_finalize end well: no device is left alone in a collective of XLA's."""
    if not _holds_ranks(world):
        return
    for held in (True, False):
        world.bootstrap(hidden=64, max_tokens=32, capacity=512)
        problem = world.problem(4, tokens=32)
        operands = [world.put(a) for a in (problem.topk_idx, problem.tokens, problem.weights)]

        @jax.jit
        def step(idx, tokens, weights):
            for _ in range(4):
                recv, _, handle, counts, _ = ep.ep_dispatch(_CFG, idx, tokens, weights, 512)
                tokens = tokens + ep.ep_combine(_CFG, handle, counts, recv, idx.shape[0])
            return tokens, tokens.sum()

        with world.context():
            want = jax.block_until_ready(step(*operands))[0]
            launched = [step(*operands) for _ in range(6 if held else 1)]
        if not held:
            launched.clear()
        ep.ep_finalize()
        world.sizes = {}
        for tokens, _ in launched:
            pairs = zip(tokens.addressable_shards, want.addressable_shards, strict=True)
            for got, wanted in pairs:
                np.testing.assert_array_equal(np.asarray(got.data), np.asarray(wanted.data))
    world.bootstrap()
    run_all(world, _CFG, world.problem(5, tokens=8))


def check_a_process_outside_the_mesh_is_told_so(world: World):
    if _holds_ranks(world):
        return
    try:
        world.bootstrap()
    except ValueError as error:
        assert f"rank {jax.process_index()}" in str(error), error
        assert "mesh" in str(error), error
    else:
        raise AssertionError("no error")
