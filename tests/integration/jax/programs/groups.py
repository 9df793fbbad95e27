"""Groups as objects: several in one program, tables of experts' owners, names, what a plan says."""

import contextlib
import gc
from collections.abc import Iterator

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
import reference
from jax.sharding import PartitionSpec
from world import World, fails, raises

_CFG = ep.EpLayerConfig(top_k=2)
_ALIGNED = ep.EpLayerConfig(top_k=2, dispatch_output_per_expert_alignment=4)
_RANKS_ALONG_DP = ep.MeshResource(dp_resource="ep", ep_resource="dp")


@contextlib.contextmanager
def _group(world: World, name: str, **sizes) -> Iterator[ep.Group]:
    defaults = {
        "num_experts": 2 * world.ep,
        "max_tokens_per_rank": 16,
        "recv_capacity_per_rank": 128,
        "hidden_dim": 8,
        "max_token_dtype": jnp.float32,
        "resource": world.resource,
    }
    with world.context(), ep.Group(name, **{**defaults, **sizes}) as group:
        yield group


def _problem(world: World, group: ep.Group, seed: int, *, alignment=0, dtype=np.float32, tokens=8):
    """Data of the group's ranks, in the order (outer, ep) of its tokens, and one plan for each domain."""
    print(f"seed {seed}", flush=True)
    sizes, rng = group.config, np.random.default_rng(seed)
    idx = rng.integers(0, sizes.num_experts, (world.num_ranks * tokens, 2))
    idx[rng.random(idx.shape) < 0.2] = -1
    rows = rng.standard_normal((world.num_ranks * tokens, sizes.hidden_dim)).astype(dtype)
    domains = idx.reshape(-1, sizes.ep_size, tokens, 2)
    plans = [
        reference.plan(domain, sizes.num_experts, alignment, group.spec.expert_owner)
        for domain in domains
    ]
    weights = rng.random(idx.shape).astype(np.float32)
    return idx.astype(np.int32), rows, weights, plans


def _scattered(plans, rows, capacity):
    parts = rows.reshape(len(plans), plans[0].slot.shape[0], -1, rows.shape[-1])
    pairs = zip(plans, parts, strict=True)
    return np.concatenate([reference.scatter(plan, part, capacity) for plan, part in pairs])


def _gathered(plans, rows):
    parts = rows.reshape(len(plans), -1, *rows.shape[1:])
    pairs = zip(plans, parts, strict=True)
    return np.concatenate(
        [reference.gather(p, part).reshape(-1, rows.shape[-1]) for p, part in pairs]
    )


def _expect_counts(world: World, array: jax.Array, plans) -> None:
    world.expect_equal(array, np.concatenate([plan.token_counts for plan in plans]))


def _layer(group: ep.Group, cfg, capacity: int, name: str | None = None):
    """tokens -> sum over k of 3 * tokens, and what dispatch gave."""

    def layer(idx, tokens, weights):
        recv, _, handle, counts, total = group.dispatch(
            cfg, idx, tokens, weights, capacity, name=name
        )
        out = group.combine(cfg, handle, recv * 3, tokens.shape[0], name=name)
        return out, (recv, counts, total)

    return layer


def check_two_groups_of_different_domains_in_one_program(world: World):
    """Other experts, hidden sizes, dtypes and directions of the mesh; forward and backward."""
    wide = {"num_experts": 3 * world.dp, "hidden_dim": 24, "max_token_dtype": jnp.bfloat16}
    with (
        _group(world, "rows") as rows,
        _group(world, "columns", **wide, resource=_RANKS_ALONG_DP) as columns,
    ):
        assert (rows.config.ep_size, columns.config.ep_size) == (world.ep, world.dp)
        data = [
            _problem(world, rows, 101),
            _problem(world, columns, 102, alignment=4, dtype=jnp.bfloat16),
        ]
        specs = [world.spec, PartitionSpec(("ep", "dp"))]
        layers = [_layer(rows, _CFG, 128), _layer(columns, _ALIGNED, 96)]

        @jax.jit
        def step(arguments):
            def value(tokens):
                outs = [
                    layer(idx, rows, weights)
                    for layer, (idx, _, weights), rows in zip(
                        layers, arguments, tokens, strict=True
                    )
                ]
                return sum((out.astype(jnp.float32) ** 2).sum() for out, _ in outs), outs

            return jax.value_and_grad(value, has_aux=True)([tokens for _, tokens, _ in arguments])

        arguments = [
            [world.put(array, spec) for array in problem[:3]]
            for problem, spec in zip(data, specs, strict=True)
        ]
        (_, outs), grads = jax.block_until_ready(step(arguments))
    for (out, (recv, counts, _)), grad, problem, capacity in zip(
        outs, grads, data, (128, 96), strict=True
    ):
        _, tokens, _, plans = problem
        want = _scattered(plans, tokens, capacity)
        world.expect_equal(recv, want)
        _expect_counts(world, counts, plans)
        combined = _gathered(plans, (want * 3).astype(tokens.dtype))
        world.expect_equal(out, combined)
        back = _scattered(plans, (2 * combined.astype(np.float32)).astype(tokens.dtype), capacity)
        world.expect_close(grad, _gathered(plans, (3 * back).astype(tokens.dtype)), 2e-2)


