"""epd.jax.layers against a dense layer, where each rank is a process: the two kinds of scores, both dtypes, groups."""

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from dense_moe import dense_moe, relative_error
from epd.jax.layers import MoeConfig, RouterConfig, moe, recv_capacity
from moe_problem import (
    EXPERTS,
    HIDDEN,
    SIGMOID,
    SOFTMAX,
    TOKENS,
    bootstrap,
    config_of,
    expect_dense,
    expect_near,
    on_one_device,
    parameters_of,
    put_parameters,
    tokens_of,
)
from world import World, raises

_BOTH = ("float32", "bfloat16")


def check_softmax_layer(world: World):
    bootstrap(world)
    with world.context():
        expect_dense(world, SOFTMAX, _BOTH)


def check_sigmoid_layer_with_groups_biases_and_shared_experts(world: World):
    bootstrap(world)
    with world.context():
        expect_dense(world, SIGMOID, _BOTH)


def check_two_groups_in_one_program(world: World):
    """Layers of the default group and of one with other experts, other widths and dtypes, one after the other."""
    bootstrap(world)
    narrow = MoeConfig(6, 5, RouterConfig(4, 1, normalize=False), shared_ffn_dim=3)
    with (
        world.context(),
        ep.Group(
            "narrow",
            num_experts=4,
            max_tokens_per_rank=TOKENS,
            recv_capacity_per_rank=recv_capacity(narrow, TOKENS, world.ep, jnp.float32),
            hidden_dim=6,
            max_token_dtype=jnp.float32,
            resource=world.resource,
        ) as group,
    ):

        def both(params, tokens):
            first, aux = moe(SOFTMAX, params[0], tokens)
            second, _ = moe(narrow, params[1], first[:, :6], group=group)
            return (second**2).sum() + aux.loss.mean(), (first, second)

        def dense(params, tokens):
            first, loss = dense_moe(SOFTMAX, params[0], tokens)
            second, _ = dense_moe(narrow, params[1], first[:, :6])
            return (second**2).sum() + loss, (first, second)

        params = (parameters_of(SOFTMAX), parameters_of(narrow))
        tokens = tokens_of((world.num_ranks * TOKENS,))
        placed = tuple(
            put_parameters(world.mesh, config, p)
            for config, p in zip((SOFTMAX, narrow), params, strict=True)
        )
        graded = jax.jit(jax.value_and_grad(both, (0, 1), has_aux=True))
        got = jax.block_until_ready(graded(placed, world.put(tokens)))
        want = on_one_device(jax.value_and_grad(dense, (0, 1), has_aux=True), params, tokens)
    expect_near(got, want, "float32", "two groups")


def check_group_that_was_joined_by_rank(world: World):
    """No mesh spans the ranks: each process has its own experts and tokens, and the gradients of its own part."""
    ranks, config = world.num_ranks, config_of({"balance_over": "rank", "balance_loss": 0.5})
    params, tokens = parameters_of(config), tokens_of((ranks * TOKENS,))
    mine = {
        **params,
        "experts": {n: np.split(a, ranks)[world.index] for n, a in params["experts"].items()},
    }
    with ep.Group.join(
        "by-rank",
        ranks,
        world.index,
        num_experts=EXPERTS,
        max_tokens_per_rank=TOKENS,
        recv_capacity_per_rank=recv_capacity(config, TOKENS, ranks, jnp.float32),
        hidden_dim=HIDDEN,
        max_token_dtype=jnp.float32,
    ) as group:

        def loss(params, tokens):
            out, aux = moe(config, params, tokens, group=group)
            return (out**2).sum() + aux.loss[0] / ranks, out

        own = np.split(tokens, ranks)[world.index]
        graded = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))
        (_, out), (grads, grad_tokens) = jax.block_until_ready(graded(mine, own))
        with raises(ValueError, "balance_over is 'global'", "joined by rank"):
            moe(SOFTMAX, mine, own, group=group)

    def dense(params, tokens):
        out, loss = dense_moe(config, params, tokens, ranks=ranks)
        return (out**2).sum() + loss, out

    (_, want), (all_grads, all_grad_tokens) = on_one_device(
        jax.value_and_grad(dense, (0, 1), has_aux=True), params, tokens
    )
    for have, whole in [
        (out, want),
        (grad_tokens, all_grad_tokens),
        *[(grads["experts"][n], all_grads["experts"][n]) for n in grads["experts"]],
    ]:
        error = relative_error(have, np.split(whole, ranks)[world.index])
        assert error <= 1e-5, error
