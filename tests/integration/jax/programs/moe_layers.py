"""epd.jax.layers against a dense layer: scores, losses, masks, transformations; no tokens, drops, underflow."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from epd.jax.layers import (
    Axes,
    moe,
    partition_specs,
    recv_capacity,
    sizes_within,
    updated_selection_bias,
)
from epd.jax.layers.grouped_gemm import rows_of_groups
from jax.sharding import PartitionSpec
from moe_problem import (
    EXPERTS,
    HIDDEN,
    SIGMOID,
    SOFTMAX,
    TOKENS,
    bootstrap,
    config_of,
    expect_dense,
    layer_of,
    parameters_of,
    put_parameters,
    tokens_of,
    value,
)
from world import World

_BOTH = ("float32", "bfloat16")


def check_softmax_layer(world: World):
    bootstrap(world)
    with world.context():
        expect_dense(world, SOFTMAX, _BOTH)


def check_sigmoid_layer_with_groups_biases_and_shared_experts(world: World):
    bootstrap(world)
    with world.context():
        expect_dense(world, SIGMOID, _BOTH)
        expect_dense(world, dataclasses.replace(SIGMOID, apply_weights="early"))


def check_plain_experts_and_weights_that_are_not_normalised(world: World):
    bootstrap(world)
    router = {"normalize": False, "num_groups": 2, "groups_kept": 1}
    options = {"gated": False, "activation": "relu", "alignment": 1}
    with world.context():
        expect_dense(world, config_of(router, **options))
        expect_dense(world, config_of({**router, "scoring": "sigmoid"}, **options))


def check_sequences_with_padding(world: World):
    bootstrap(world)
    losses = {"balance_loss": 0.7, "z_loss": 0.1}
    with world.context():
        for over in ("sequence", "global"):
            config = config_of({**losses, "balance_over": over}, apply_weights="early")
            leading = (2 * world.num_ranks, TOKENS // 2)
            expect_dense(world, config, leading=leading, masked=True)


def _scanned(layer):
    body = jax.checkpoint(layer, policy=jax.checkpoint_policies.save_only_these_names("epd_recv"))

    def run(params, tokens):
        step = lambda carry, _: (body(params, carry[0]), None)  # noqa: E731
        return jax.lax.scan(step, (tokens, jnp.float32(0)), None, length=1)[0]

    return run


def check_under_remat_and_scan_with_losses_of_a_rank(world: World):
    bootstrap(world)
    router = dataclasses.replace(SOFTMAX.router, balance_over="rank")
    with world.context():
        expect_dense(world, dataclasses.replace(SOFTMAX, router=router), wrap=_scanned)


# ---- drops, underflow, no tokens ----


def check_no_tokens(world: World):
    """A batch without tokens: an empty result, and gradients of zeros."""
    bootstrap(world)
    config = dataclasses.replace(SIGMOID, shared_ffn_dim=0, shared_gate=False)
    with world.context():
        graded = jax.jit(
            jax.value_and_grad(functools.partial(value, layer_of(config)), (0, 1), has_aux=True)
        )
        placed = put_parameters(world.mesh, config, parameters_of(config))
        (total, (out, loss)), (grads, _) = graded(placed, world.put(tokens_of((0,))))
    assert (float(total), float(loss), out.shape) == (0, 0, (0, HIDDEN))
    for leaf in jax.tree.leaves(grads):
        world.expect_equal(leaf, np.zeros(leaf.shape))


def check_dropped_routes_add_nothing_and_are_seen(world: World):
    """With a buffer of one slot each rank's first route alone arrives."""
    bootstrap(world, drop=True)
    config = dataclasses.replace(SOFTMAX, recv_capacity=1, alignment=0)
    params, tokens = parameters_of(config), tokens_of((world.num_ranks * TOKENS,))
    with world.context():
        placed = put_parameters(world.mesh, config, params)
        run = jax.jit(functools.partial(moe, config))
        out, aux = run(placed, world.put(tokens))
        grads = jax.jit(jax.grad(lambda p, t: (run(p, t)[0] ** 2).sum()))(placed, world.put(tokens))
    assert aux.capacity == 1
    for shard in aux.demand.addressable_shards:
        assert int(shard.data[0]) > 1
    live = sum(
        int((np.abs(np.asarray(shard.data)).sum(1) > 0).sum()) for shard in out.addressable_shards
    )
    assert live <= world.num_ranks
    for leaf in jax.tree.leaves(grads):
        for shard in leaf.addressable_shards:
            assert np.isfinite(np.asarray(shard.data)).all()


