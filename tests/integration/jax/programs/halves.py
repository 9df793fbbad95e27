"""Operations in two halves: the same bits and gradients as in one, in JAX's transformations; what is computed beside one is computed
while it is under way; what is wrong is said."""

import dataclasses
import functools
import time

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh
from layers import CFG, collectives_in, dense, layer, loss, value_and_gradients
from world import World, fails, raises

_SECONDS = 30


def _experts(rows, weights):
    return jnp.sin(rows) * weights[..., None]


def _pipeline(capacity: int, idx, tokens, weights):
    """The layer in two halves of its tokens, each of whose exchanges has the other half's arithmetic beside it."""
    half = idx.shape[0] // 2
    idx, tokens, weights = ((a[:half], a[half:]) for a in (idx, tokens, weights))
    dispatch = functools.partial(ep.ep_dispatch, CFG, start=True)
    first = dispatch(idx[0], tokens[0], weights[0], capacity)
    first_rows, first_weights, first_plan, *_ = first.done()
    second = dispatch(idx[1], tokens[1], weights[1], capacity)
    made = second.beside(_experts, first_rows, first_weights)
    second_rows, second_weights, second_plan, *_ = second.done()
    back = ep.ep_combine(CFG, first_plan, None, made, half, start=True)
    made = back.beside(_experts, second_rows, second_weights)
    out = back.done()
    return jnp.concatenate([out, ep.ep_combine(CFG, second_plan, None, made, half)])


def _whole(capacity: int, idx, tokens, weights):
    """``layer``, each of whose operations is started and done."""
    started = ep.ep_dispatch(CFG, idx, tokens, weights, capacity, start=True)
    rows, recv_weights, plan, counts, _ = started.done()
    made = _experts(rows, recv_weights)
    return ep.ep_combine(CFG, plan, counts, made, idx.shape[:-1], start=True).done()


def _operands(world: World, seed: int, tokens: int = 8):
    problem = world.problem(seed, tokens=tokens, alignment=4)
    host = (problem.topk_idx, problem.tokens, problem.weights)
    return problem, host, [world.put(array) for array in host]


def _shards(array) -> list[np.ndarray]:
    return [np.asarray(shard.data) for shard in array.addressable_shards]


def _expect_same(got, want) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        for x, y in zip(_shards(a), _shards(b), strict=True):
            np.testing.assert_array_equal(x, y)


def check_halves_give_the_bits_of_the_operation(world: World):
    world.bootstrap()
    problem, _, operands = _operands(world, 301)
    with world.context():
        in_one, in_two = (
            jax.jit(value_and_gradients(functools.partial(function, problem.capacity)))
            for function in (layer, _whole)
        )
        for _ in range(3):
            _expect_same(in_two(*operands), in_one(*operands))


def check_eager(world: World):
    world.bootstrap()
    problem, _, operands = _operands(world, 302)
    with world.context():
        function = functools.partial(_whole, problem.capacity)
        gradient = jax.grad(functools.partial(loss, function), argnums=(1, 2))
        want = value_and_gradients(functools.partial(layer, problem.capacity))(*operands)
        _expect_same((function(*operands), *gradient(*operands)), want)


def check_a_pipeline_of_micro_batches(world: World):
    """Inside a shard_map of the caller's, where a rank's tokens are split in two."""
    world.bootstrap()
    problem, host, operands = _operands(world, 303)
    with world.context():
        for check_vma in (False, True):
            mapped = jax.shard_map(
                functools.partial(_pipeline, problem.capacity),
                in_specs=world.spec,
                out_specs=world.spec,
                check_vma=check_vma,
            )
            got = jax.jit(value_and_gradients(mapped))(*operands)
            want = value_and_gradients(dense)(*map(jnp.asarray, host))
            for array, expected in zip(got, want, strict=True):
                world.expect_close(array, np.asarray(expected), 1e-4)


def check_explicit_axes(world: World):
    world.bootstrap()
    mesh = Mesh(world.mesh.devices, ("dp", "ep"), axis_types=(AxisType.Explicit, AxisType.Explicit))
    problem, host, _ = _operands(world, 304)
    sharding = jax.sharding.NamedSharding(mesh, world.spec)
    operands = [
        jax.make_array_from_callback(a.shape, sharding, functools.partial(lambda a, i: a[i], a))
        for a in host
    ]
    with jax.set_mesh(mesh), ep.global_shard_guard(world.resource):
        got = jax.jit(functools.partial(_beside_itself, problem.capacity))(*operands)
    world.expect_close(got, np.asarray(dense(*map(jnp.asarray, host))), 1e-5)


def _beside_itself(capacity: int, idx, tokens, weights):
    """Something of the tokens is computed beside their dispatch."""
    started = ep.ep_dispatch(CFG, idx, tokens, weights, capacity, start=True)
    halved = started.beside(lambda t: t / 2, tokens)
    rows, recv_weights, plan, counts, _ = started.done()
    made = _experts(rows, recv_weights)
    out = ep.ep_combine(CFG, plan, counts, made, idx.shape[:-1], start=True)
    quarter = out.beside(lambda t: t / 2, halved)
    return out.done() + quarter - tokens / 4


