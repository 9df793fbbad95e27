"""JAX's transformations, contexts and shardings around the operations; HLO without collectives; order freedom."""

import functools

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from epd.jax import primitives
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from world import COLLECTIVES, World

_CFG = ep.EpLayerConfig(top_k=2, dispatch_output_per_expert_alignment=4)


def _layer(capacity, idx, tokens, weights):
    recv, recv_weights, handle, counts, _ = ep.ep_dispatch(_CFG, idx, tokens, weights, capacity)
    return ep.ep_combine(
        _CFG, handle, counts, jnp.sin(recv) * recv_weights[..., None], idx.shape[:-1]
    )


def _dense(idx, tokens, weights):
    live = (idx >= 0)[..., None]
    return sum(
        jnp.where(live[..., k, :], jnp.sin(tokens) * weights[..., k : k + 1], 0)
        for k in range(idx.shape[-1])
    )


def _loss(layer, idx, tokens, weights):
    return (layer(idx, tokens, weights) ** 2).sum()


def _expect_layer(
    world: World, wrap=lambda layer: layer, mesh=None, leading=None, jit=True, seed=21
) -> None:
    """The wrapped layer and its gradients equal the dense ones."""
    problem = world.problem(seed, tokens=8)
    shape = leading or (problem.tokens.shape[0],)
    arrays = [
        a.reshape(*shape, a.shape[-1]) for a in (problem.topk_idx, problem.tokens, problem.weights)
    ]
    sharding = NamedSharding(mesh or world.mesh, world.spec)
    operands = [
        jax.make_array_from_callback(a.shape, sharding, functools.partial(lambda a, i: a[i], a))
        for a in arrays
    ]
    layer = wrap(functools.partial(_layer, problem.capacity))
    gradient = jax.grad(functools.partial(_loss, layer), argnums=(1, 2))
    if jit:
        layer, gradient = jax.jit(layer), jax.jit(gradient)
    world.expect_close(layer(*operands), np.asarray(_dense(*arrays)), 1e-5, "forward")
    expected = jax.grad(functools.partial(_loss, _dense), argnums=(1, 2))(*map(jnp.asarray, arrays))
    for got, want, what in zip(
        gradient(*operands), expected, ("grad_tokens", "grad_weights"), strict=True
    ):
        world.expect_close(got, np.asarray(want), 1e-4, what)


def check_set_mesh(world: World):
    world.bootstrap()
    with world.context():
        _expect_layer(world)
        _expect_layer(world, leading=(2 * world.num_ranks, 4))


def check_with_mesh(world: World):
    """What programs have that were written before ``jax.set_mesh``."""
    world.bootstrap()
    with world.entered(), ep.global_shard_guard(world.resource):
        _expect_layer(world)


def check_mesh_of_the_operands(world: World):
    world.bootstrap()
    with ep.global_shard_guard(world.resource):
        _expect_layer(world)


def check_eager(world: World):
    world.bootstrap()
    with world.context():
        _expect_layer(world, jit=False)


def check_explicit_axes(world: World):
    world.bootstrap()
    mesh = Mesh(world.mesh.devices, ("dp", "ep"), axis_types=(AxisType.Explicit, AxisType.Explicit))
    with jax.set_mesh(mesh), ep.global_shard_guard(world.resource):
        _expect_layer(world, mesh=mesh)
        _expect_layer(
            world,
            wrap=lambda f: jax.shard_map(f, in_specs=world.spec, out_specs=world.spec),
            mesh=mesh,
        )


def check_inside_the_callers_shard_map(world: World):
    world.bootstrap()
    dp, ep_axis = PartitionSpec("dp"), PartitionSpec("ep")
    with world.context():
        for check_vma in (False, True):
            whole = functools.partial(
                jax.shard_map, in_specs=world.spec, out_specs=world.spec, check_vma=check_vma
            )
            outer = functools.partial(
                jax.shard_map, in_specs=dp, out_specs=dp, axis_names={"dp"}, check_vma=check_vma
            )
            _expect_layer(world, wrap=whole)
            _expect_layer(world, wrap=outer)
        inner = functools.partial(
            jax.shard_map, in_specs=ep_axis, out_specs=ep_axis, axis_names={"ep"}
        )
        _expect_layer(world, wrap=inner)


def check_remat_and_scan(world: World):
    world.bootstrap()

    def scanned(layer, remat):
        body = jax.checkpoint(layer) if remat else layer
        return lambda i, t, w: jax.lax.scan(lambda c, _: (body(i, c, w), None), t, None, length=1)[
            0
        ]

    with world.context():
        _expect_layer(world, wrap=jax.checkpoint)
        _expect_layer(world, wrap=jax.jit)
        for remat in (False, True):
            _expect_layer(world, wrap=functools.partial(scanned, remat=remat))


