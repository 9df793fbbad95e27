"""epd.jax.layers against a dense layer: losses, masks, transformations, meshes, drops; what XLA communicates."""

import dataclasses
import functools
import re
from collections import Counter

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from epd.jax.layers import Axes, moe, partition_specs, recv_capacity
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
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
from world import COLLECTIVES, World

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


# ---- meshes ----


def _in_shard_map(world: World, config, axes: tuple[str, ...], check_vma: bool):
    """The layer inside a shard_map of the caller's, manual over ``axes``."""

    def only(spec):
        return PartitionSpec(*(axis if axis in axes else None for axis in spec))

    params = jax.tree.map(only, partition_specs(config))
    tokens = PartitionSpec(axes)

    def wrap(layer):
        def shard(params, tokens):
            out, loss = layer(params, tokens)
            return out, jax.lax.pmean(loss, axes)

        return jax.shard_map(
            shard,
            mesh=world.mesh if len(axes) == 2 else None,
            in_specs=(params, tokens),
            out_specs=(tokens, PartitionSpec()),
            axis_names=set(axes),
            check_vma=check_vma,
        )

    return wrap


def check_inside_the_callers_shard_map(world: World):
    bootstrap(world)
    config = config_of({"balance_loss": 0.7}, shared_ffn_dim=4)
    with world.context():
        for axes in (("dp", "ep"), ("dp",)):
            for check_vma in (True, False):
                expect_dense(world, config, wrap=_in_shard_map(world, config, axes, check_vma))


def check_explicit_axes(world: World):
    bootstrap(world)
    mesh = Mesh(world.mesh.devices, ("dp", "ep"), axis_types=(AxisType.Explicit,) * 2)
    config = config_of({}, shared_ffn_dim=4, axes=Axes(embed="dp"))
    with jax.set_mesh(mesh), ep.global_shard_guard(world.resource):
        expect_dense(world, config, mesh=mesh)


def check_split_experts_under_logical_names(world: World):
    """Inner dimensions split over a tensor-parallel axis, by rules; tokens over ep alone."""
    ep.ep_finalize()
    world.sizes = {}
    mesh = Mesh(world.mesh.devices, ("ep", "tp"))
    rules = {"expert": "ep", "mlp": "tp", "embed": None}
    axes = Axes(expert="expert", mlp="mlp", embed="embed", rules=rules)
    config = dataclasses.replace(SIGMOID, axes=axes)
    with jax.set_mesh(mesh), ep.global_shard_guard(ep.MeshResource(ep_resource="ep")):
        ep.ep_bootstrap(
            world_size=4,
            rank=jax.process_index(),
            num_experts=EXPERTS,
            max_tokens_per_rank=2 * TOKENS,
            recv_capacity_per_rank=256,
            hidden_dim=HIDDEN,
            max_token_dtype=jnp.float32,
        )
        spec = PartitionSpec("ep")
        expect_dense(world, config, mesh=mesh, spec=spec)
        slots = recv_capacity(config, 2 * TOKENS, 2, jnp.float32)
        reduced = _reduced(_compiled(mesh, spec, config, backward=False))
        ep.ep_finalize()
    # Sums over tp of the routed and the shared experts' rows, and over ep of the load.
    rows = [f"f32[{slots},{HIDDEN}]", f"f32[{2 * TOKENS},{HIDDEN}]"]
    assert reduced == Counter([*rows, f"s32[{EXPERTS}]"]), reduced


# ---- what XLA communicates ----


def _reduced(text: str) -> Counter:
    """Types of all that the program's all-reduces sum."""
    found = Counter()
    for line in text.splitlines():
        types = re.search(r"= (.*?) all-reduce(-start)?\(", line)
        if types:
            found.update(re.findall(r"\w+\[[\d,]*\]", types[1]))
    return found


def _compiled(mesh: Mesh, spec: PartitionSpec, config, backward: bool) -> str:
    """The program's text, with tokens and results pinned to ``spec``, and gradients to where parameters lie."""
    sharding = NamedSharding(mesh, spec)
    params = put_parameters(mesh, config, parameters_of(config))
    tokens = jax.device_put(tokens_of((4 * TOKENS,)), sharding)
    pin = lambda tree: jax.tree.map(  # noqa: E731
        lambda a: jax.lax.with_sharding_constraint(a, sharding), tree
    )

    def forward(params, tokens):
        out, aux = moe(config, params, tokens)
        return pin((out, aux.loss, aux.load))

    def step(params, tokens, out, loss):
        _, pullback = jax.vjp(lambda p, t: forward(p, t)[:2], params, tokens)
        return pullback(pin((out, loss)))

    if not backward:
        return jax.jit(forward).lower(params, tokens).compile().as_text()
    loss = jax.device_put(np.ones(4, np.float32), sharding)
    lain = jax.tree.map(lambda a: a.sharding, (params, tokens))
    graded = jax.jit(step, out_shardings=lain)
    return graded.lower(params, tokens, tokens, loss).compile().as_text()


def _types(world: World, config) -> Counter:
    """Of the gradients that several ranks add to: experts, whose ranks differ along dp; all else, on every rank."""
    types = Counter()
    for part, named in parameters_of(config).items():
        for name, array in named.items():
            shape = list(array.shape)
            if part == "experts":
                shape[0] //= world.ep
            if name != "selection_bias":  # It has no gradient.
                types[f"f32[{','.join(map(str, shape))}]"] += 1
    return types


def check_xla_communicates_only_gradients_of_shared_parameters(world: World):
    bootstrap(world)
    silent = dataclasses.replace(
        SIGMOID, router=dataclasses.replace(SIGMOID.router, balance_loss=0.0)
    )
    others = [word for word in COLLECTIVES if word not in ("all-reduce", "all_reduce")]
    with world.context():
        forward = _compiled(world.mesh, world.spec, silent, backward=False)
        assert not [word for word in COLLECTIVES if word in forward], forward
        # A balance loss over all ranks: the experts' load, in one sum of integers.
        assert _reduced(_compiled(world.mesh, world.spec, SIGMOID, backward=False)) == {
            f"s32[{EXPERTS}]": 1
        }
        backward = _compiled(world.mesh, world.spec, silent, backward=True)
        assert not [word for word in others if word in backward], backward
        assert _reduced(backward) == _types(world, silent), backward


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
    """Every sigmoid is 0 in float32; normalised or not, results and gradients are finite."""
    bootstrap(world)
    leading = (world.num_ranks * TOKENS,)
    for normalize, dtype in ((True, "float32"), (False, "bfloat16")):
        config = config_of({"scoring": "sigmoid", "normalize": normalize, "balance_loss": 1.0})
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