def check_forward_mode_second_derivatives_and_transposes(world: World):
    world.bootstrap()
    problem, host, (idx, tokens, weights) = _operands(world, 305)
    vector = np.random.default_rng(1).standard_normal(problem.tokens.shape).astype(np.float32)

    def products(layer, idx, tokens, weights, vector):
        function = functools.partial(layer, idx)
        scalar = lambda t: (function(t, weights) ** 3).sum()  # noqa: E731
        return (
            jax.jvp(lambda t: function(t, weights), (tokens,), (vector,)),
            jax.jvp(jax.grad(scalar), (tokens,), (vector,))[1],
            jax.grad(lambda t: (jax.grad(scalar)(t) * vector).sum())(tokens),
        )

    with world.context():
        step = jax.jit(
            functools.partial(products, functools.partial(_beside_itself, problem.capacity))
        )
        got = step(idx, tokens, weights, world.put(vector))
    want = products(dense, *map(jnp.asarray, (*host, vector)))
    for array, expected in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        world.expect_close(array, np.asarray(expected), 1e-3)


def check_remat_scan_and_vmap(world: World):
    world.bootstrap()
    problem, host, (idx, tokens, weights) = _operands(world, 306)
    function = functools.partial(_beside_itself, problem.capacity)

    def scanned(layer):
        def body(x, _):
            return jnp.cos(jax.checkpoint(layer)(idx_of[0], x, idx_of[1])), None

        return lambda x: jax.lax.scan(body, x, None, length=3)[0]

    def both(layer, idx, tokens, weights):
        nonlocal idx_of
        idx_of = (idx, weights)
        deep = scanned(layer)
        batch = jax.vmap(lambda t: layer(idx, t, weights))(jnp.stack([tokens, 2 * tokens]))
        return deep(tokens), jax.grad(lambda t: (deep(t) ** 2).sum())(tokens), batch[0], batch[1]

    idx_of = None
    with world.context():
        got = jax.jit(functools.partial(both, function))(idx, tokens, weights)
    want = both(dense, *map(jnp.asarray, host))
    for array, expected in zip(got, want, strict=True):
        world.expect_close(array, np.asarray(expected), 1e-3)


def check_a_result_that_nobody_uses_has_no_gradient(world: World):
    world.bootstrap()
    problem, _, (idx, tokens, weights) = _operands(world, 307)

    def unused(tokens, idx, weights):
        started = ep.ep_dispatch(CFG, idx, tokens, weights, problem.capacity, start=True)
        doubled = started.beside(lambda t: 2 * t, tokens)
        rows, _, plan, counts, _ = started.done()
        out = ep.ep_combine(CFG, plan, counts, rows, idx.shape[:-1])
        return (doubled**2).sum() + 0 * jax.lax.stop_gradient(out).sum()

    with world.context():
        gradient = jax.jit(jax.grad(unused))(tokens, idx, weights)
    world.expect_close(gradient, 8 * problem.tokens, 1e-5)


def check_no_collective_of_xlas_own(world: World):
    world.bootstrap()
    problem, _, operands = _operands(world, 312)
    function = value_and_gradients(functools.partial(_beside_itself, problem.capacity))
    with world.context():
        jitted = jax.jit(function, out_shardings=world.sharding)
        assert collectives_in(jitted.lower(*operands).compile()) == []


def check_payloads(world: World):
    """Rows and scales under one plan, of which the rows have no gradient."""
    world.bootstrap()
    problem, _, (idx, tokens, weights) = _operands(world, 308)
    payload = {"rows": (tokens * 20).astype(jnp.int8), "scales": tokens[:, :1]}

    def received(idx, payload, weights, **start):
        """The rows and weights; no two plans are alike."""
        got = ep.ep_dispatch(CFG, idx, payload, weights, problem.capacity, **start)
        return (got.done() if start else got)[:2]

    def gradient(take, idx, payload, weights):
        rows = jax.lax.stop_gradient(payload["rows"])

        def scalar(scales, weights):
            got, recv_weights = take(idx, {"rows": rows, "scales": scales}, weights)
            return (got["scales"] ** 2).sum() + (recv_weights**2).sum()

        return jax.grad(scalar, argnums=(0, 1))(payload["scales"], weights)

    with world.context():
        for function in (lambda take: take, lambda take: functools.partial(gradient, take)):
            got, want = (
                jax.jit(function(take))(idx, payload, weights)
                for take in (functools.partial(received, start=True), received)
            )
            _expect_same(got, want)


def check_no_tokens(world: World):
    world.bootstrap()
    empty = [
        world.put(np.zeros((0, size), dtype))
        for size, dtype in ((2, np.int32), (world.sizes["hidden"], np.float32), (2, np.float32))
    ]
    with world.context():
        out, *_ = jax.jit(value_and_gradients(functools.partial(_beside_itself, 8)))(*empty)
    assert out.shape == (0, world.sizes["hidden"])


