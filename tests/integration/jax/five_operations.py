"""All five operations in one jitted program, compared with the NumPy reference bit for bit."""

import epd.jax as ep
import jax
import numpy as np
from epd.jax import primitives
from world import Problem, World


def run_all(
    world: World,
    cfg: ep.EpLayerConfig,
    problem: Problem,
    leading: tuple[int, ...] | None = None,
) -> None:
    """Runs the five operations on a problem and compares each result.

    ``leading`` is the global leading shape of the tokens; default: ``[R * T]``.
    """
    capacity, rows = problem.capacity, problem.tokens.shape[0]
    leading = leading or (rows,)
    shaped = lambda array: world.put(array.reshape(*leading, array.shape[-1]))  # noqa: E731
    expert_rows = world.expert_rows(problem, seed=7, dtype=problem.tokens.dtype)
    g_weights = np.random.default_rng(8).random(expert_rows.shape[:2]).astype(np.float32)

    @jax.jit
    def step(idx, tokens, weights, expert_out, g_recv_weights):
        counts, total, handle = ep.ep_prepare(cfg, idx)
        recv, recv_weights = primitives.ep_dispatch_fwd(cfg, handle, idx, tokens, weights, capacity)
        combined = primitives.ep_combine_fwd(cfg, handle, expert_out, leading)
        g_tokens, g_topk = primitives.ep_dispatch_bwd(
            cfg, handle, expert_out, g_recv_weights, leading
        )
        g_expert = primitives.ep_combine_bwd(cfg, handle, tokens, capacity)
        return counts, total, recv, recv_weights, combined, g_tokens, g_topk, g_expert

    with world.context():
        counts, total, recv, recv_weights, combined, g_tokens, g_topk, g_expert = step(
            shaped(problem.topk_idx),
            shaped(problem.tokens),
            shaped(problem.weights),
            world.put(expert_rows),
            world.put(g_weights),
        )
    flat = lambda array: array.reshape(*leading, array.shape[-1])  # noqa: E731
    world.expect_equal(
        counts, np.concatenate([plan.token_counts for plan in problem.plans]), "token_counts"
    )
    world.expect_equal(total, np.concatenate([plan.total for plan in problem.plans]), "total")
    world.expect_equal(recv, world.scatter(problem, problem.tokens), "recv_tokens")
    world.expect_equal(
        recv_weights, world.scatter_weights(problem, problem.weights), "recv_topk_weights"
    )
    world.expect_equal(combined, flat(world.gather(problem, expert_rows)), "combine")
    world.expect_equal(g_tokens, flat(world.gather(problem, expert_rows)), "grad_tokens")
    world.expect_equal(g_topk, flat(world.gather_weights(problem, g_weights)), "grad_topk_weights")
    world.expect_equal(g_expert, world.scatter(problem, problem.tokens), "grad_expert_out")
    assert recv.dtype == combined.dtype == g_tokens.dtype == g_expert.dtype == problem.tokens.dtype
