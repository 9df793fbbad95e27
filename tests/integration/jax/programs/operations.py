"""All five operations against the NumPy reference, bit for bit, in the shapes and dtypes that API.md allows."""

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from five_operations import run_all
from world import World, fails

_CFG = ep.EpLayerConfig(top_k=2)
_ALIGNED = ep.EpLayerConfig(top_k=2, dispatch_output_per_expert_alignment=8)


def check_float32(world: World):
    world.bootstrap()
    run_all(world, _CFG, world.problem(1, tokens=8))


def check_bfloat16(world: World):
    world.bootstrap()
    run_all(world, _ALIGNED, world.problem(2, tokens=16, alignment=8, dtype=jnp.bfloat16))


def check_float16(world: World):
    world.bootstrap()
    run_all(world, _ALIGNED, world.problem(3, tokens=16, alignment=8, dtype=np.float16))


def check_batch_and_sequence_dimensions(world: World):
    world.bootstrap()
    run_all(world, _CFG, world.problem(4, tokens=12), leading=(world.num_ranks * 3, 4))


def check_capacity_below_the_bootstrapped_one(world: World):
    world.bootstrap()
    run_all(world, _CFG, world.problem(5, tokens=4, capacity=40))


def check_no_tokens(world: World):
    world.bootstrap()
    run_all(world, _CFG, world.problem(6, tokens=0))


def check_no_routes(world: World):
    world.bootstrap()
    run_all(world, _CFG, world.problem(7, tokens=8, topk_idx=np.full((world.num_ranks * 8, 2), -1)))


def check_all_tokens_to_one_expert(world: World):
    world.bootstrap()
    idx = np.zeros((world.num_ranks * 8, 2), np.int64)
    run_all(world, _ALIGNED, world.problem(8, tokens=8, alignment=8, topk_idx=idx))


def check_uneven_tokens_by_masking(world: World):
    """Ranks that send nothing, one token, many: as -1 rows."""
    world.bootstrap()
    idx = np.random.default_rng(9).integers(0, world.sizes["num_experts"], (world.num_ranks, 8, 2))
    for rank in range(world.num_ranks):
        idx[rank, (3 * rank) % 9 :] = -1
    run_all(world, _CFG, world.problem(9, tokens=8, topk_idx=idx.reshape(-1, 2)))


def check_int64_indices(world: World):
    world.bootstrap()
    problem = world.problem(10, tokens=8)
    with world.context(), jax.enable_x64(True):
        idx = world.put(problem.topk_idx.astype(np.int64))
        assert idx.dtype == jnp.int64
        counts, total, _ = jax.jit(lambda i: ep.ep_prepare(_CFG, i))(idx)
    world.expect_equal(counts, np.concatenate([plan.token_counts for plan in problem.plans]))
    world.expect_equal(total, np.concatenate([plan.total for plan in problem.plans]))


def check_eight_choices_and_wide_rows(world: World):
    world.bootstrap(hidden=640, capacity=512, num_experts=8 * world.ep)
    run_all(
        world,
        ep.EpLayerConfig(8, 16),
        world.problem(11, tokens=16, top_k=8, alignment=16, dtype=jnp.bfloat16),
    )


def check_overflow_is_an_error_on_every_rank(world: World):
    world.bootstrap()
    problem = world.problem(12, tokens=8, topk_idx=np.zeros((world.num_ranks * 8, 2), np.int64))
    demand = world.ep * 16
    with world.context():
        step = jax.jit(lambda i, t, w: ep.ep_dispatch(_CFG, i, t, w, 10)[0])
        operands = [
            world.put(array) for array in (problem.topk_idx, problem.tokens, problem.weights)
        ]
        for _ in range(2):
            with fails("RESOURCE_EXHAUSTED", "rank=0 host=", f"{demand} slots", "capacity is 10"):
                jax.block_until_ready(step(*operands))
        counts = jax.jit(lambda i: ep.ep_prepare(_CFG, i)[0])(operands[0])
    world.expect_equal(counts, np.concatenate([plan.token_counts for plan in problem.plans]))


def check_overflow_drops_when_asked(world: World):
    world.bootstrap(drop=True)
    rng = np.random.default_rng(13)
    idx = np.where(
        rng.random((world.num_ranks * 16, 2)) < 0.7,
        0,
        rng.integers(0, world.sizes["num_experts"], (1, 2)),
    )
    run_all(world, _ALIGNED, world.problem(13, tokens=16, alignment=8, topk_idx=idx, capacity=11))


def check_gradients_of_dispatch_and_combine(world: World):
    """grad through ep_dispatch and ep_combine, with weights of a narrower dtype, against the reference's transposes."""
    world.bootstrap()
    problem = world.problem(14, tokens=8)
    rng = np.random.default_rng(15)
    g_recv = rng.standard_normal((world.num_ranks, problem.capacity, world.sizes["hidden"])).astype(
        np.float32
    )
    g_weights = rng.random(g_recv.shape[:2]).astype(np.float32)
    g_out = rng.standard_normal(problem.tokens.shape).astype(np.float32)

    def dispatched(tokens, weights, idx, g_recv, g_weights):
        recv, recv_weights, *_ = ep.ep_dispatch(_CFG, idx, tokens, weights, problem.capacity)
        return (recv * g_recv).sum() + (recv_weights * g_weights).sum()

    def combined(expert_out, idx, g_out):
        _, _, handle = ep.ep_prepare(_CFG, idx)
        return (ep.ep_combine(_CFG, handle, None, expert_out, idx.shape[0]) * g_out).sum()

    idx, zeros = world.put(problem.topk_idx), np.zeros_like(g_recv)
    weights = world.put(problem.weights.astype(jnp.bfloat16))
    with world.context():
        grad_tokens, grad_weights = jax.jit(jax.grad(dispatched, (0, 1)))(
            world.put(problem.tokens), weights, idx, world.put(g_recv), world.put(g_weights)
        )
        grad_expert = jax.jit(jax.grad(combined))(world.put(zeros), idx, world.put(g_out))
    world.expect_equal(grad_tokens, world.gather(problem, g_recv), "grad_tokens")
    assert grad_weights.dtype == jnp.bfloat16
    world.expect_equal(
        grad_weights, world.gather_weights(problem, g_weights).astype(jnp.bfloat16), "grad_weights"
    )
    world.expect_equal(grad_expert, world.scatter(problem, g_out), "grad_expert_out")


def check_same_input_same_bits(world: World):
    world.bootstrap(hidden=64, max_tokens=64, capacity=512)
    problem = world.problem(16, tokens=64)
    with world.context():
        step = jax.jit(lambda i, t, w: ep.ep_dispatch(_CFG, i, t, w, problem.capacity)[:3])
        operands = [
            world.put(array) for array in (problem.topk_idx, problem.tokens, problem.weights)
        ]
        first = step(*operands)
        for _ in range(5):
            for one, other in zip(first[:2], step(*operands)[:2], strict=True):
                for a, b in zip(one.addressable_shards, other.addressable_shards, strict=True):
                    np.testing.assert_array_equal(np.asarray(a.data), np.asarray(b.data))