def check_scan_of_three_layers_under_remat(world: World):
    world.bootstrap()
    problem = world.problem(22, tokens=8)
    idx, tokens, weights = (
        world.put(a) for a in (problem.topk_idx, problem.tokens, problem.weights)
    )

    def model(layer, i, t, w):
        body = jax.checkpoint(lambda c: jnp.tanh(layer(i, c, w)) + c)
        return (jax.lax.scan(lambda c, _: (body(c), None), t, None, length=3)[0] ** 2).sum()

    with world.context():
        got = jax.jit(
            jax.grad(functools.partial(model, functools.partial(_layer, problem.capacity)), 1)
        )(idx, tokens, weights)
    want = jax.grad(functools.partial(model, _dense), 1)(
        problem.topk_idx, jnp.asarray(problem.tokens), problem.weights
    )
    world.expect_close(got, np.asarray(want), 1e-4)


def check_ahead_of_time(world: World):
    world.bootstrap()
    problem = world.problem(23, tokens=8)
    arrays = (problem.topk_idx, problem.tokens, problem.weights)
    with world.context():
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=world.sharding) for a in arrays]
        compiled = jax.jit(functools.partial(_layer, problem.capacity)).lower(*shapes).compile()
    world.expect_close(compiled(*map(world.put, arrays)), np.asarray(_dense(*arrays)))


def check_no_collectives_forward_and_backward(world: World):
    """Every tensor pinned to (outer, ep), as TE's own test does it."""
    world.bootstrap()
    problem = world.problem(24, tokens=8)
    pin = lambda array: jax.lax.with_sharding_constraint(array, world.sharding)  # noqa: E731

    def forward(expert_out, tokens, idx, weights):
        expert_out, tokens, idx, weights = map(pin, (expert_out, tokens, idx, weights))
        recv, recv_weights, handle, counts, total = ep.ep_dispatch(
            _CFG, idx, tokens, weights, problem.capacity
        )
        rows = pin((expert_out + pin(recv)) * pin(recv_weights)[..., None])
        out = ep.ep_combine(
            _CFG, handle, counts, rows, idx.shape[0], out_sharding=(("dp", "ep"), None)
        )
        return pin(out), pin(counts), pin(total)

    def backward(expert_out, tokens, idx, weights, cotangent):
        _, vjp = jax.vjp(lambda e, t, w: forward(e, t, idx, w)[0], expert_out, tokens, weights)
        return tuple(map(pin, vjp(pin(cotangent))))

    shape = (world.num_ranks, problem.capacity, world.sizes["hidden"])
    rows = jnp.zeros(shape, jnp.float32)
    plain = (
        rows,
        jnp.asarray(problem.tokens),
        jnp.asarray(problem.topk_idx),
        jnp.asarray(problem.weights),
    )
    with jax.set_mesh(world.mesh), ep.global_shard_guard(world.resource):
        programs = [
            jax.jit(forward).lower(*plain).compile(),
            jax.jit(backward).lower(*plain, jnp.asarray(problem.tokens)).compile(),
        ]
    for compiled in programs:
        text = compiled.as_text()
        assert not [word for word in COLLECTIVES if word in text], text
        assert ep.FFI_TARGET_NAMES[0] in text
    assert programs[1].as_text().count(f'custom_call_target="{ep.FFI_TARGET_NAMES[0]}"') == 1
    for target in ep.FFI_TARGET_NAMES:
        assert not [word for word in COLLECTIVES if word in target]


def check_backward_contains_no_prepare(world: World):
    world.bootstrap()
    problem = world.problem(25, tokens=8)
    operands = [world.put(a) for a in (problem.topk_idx, problem.tokens, problem.weights)]
    with world.context():
        _, pullback = jax.vjp(
            lambda t, w: _layer(problem.capacity, operands[0], t, w), *operands[1:]
        )
        text = jax.jit(lambda pull, g: pull(g)).lower(pullback, operands[1]).as_text()
    assert ep.FFI_TARGET_NAMES[0] not in text
    assert ep.FFI_TARGET_NAMES[3] in text


def check_unconstrained_counts_are_readable_everywhere(world: World):
    world.bootstrap()
    problem = world.problem(26, tokens=8, alignment=4)
    with world.context():
        counts, total, _ = jax.jit(lambda i: ep.ep_prepare(_CFG, i))(world.put(problem.topk_idx))
    np.testing.assert_array_equal(
        np.asarray(counts), np.concatenate([p.token_counts for p in problem.plans])
    )
    np.testing.assert_array_equal(
        np.asarray(total), np.concatenate([p.total for p in problem.plans])
    )


def check_two_layers_of_equal_configuration_keep_apart(world: World):
    world.bootstrap()
    one, two = world.problem(27, tokens=8), world.problem(28, tokens=8)
    operands = [world.put(a) for p in (one, two) for a in (p.topk_idx, p.tokens, p.weights)]

    def both(i, t, w, i2, t2, w2):
        return _layer(one.capacity, i, t, w), _layer(two.capacity, i2, t2, w2)

    with world.context():
        outs = jax.jit(both)(*operands)
    for out, problem in zip(outs, (one, two), strict=True):
        world.expect_close(
            out, np.asarray(_dense(problem.topk_idx, problem.tokens, problem.weights))
        )