def check_uneven_tables_and_ranks_without_experts(world: World):
    """E not divisible by R, experts in any order, the last rank without any (a single rank owns all)."""
    owners = [max(0, (5 * e + 1) % world.ep - (world.ep > 1)) for e in range(2 * world.ep + 3)]
    expect_layer_of_table(world, owners)
    assert world.ep == 1 or world.ep - 1 not in owners


def expect_layer_of_table(world: World, owners: list[int]) -> None:
    """Forward and backward of a layer whose experts' owners are this table equal the reference's."""
    with _group(
        world,
        "uneven",
        num_experts=len(owners),
        expert_owner=owners,
        hidden_dim=9,
        recv_capacity_per_rank=256,
    ) as group:
        idx, tokens, weights, plans = _problem(world, group, 103, alignment=4)
        assert group.config.num_local_experts == plans[0].token_counts.shape[1]
        for rank in set(range(world.ep)) - set(owners):
            assert (plans[0].token_counts[rank] == 0).all()
        layer = _layer(group, _ALIGNED, 256)
        out, (recv, counts, total) = jax.jit(layer)(*[world.put(a) for a in (idx, tokens, weights)])
        grad = jax.jit(jax.grad(lambda i, t, w: layer(i, t, w)[0].sum(), 1))(
            *[world.put(a) for a in (idx, tokens, weights)]
        )
        jax.block_until_ready((out, grad))
    _expect_counts(world, counts, plans)
    world.expect_equal(total, np.concatenate([plan.total for plan in plans]))
    want = _scattered(plans, tokens, 256)
    world.expect_equal(recv, want)
    world.expect_equal(out, _gathered(plans, want * 3))
    routes = (idx >= 0).sum(1, keepdims=True)
    world.expect_equal(grad, (3.0 * routes * np.ones_like(tokens)).astype(np.float32))


def check_groups_and_the_default_one_act_side_by_side(world: World):
    world.bootstrap()
    with _group(world, "beside", num_experts=4 * world.ep) as group:
        assert ep.default_group().name == "default" and group.name == "beside"
        assert ep.default_group().config.num_experts == 2 * world.ep
        problem = world.problem(104, tokens=8)
        idx, tokens, weights, plans = _problem(world, group, 105)

        @jax.jit
        def step(mine, theirs):
            recv, *_ = ep.ep_dispatch(_CFG, *mine, 128)
            other, *_ = group.dispatch(_CFG, *theirs, 128)
            return recv, other

        recv, other = jax.block_until_ready(
            step(
                [world.put(a) for a in (problem.topk_idx, problem.tokens, problem.weights)],
                [world.put(a) for a in (idx, tokens, weights)],
            )
        )
    world.expect_equal(recv, world.scatter(problem, problem.tokens))
    world.expect_equal(other, _scattered(plans, tokens, 128))


def check_names_meet_and_a_second_use_is_refused(world: World):
    with _group(world, "named") as group:
        idx, tokens, weights, plans = _problem(world, group, 106)
        arguments = [world.put(a) for a in (idx, tokens, weights)]
        layer = _layer(group, _CFG, 128, name="boundary")
        step = jax.jit(jax.value_and_grad(lambda i, t, w: layer(i, t, w)[0].sum(), 1))
        for _ in range(3):
            _, grad = step(*arguments)
        routes = (idx >= 0).sum(1, keepdims=True)
        world.expect_equal(grad, (3.0 * routes * np.ones_like(tokens)).astype(np.float32))
        assert '"boundary"' in step.lower(*arguments).as_text()

        twice = lambda i, t, w: layer(i, layer(i, t, w)[0], w)[0]  # noqa: E731
        with raises(ValueError, "Group.dispatch", "'boundary'", "twice"):
            jax.jit(twice).lower(*arguments)
        # What one trace cannot see: an inner jit is traced once and called twice.
        inner = jax.jit(lambda i, t, w: layer(i, t, w)[0])
        try:
            jax.jit(lambda i, t, w: inner(i, inner(i, t, w), w)).lower(*arguments).compile()
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            assert "boundary" in str(error) and "phase=compile" in str(error), error
        else:
            raise AssertionError("a name was used twice in a program, and nobody said so")
        world.expect_equal(
            jax.jit(lambda *a: layer(*a)[0])(*arguments),
            _gathered(plans, 3 * _scattered(plans, tokens, 128)),
        )