def check_scores_that_underflow_make_no_nan(world: World):
    """Every score is 0 in float32; normalised or not, results and gradients are finite."""
    bootstrap(world)
    leading = (world.num_ranks * TOKENS,)
    for scoring, normalize, dtype in (
        ("sigmoid", True, "float32"),
        ("sigmoid", False, "bfloat16"),
        ("sqrtsoftplus", True, "float32"),
    ):
        config = config_of({"scoring": scoring, "normalize": normalize, "balance_loss": 1.0})
        params = parameters_of(config)
        params["router"]["kernel"][:] = -1e3
        tokens = (np.abs(tokens_of(leading)) + 1).astype(dtype)
        with world.context():
            graded = jax.jit(
                jax.value_and_grad(functools.partial(value, layer_of(config)), (0, 1), has_aux=True)
            )
            results = graded(put_parameters(world.mesh, config, params), world.put(tokens))
        for leaf in jax.tree.leaves(results):
            for shard in leaf.addressable_shards:
                assert np.isfinite(np.asarray(shard.data, np.float32)).all(), config
        moved = np.asarray(results[1][0]["experts"]["down"].addressable_shards[0].data)
        assert (np.abs(moved).max() > 0) == normalize  # Weights of sum 1, or all 0.


def check_the_alignment_follows_the_products_and_the_dtype(world: World):
    """Two dtypes, an own product, and an explicit alignment; the capacity that any routing fits."""
    del world
    gemm = dataclasses.replace(SOFTMAX.gemm, alignments=((2, 128),))
    own = dataclasses.replace(SOFTMAX, gemm=gemm)
    assert [SOFTMAX.alignment_for(t) for t in (jnp.float32, jnp.bfloat16)] == [8, 16]
    assert [own.alignment_for(t) for t in (jnp.float32, jnp.bfloat16)] == [0, 128]
    assert dataclasses.replace(own, alignment=4).alignment_for(jnp.bfloat16) == 4
    assert recv_capacity(SOFTMAX, 10, 4, jnp.float32) == 2 * 40  # All tokens to both.
    assert recv_capacity(SOFTMAX, 10, 2, jnp.float32) == 2 * 10 * 2 + 4 * 7
    assert recv_capacity(SOFTMAX, 10, EXPERTS, jnp.float32) == EXPERTS * 10
    assert recv_capacity(dataclasses.replace(own, recv_capacity=5), 10, 4, jnp.float32) == 5


def check_small_functions(world: World):
    del world
    counts = jnp.array([4, 0, 8, 4], jnp.int32)
    for capacity, want in ((100, [4, 0, 8, 4]), (13, [4, 0, 8, 1]), (3, [3, 0, 0, 0])):
        np.testing.assert_array_equal(sizes_within(counts, capacity), want)
    rows = rows_of_groups(jnp.arange(4.0)[:, None], jnp.array([2, 0, 1, 1]), 6)
    np.testing.assert_array_equal(rows[:, 0], [0, 0, 2, 3, 3, 3])
    bias = updated_selection_bias(jnp.zeros(3), jnp.array([5, 1, 3]), 0.5)
    np.testing.assert_array_equal(bias, [-0.5, 0.5, 0])
    split = dataclasses.replace(SOFTMAX, axes=Axes(expert="ep", embed="dp"))
    assert partition_specs(split)["experts"]["up"] == PartitionSpec("ep", "dp", None)
    assert Axes(rules={"a": "b"}) == Axes(rules=(("a", "b"),))
    assert hash(SIGMOID) == hash(dataclasses.replace(SIGMOID))
