"""Derivatives beside reverse mode, and vmap: forward mode, transposes, second derivatives, batches."""

import functools

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from epd.jax import primitives
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from layers import CFG, dense, layer
from world import World, raises


def _random(array, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(array.shape).astype(np.float32)


def _problem(world: World, seed: int):
    problem = world.problem(seed, tokens=8, alignment=4)
    return problem, [world.put(a) for a in (problem.topk_idx, problem.tokens, problem.weights)]


def check_jvp_of_a_layer(world: World):
    """Forward mode in tokens and weights together, and in each of the two."""
    world.bootstrap()
    problem, (idx, tokens, weights) = _problem(world, 71)
    moves = _random(problem.tokens, 1), _random(problem.weights, 2)
    host = (problem.topk_idx, problem.tokens, problem.weights)

    def all_three(layer, idx, tokens, weights, d_tokens, d_weights):
        layer = functools.partial(layer, idx)
        inner = jax.jit(lambda t: layer(t, weights))
        return (
            jax.jvp(layer, (tokens, weights), (d_tokens, d_weights)),
            jax.jvp(inner, (tokens,), (d_tokens,)),
            jax.jvp(lambda w: layer(tokens, w), (weights,), (d_weights,)),
        )

    with world.context():
        step = jax.jit(functools.partial(all_three, functools.partial(layer, problem.capacity)))
        got = step(idx, tokens, weights, *map(world.put, moves))
    want = all_three(dense, *map(jnp.asarray, (*host, *moves)))
    for array, expected in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        world.expect_close(array, np.asarray(expected), 1e-4)


def check_second_derivatives(world: World):
    """A Hessian-vector product, forward over reverse and reverse over reverse."""
    world.bootstrap()
    problem, (idx, tokens, weights) = _problem(world, 72)
    vector = _random(problem.tokens, 3)

    def products(layer, idx, tokens, weights, vector):
        loss = lambda t: (layer(idx, t, weights) ** 3).sum()  # noqa: E731
        forward = jax.jvp(jax.grad(loss), (tokens,), (vector,))[1]
        reverse = jax.grad(lambda t: (jax.grad(loss)(t) * vector).sum())(tokens)
        return forward, reverse

    with world.context():
        step = jax.jit(functools.partial(products, functools.partial(layer, problem.capacity)))
        got = step(idx, tokens, weights, world.put(vector))
    host = (problem.topk_idx, problem.tokens, problem.weights, vector)
    want = products(dense, *map(jnp.asarray, host))
    for array, expected, what in zip(got, want, ("forward", "reverse"), strict=True):
        world.expect_close(array, np.asarray(expected), 1e-3, what)


def _prepared(world: World, idx):
    pin = lambda array: jax.lax.with_sharding_constraint(array, world.sharding)  # noqa: E731
    with world.context():
        return jax.jit(lambda i: pin(ep.ep_prepare(CFG, i)[2]))(idx)


def check_dispatch_and_combine_are_each_others_transpose(world: World):
    """<dispatch(x), y> = <x, combine(y)>, and jax.linear_transpose of each is the other: the same bits."""
    world.bootstrap()
    problem, (idx, tokens, weights) = _problem(world, 73)
    handle = _prepared(world, idx)
    rows = world.put(_random(np.empty((world.num_ranks, problem.capacity, 8)), 4))
    count = problem.tokens.shape[0]

    def both(handle, idx, weights, x, y):
        def dispatch(x):
            return primitives.ep_dispatch_fwd(CFG, handle, idx, x, weights, problem.capacity)[0]

        def combine(y):
            return primitives.ep_combine_fwd(CFG, handle, y, count)

        there, back = dispatch(x), combine(y)
        (dispatch_t,) = jax.linear_transpose(dispatch, x)(y)
        (combine_t,) = jax.linear_transpose(combine, y)(x)
        twice = jax.linear_transpose(lambda y: jax.linear_transpose(dispatch, x)(y)[0], y)(x)[0]
        return (
            jnp.vdot(there, y),
            jnp.vdot(x, back),
            there,
            back,
            dispatch_t,
            combine_t,
            twice,
        )

    with world.context():
        one, two, there, back, dispatch_t, combine_t, twice = jax.jit(both)(
            handle, idx, weights, tokens, rows
        )
    np.testing.assert_allclose(np.asarray(one), np.asarray(two), rtol=1e-5)
    assert abs(float(one)) > 1e-3, one
    shards = lambda array: [np.asarray(s.data) for s in array.addressable_shards]  # noqa: E731
    for a, b, what in (
        (dispatch_t, back, "transpose of dispatch"),
        (combine_t, there, "transpose of combine"),
        (twice, there, "transpose of the transpose"),
    ):
        for x, y in zip(shards(a), shards(b), strict=True):
            np.testing.assert_array_equal(x, y, err_msg=what)


def check_inner_product_identity_of_the_weights(world: World):
    """<dispatch(x, w), (y, v)> = <(x, w), dispatch_bwd(y, v)>: tokens and weights at once."""
    world.bootstrap()
    problem, (idx, tokens, weights) = _problem(world, 74)
    handle = _prepared(world, idx)
    rows = world.put(_random(np.empty((world.num_ranks, problem.capacity, 8)), 5))
    scalars = world.put(_random(np.empty((world.num_ranks, problem.capacity)), 6))

    def both(handle, idx, x, w, y, v):
        there = primitives.ep_dispatch_fwd(CFG, handle, idx, x, w, problem.capacity)
        back = primitives.ep_dispatch_bwd(CFG, handle, y, v, x.shape[0])
        dot = lambda a, b: sum(jnp.vdot(p, q) for p, q in zip(a, b, strict=True))  # noqa: E731
        return dot(there, (y, v)), dot((x, w), back)

    with world.context():
        one, two = jax.jit(both)(handle, idx, tokens, weights, rows, scalars)
    np.testing.assert_allclose(np.asarray(one), np.asarray(two), rtol=1e-5)


def _stacked(world: World, size: int, mesh=None, spec=None):
    problems = [world.problem(80 + n, tokens=8, alignment=4) for n in range(size)]
    arrays = [
        np.stack([getattr(p, name) for p in problems]) for name in ("topk_idx", "tokens", "weights")
    ]
    sharding = NamedSharding(mesh or world.mesh, spec or PartitionSpec(None, ("dp", "ep")))
    put = lambda a: jax.make_array_from_callback(a.shape, sharding, lambda i: a[i])  # noqa: E731
    return problems[0].capacity, arrays, [put(a) for a in arrays]


def _expect_batch(world: World, layer, arrays, operands, vmap) -> None:
    """vmap of the layer, and the gradient through it, equal the dense ones, batch by batch."""
    loss = lambda f, i, t, w: (f(i, t, w) ** 2).sum()  # noqa: E731
    out = jax.jit(vmap(layer))(*operands)
    grads = jax.jit(jax.grad(functools.partial(loss, vmap(layer)), (1, 2)))(*operands)
    host = list(map(jnp.asarray, arrays))
    want = np.asarray(jax.vmap(dense)(*host))
    want_grads = jax.grad(functools.partial(loss, jax.vmap(dense)), (1, 2))(*host)
    world.expect_close(out, want, 1e-5, "forward")
    for got, expected in zip(grads, want_grads, strict=True):
        world.expect_close(got, np.asarray(expected), 1e-4, "gradient")


def check_vmap_batches(world: World):
    """vmap, with and without a batched routing, grad of vmap and vmap of grad: one exchange per element."""
    world.bootstrap()
    capacity, arrays, operands = _stacked(world, 3)
    with world.context():
        moe = functools.partial(layer, capacity)
        _expect_batch(world, moe, arrays, operands, jax.vmap)
        # One routing for all: the plan is made once.
        shared = jax.vmap(moe, in_axes=(None, 0, 0))
        operands = [world.put(arrays[0][0]), *operands[1:]]
        assert jax.jit(shared).lower(*operands).as_text().count(ep.FFI_TARGET_NAMES[0]) == 1
        loss = lambda f, i, t, w: (f(i, t, w) ** 2).sum()  # noqa: E731
        gradient = lambda f: jax.grad(functools.partial(loss, f), (1, 2))  # noqa: E731
        each = jax.jit(jax.vmap(gradient(moe), in_axes=(None, 0, 0)))(*operands)
    host = map(jnp.asarray, (arrays[0][0], *arrays[1:]))
    want = jax.vmap(gradient(dense), in_axes=(None, 0, 0))(*host)
    for got, expected in zip(each, want, strict=True):
        world.expect_close(got, np.asarray(expected), 1e-4, "gradient of each")


def check_vmap_without_tokens(world: World):
    """A batch of exchanges on ranks without tokens, forward and backward: all are made, and the next call meets its peers."""
    world.bootstrap()
    capacity, arrays, operands = _stacked(world, 3)
    empty = [a[:, :0] for a in arrays]
    sharding = NamedSharding(world.mesh, PartitionSpec(None, ("dp", "ep")))
    none = [jax.make_array_from_callback(a.shape, sharding, lambda i, a=a: a[i]) for a in empty]
    loss = lambda i, t, w: (jax.vmap(moe)(i, t, w) ** 2).sum()  # noqa: E731
    with world.context():
        moe = functools.partial(layer, capacity)
        out = jax.jit(jax.vmap(moe))(*none)
        value, grads = jax.jit(jax.value_and_grad(loss, (1, 2)))(*none)
        assert out.shape == (3, 0, world.sizes["hidden"]), out.shape
        assert [g.shape for g in grads] == [a.shape for a in empty[1:]]
        assert float(value) == 0
        _expect_batch(world, moe, arrays, operands, jax.vmap)


def check_vmap_with_spmd_axis_name(world: World):
    """The batch split over an axis beside ep: each device makes its own share. Over an axis of tokens: refused."""
    ep.ep_finalize()
    world.sizes = {}
    mesh = Mesh(world.mesh.devices, ("pp", "ep"))
    resource = ep.MeshResource(pp_resource="pp", ep_resource="ep")
    sizes = {"num_experts": 2 * world.ep, "hidden": 8, "capacity": 128}
    with jax.set_mesh(mesh), ep.global_shard_guard(resource):
        ep.ep_bootstrap(
            world.num_ranks,
            jax.process_index(),
            sizes["num_experts"],
            16 * world.dp,
            128,
            8,
            jnp.float32,
        )
        world.sizes = sizes
        capacity, arrays, operands = _stacked(world, 2 * world.dp, mesh, PartitionSpec("pp", "ep"))
        moe = functools.partial(layer, capacity)
        vmap = functools.partial(jax.vmap, spmd_axis_name="pp")
        _expect_batch(world, moe, arrays, operands, vmap)
        text = jax.jit(vmap(moe)).lower(*operands).compile().as_text()
        assert "all-gather" not in text and "all-to-all" not in text, text
        with raises(ValueError, "spmd_axis_name", "'ep'", "carries tokens"):
            jax.jit(jax.vmap(moe, spmd_axis_name="ep")).lower(*operands)
    ep.ep_finalize()
    world.sizes = {}


def check_forward_mode_and_vmap_on_explicit_axes_and_in_shard_map(world: World):
    """A batch of layers and its forward derivative: Explicit axes, and the caller's shard_map with check_vma and without."""
    world.bootstrap()
    spec = PartitionSpec(None, ("dp", "ep"))
    explicit = Mesh(world.mesh.devices, ("dp", "ep"), axis_types=(AxisType.Explicit,) * 2)
    whole = functools.partial(jax.shard_map, in_specs=spec, out_specs=spec)
    for what, mesh, wrap in (
        ("explicit", explicit, lambda function: function),
        ("check_vma", world.mesh, whole),
        ("without check_vma", world.mesh, functools.partial(whole, check_vma=False)),
    ):
        capacity, arrays, operands = _stacked(world, 2, mesh, spec)

        def tangent(function, idx, tokens, weights):
            return jax.jvp(lambda t: function(idx, t, weights), (tokens,), (tokens,))[1]

        batch = wrap(jax.vmap(functools.partial(layer, capacity)))
        with jax.set_mesh(mesh), ep.global_shard_guard(world.resource):
            got = jax.jit(functools.partial(tangent, batch))(*operands)
        want = tangent(jax.vmap(dense), *map(jnp.asarray, arrays))
        world.expect_close(got, np.asarray(want), 1e-4, what)