def check_large_programs_that_xla_reorders_pair_up(world: World):
    """Twelve independent layers that share one inner jit: XLA runs them in another order on every rank and run. Each row
    carries its layer's number, so a wrong pairing is seen as a wrong number."""
    world.bootstrap(hidden=64, max_tokens=64, capacity=512)
    problems = [world.problem(100 + n, tokens=64, alignment=4) for n in range(12)]
    shared = jax.jit(functools.partial(_label_layer, problems[0].capacity))

    def forward(labels, weights, noise, *indices):
        outs = []
        for n, idx in enumerate(indices):
            busy = noise
            for _ in range(n % 4):  # Branches of different lengths.
                busy = jnp.tanh(busy @ busy.T @ busy)
            outs.append(shared(idx, labels[n] + 0 * busy[0, 0], weights))
        return jnp.stack(outs)

    def loss(labels, *rest):
        return (forward(labels, *rest) ** 2).sum()

    rows = problems[0].tokens.shape[0]
    labels = np.broadcast_to(
        (1.0 + np.arange(12, dtype=np.float32))[:, None, None], (12, rows, 64)
    ).copy()
    split = world.put(labels, PartitionSpec(None, ("dp", "ep")))
    weights = world.put(np.ones((rows, 2), np.float32))
    noise = world.put(
        np.random.default_rng(5 + world.index).standard_normal((96, 96)).astype(np.float32) / 40,
        PartitionSpec(),
    )
    indices = [world.put(p.topk_idx) for p in problems]
    expected = np.stack(
        [labels[n] * (p.topk_idx >= 0).sum(1, keepdims=True) for n, p in enumerate(problems)]
    )
    with world.context():
        forward, gradient = jax.jit(forward), jax.jit(jax.grad(loss))
        for step in range(8):
            if (
                step % world.num_ranks == world.index
            ):  # Some ranks compile and run programs of their own in between.
                jax.jit(lambda x, s=step: x * s + 1)(np.ones(3)).block_until_ready()
            world.expect_equal(forward(split, weights, noise, *indices), expected, f"step {step}")
            routes = np.stack([(p.topk_idx >= 0).sum(1, keepdims=True) for p in problems])
            world.expect_close(
                gradient(split, weights, noise, *indices),
                2 * expected * routes,
                1e-4,
                f"step {step}",
            )


def _label_layer(capacity, idx, tokens, weights):
    recv, _, handle, counts, _ = ep.ep_dispatch(_CFG, idx, tokens, weights, capacity)
    return ep.ep_combine(_CFG, handle, counts, recv, idx.shape[0])


def check_programs_that_only_one_rank_compiles_do_no_harm(world: World):
    """One process lowers and compiles another program with operations in it, but does not run it."""
    world.bootstrap()
    problem = world.problem(29, tokens=8)
    operands = [world.put(a) for a in (problem.topk_idx, problem.tokens, problem.weights)]
    with world.context():
        if world.index == 0:
            jax.jit(
                lambda *a: _layer(problem.capacity, *a) * 2 + _layer(problem.capacity, *a)
            ).lower(*operands).compile()
        out = jax.jit(functools.partial(_layer, problem.capacity))(*operands)
    world.expect_close(out, np.asarray(_dense(problem.topk_idx, problem.tokens, problem.weights)))


def check_executions_in_flight_stay_apart(world: World):
    """Two programs of one digest, launched without waiting."""
    world.bootstrap()
    problem = world.problem(30, tokens=8)
    operands = [world.put(a) for a in (problem.topk_idx, problem.tokens, problem.weights)]
    want = np.asarray(_dense(problem.topk_idx, problem.tokens, problem.weights))
    with world.context():
        one = jax.jit(functools.partial(_layer, problem.capacity))
        two = jax.jit(lambda *a: _layer(problem.capacity, *a) * 2)
        results = [(n % 3, (two if n % 3 else one)(*operands)) for n in range(30)]
    for doubled, out in results:
        world.expect_close(out, want * (2 if doubled else 1))


def check_out_sharding_is_honoured(world: World):
    world.bootstrap()
    problem = world.problem(32, tokens=8)
    _, _, handle = _prepared(world, problem)
    rows = world.put(world.expert_rows(problem, 5))
    want = world.gather(problem, world.expert_rows(problem, 5))
    for spec in (
        None,
        (("dp", "ep"),),
        PartitionSpec(("dp", "ep"), None),
        ("ep", None),
        (None, None),
    ):
        with world.context():
            out = jax.jit(
                lambda h, r, s=spec: primitives.ep_combine_fwd(_CFG, h, r, want.shape[0], s)
            )(handle, rows)
        world.expect_equal(out, want, str(spec))


def _prepared(world: World, problem):
    problem.plans = [p for p in world.problem(32, tokens=8, alignment=4).plans]
    with world.context():
        return jax.jit(
            lambda i: jax.tree.map(
                lambda a: jax.lax.with_sharding_constraint(a, world.sharding),
                ep.ep_prepare(_CFG, i),
            )
        )(world.put(problem.topk_idx))