def check_what_is_beside_is_computed_while_the_exchange_is_under_way(world: World):
    """The last rank comes to its start only when the first one has computed what lies beside its own. Forwards and backwards."""
    world.bootstrap()
    problem, host, operands = _operands(world, 309)
    folder = world.folder / "beside"

    def await_file(name, rank, array):
        if rank == world.num_ranks - 1:
            deadline = time.monotonic() + _SECONDS
            while not (folder / name).exists():
                assert time.monotonic() < deadline, f"{name} was not computed beside"
                time.sleep(0.01)
        return np.asarray(array)

    def write_file(name, rank, array):
        if rank == 0:
            folder.mkdir(exist_ok=True)
            (folder / name).touch()
        return np.asarray(array)

    def called(function, name, array):
        rank = jax.lax.axis_index(world.mesh.axis_names)
        like = jax.ShapeDtypeStruct(array.shape, array.dtype)
        return jax.pure_callback(functools.partial(function, name), like, rank, array)

    @jax.custom_vjp
    def late(array):
        return called(await_file, "forward", array)

    late.defvjp(lambda a: (late(a), None), lambda _, g: (g,))

    @jax.custom_vjp
    def late_backward(array):
        return array

    late_backward.defvjp(lambda a: (a, None), lambda _, g: (called(await_file, "backward", g),))

    @jax.custom_vjp
    def work(array):
        return called(write_file, "forward", array)

    work.defvjp(lambda a: (work(a), None), lambda _, g: (called(write_file, "backward", g),))

    def step(idx, tokens, weights):
        started = ep.ep_dispatch(CFG, idx, late(tokens), weights, problem.capacity, start=True)
        other = started.beside(lambda t: work(jnp.cos(t)), jnp.tan(tokens))
        rows, recv_weights, plan, counts, _ = started.done()
        rows = late_backward(rows)
        out = ep.ep_combine(CFG, plan, counts, _experts(rows, recv_weights), idx.shape[:-1])
        return out + other

    with world.context():
        mapped = jax.shard_map(step, in_specs=world.spec, out_specs=world.spec, check_vma=False)
        got = jax.jit(value_and_gradients(mapped))(*operands)
    want = value_and_gradients(lambda i, t, w: dense(i, t, w) + jnp.cos(jnp.tan(t)))(
        *map(jnp.asarray, host)
    )
    for array, expected in zip(got, want, strict=True):
        world.expect_close(array, np.asarray(expected), 1e-3)


def check_an_error_is_told_by_done(world: World):
    """Overflow, on every rank; the next execution works."""
    world.bootstrap()
    problem, host, operands = _operands(world, 310)
    idx = world.put(np.zeros_like(problem.topk_idx))
    with world.context():
        function = jax.jit(functools.partial(_whole, 4))
        with fails("RESOURCE_EXHAUSTED", "capacity is 4"):
            jax.block_until_ready(function(idx, *operands[1:]))
        out = jax.jit(functools.partial(_whole, problem.capacity))(*operands)
    world.expect_close(out, np.asarray(dense(*map(jnp.asarray, host))), 1e-5)


def check_what_cannot_be(world: World):
    world.bootstrap()
    problem, _, (idx, tokens, weights) = _operands(world, 311)
    place = (jnp.int32(0), jnp.int32(0))
    link = ep.RoleLink(dataclasses.replace(ep.default_group().spec, of_roles=True), place)
    with raises(ValueError, "RoleLink.dispatch: start is True in a group of roles"):
        link.dispatch(CFG, idx, tokens, weights, problem.capacity, name="n", start=True)

    def traced(use):
        def function(tokens, idx, weights):
            given = (CFG, idx, tokens, weights, problem.capacity)
            return use(ep.ep_dispatch(*given, start=True), tokens)

        with world.context():
            jax.jit(function).lower(tokens, idx, weights)

    with (
        world.context(),
        raises(NotImplementedError, "ep_dispatch: start=True is for ranks on CPUs", "for cuda"),
    ):
        whole = jax.jit(functools.partial(_whole, problem.capacity))
        whole.trace(idx, tokens, weights).lower(lowering_platforms=("cuda",))
    with raises(RuntimeError, "StartedExchange.done: done() was called already"):
        traced(lambda started, _: (started.done(), started.done()))
    with raises(RuntimeError, "StartedExchange.beside: done() was called already"):
        traced(lambda started, t: (started.done(), started.beside(jnp.sin, t)))
    with raises(ValueError, "StartedExchange.beside: args must hold an array of floats"):
        traced(lambda started, _: started.beside(lambda: 1))
    with raises(ValueError, "StartedExchange.beside: the result must hold an array of floats"):
        traced(lambda started, t: started.beside(lambda _: 1, t))
    if world.num_ranks > 1:
        with raises(ValueError, "an array of args has the shape (1, 8)", "leading dimension"):
            traced(lambda started, t: started.beside(jnp.sin, t[:1]))