def check_routing_stats_are_those_of_the_plan(world: World):
    """Unpadded counts, sizes cut off at the capacity, drops of each source: against the plan's routes."""
    owners = [e % max(1, world.ep - 1) for e in range(2 * world.ep + 1)]
    with _group(
        world, "stats", num_experts=len(owners), expert_owner=owners, drop_on_overflow=True
    ) as group:
        idx, *_, plans = _problem(world, group, 107, alignment=4, tokens=12)
        for capacity in (5, 17, 128):

            @jax.jit
            def step(idx, capacity=capacity):
                _, _, handle = group.prepare(_ALIGNED, idx)
                return group.routing_stats(handle, capacity)

            stats = step(world.put(idx))
            wanted = [
                _stats(plan, domain, group, capacity) for plan, domain in _domains(plans, idx)
            ]
            for got, want in zip(stats, zip(*wanted, strict=True), strict=True):
                world.expect_equal(got, np.concatenate(want))
            if world.num_ranks > 1:
                assert any(want[2].sum() > 0 for want in wanted) == (capacity < 128)


def check_expert_of_slots_names_the_expert_of_each_row(world: World):
    """Against the plan: a slot's expert by the route that fills it, -1 for padding and tail; also cut off by the capacity."""
    owners = [e % max(1, world.ep - 1) for e in range(2 * world.ep + 1)]
    with _group(
        world, "slots", num_experts=len(owners), expert_owner=owners, drop_on_overflow=True
    ) as group:
        idx, *_, plans = _problem(world, group, 110, alignment=4, tokens=12)
        for capacity in (None, 17):

            @jax.jit
            def step(idx, capacity=capacity):
                return group.expert_of_slots(group.prepare(_ALIGNED, idx)[2], capacity)

            experts = step(world.put(idx))
            wanted = []
            for plan, domain in _domains(plans, idx):
                want = np.full((world.ep, 128), -1)
                for place in np.argwhere(plan.destination >= 0):
                    rank, expert = plan.destination[tuple(place)], domain[tuple(place)]
                    own = np.flatnonzero(np.asarray(owners) == rank)
                    want[rank, plan.slot[tuple(place)]] = np.flatnonzero(own == expert)[0]
                wanted.append(want[:, : capacity or 128])
            world.expect_equal(experts, np.concatenate(wanted))


def check_a_cell_that_runs_twice_takes_the_group_over(world: World):
    """The second Group holds what the first one did, which then leaves nothing; a program of the first one goes on."""
    with _group(world, "cell") as first:
        idx, tokens, weights, plans = _problem(world, first, 111)
        arguments = [world.put(a) for a in (idx, tokens, weights)]
        step = jax.jit(lambda i, t, w: first.dispatch(_CFG, i, t, w, 128)[0])
        want = _scattered(plans, tokens, 128)
        world.expect_equal(step(*arguments), want)
        epoch = first.epoch
        assert (first.state, epoch > 0) == ("ready", True)
        with _group(world, "cell") as second:
            assert ep.Group.get("cell") is second and second.epoch == epoch
            first.finalize()
            assert second.state == "ready"
            second.wait_ready(timeout=60)
            world.expect_equal(step(*arguments), want)
            world.barrier("every process has used the second")
        assert second.state == first.state == "left"


def _gone(name: str) -> bool:
    gc.collect()
    try:
        ep.Group.get(name)
    except ValueError:
        return True
    return False


def check_a_collected_group_is_left_unless_a_program_names_it(world: World):
    """Unused: left. A program that is traced, lowered, jitted or compiled ahead of time outlives its Group."""
    sizes = {"num_experts": 2 * world.ep, "hidden_dim": 8, "max_token_dtype": jnp.float32}
    sizes |= {"max_tokens_per_rank": 16, "recv_capacity_per_rank": 128, "resource": world.resource}

    def made(name: str) -> tuple:
        """A step of a Group that nobody holds but the step."""
        group = ep.Group(name, mesh=world.mesh, **sizes)
        problem = _problem(world, group, 112)
        return (lambda i, t, w: group.dispatch(_CFG, i, t, w, 128)[0]), problem

    step, (idx, tokens, weights, plans) = made("unused")
    arguments = [world.put(a) for a in (idx, tokens, weights)]
    assert ep.Group.get("unused").state == "ready"
    del step
    assert _gone("unused")
    with _group(world, "unused", hidden_dim=16) as other:  # The name is free for other sizes.
        assert other.state == "ready"

    want = _scattered(plans, tokens, 128)
    step, _ = made("jitted")
    jitted = jax.jit(step)
    del step
    assert not _gone("jitted")
    world.expect_equal(jitted(*arguments), want)

    step, _ = made("lowered")
    lowered = jax.jit(step).lower(*arguments)
    del step
    jax.clear_caches()
    assert not _gone("lowered")
    compiled = lowered.compile()
    del lowered
    jax.clear_caches()
    assert not _gone("lowered")
    world.expect_equal(compiled(*arguments), want)
    world.barrier("every process has run what it compiled")
    for name in ("jitted", "lowered"):
        ep.Group.get(name).finalize()
        assert _gone(name)
    with fails("FAILED_PRECONDITION", "lowered"):
        jax.block_until_ready(compiled(*arguments))


def _domains(plans, idx):
    return zip(plans, idx.reshape(len(plans), *plans[0].slot.shape), strict=True)


def _stats(plan, idx, group: ep.Group, capacity: int):
    owners = np.asarray(group.spec.expert_owner)
    ranks, n = plan.token_counts.shape
    counts, sizes = np.zeros((ranks, n), int), np.zeros((ranks, n), int)
    for rank in range(ranks):
        for e, expert in enumerate(np.flatnonzero(owners == rank)):
            counts[rank, e] = (idx == expert).sum()
        ends = np.minimum(plan.token_counts[rank].cumsum(), capacity)
        sizes[rank] = np.diff(ends, prepend=0)
    dropped = (plan.destination >= 0) & (plan.slot >= capacity)
    drops = [
        [(dropped[source] & (plan.destination[source] == rank)).sum() for source in range(ranks)]
        for rank in range(ranks)
    ]
    return counts, sizes, np.array(drops)


def check_a_group_left_and_made_again_serves_the_same_program(world: World):
    """And a group of the name with other sizes says which one differs, on every rank."""
    with _group(world, "again") as group:
        idx, tokens, weights, plans = _problem(world, group, 108)
        arguments = [world.put(a) for a in (idx, tokens, weights)]
        step = jax.jit(lambda i, t, w: group.dispatch(_CFG, i, t, w, 128)[0])
        want = _scattered(plans, tokens, 128)
        world.expect_equal(step(*arguments), want)
    with _group(world, "again"):
        world.expect_equal(step(*arguments), want)
    with _group(world, "again", expert_owner=[e % world.ep for e in range(2 * world.ep)]):
        # A rank that has its error leaves at once; one that comes later hears of the error, not of that.
        with fails("INVALID_ARGUMENT", "expert_owner"):
            jax.block_until_ready(step(*arguments))
    with world.context(), fails("FAILED_PRECONDITION", "again"):
        jax.block_until_ready(step(*arguments))


def check_tracing_needs_no_daemon_and_no_devices(world: World):
    """A group that is only described, on an AbstractMesh, lowers to the text of the joined one."""
    sizes = {
        "num_experts": 2 * world.ep,
        "max_tokens_per_rank": 16,
        "recv_capacity_per_rank": 128,
        "hidden_dim": 8,
        "max_token_dtype": jnp.float32,
        "resource": world.resource,
    }
    abstract = world.mesh.abstract_mesh
    described = ep.Group("text", mesh=abstract, connect=False, **sizes)
    shapes = [((8 * world.num_ranks, 2), jnp.int32), ((8 * world.num_ranks, 8), jnp.float32)]
    shapes = [*shapes, ((8 * world.num_ranks, 2), jnp.float32)]
    operands = [jax.ShapeDtypeStruct(*shape, sharding=world.sharding) for shape in shapes]

    def text(group):
        return (
            jax.jit(lambda i, t, w: group.dispatch(_CFG, i, t, w, 128)[:2])
            .lower(*operands)
            .as_text()
        )

    with world.context():
        lowered = text(described)
    with _group(world, "text") as joined:
        assert lowered == text(joined)
    with raises(ValueError, "AbstractMesh"):
        described.connect()


def check_the_mesh_of_the_group_serves_where_none_is_active(world: World):
    with _group(world, "mesh", mesh=world.mesh) as group:
        pass
    with ep.Group(
        "mesh",
        num_experts=2 * world.ep,
        max_tokens_per_rank=16,
        recv_capacity_per_rank=128,
        hidden_dim=8,
        max_token_dtype=jnp.float32,
        mesh=world.mesh,
        resource=world.resource,
    ) as group:
        idx, tokens, weights, plans = _problem(world, group, 109)
        recv, *_ = jax.jit(lambda i, t, w: group.dispatch(_CFG, i, t, w, 128))(
            *[world.put(a) for a in (idx, tokens, weights)]
        )
        jax.block_until_ready(recv)
    world.expect_equal(recv, _scattered(plans, tokens, 128))
