"""Nothing concrete in a program: meshes of one shape share a trace and a lowering; abstract meshes; symbolic sizes."""

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator

import epd.jax as ep
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from layers import CFG, expect_results, inputs, layer, put, value_and_gradients
from world import World, raises

_CAPACITY = 64
_TRACED, _LOWERED, _COMPILED = (
    f"/jax/core/compile/{part}_duration"
    for part in ("jaxpr_trace", "jaxpr_to_mlir_module", "backend_compile")
)
_counts: Counter[str] = Counter()


def _listen(event: str, *_: object, **__: object) -> None:
    _counts[event] += 1


jax.monitoring.register_event_duration_secs_listener(_listen)


@contextlib.contextmanager
def _counted(**expected: int) -> Iterator[None]:
    """AssertionError unless the block traces, lowers and compiles as often as ``expected`` says."""
    before = _counts.copy()
    yield
    events = {"traced": _TRACED, "lowered": _LOWERED, "compiled": _COMPILED}
    got = {name: _counts[events[name]] - before[events[name]] for name in expected}
    assert got == expected, f"got {got}, expected {expected}"


def _operands(world: World, mesh: Mesh | None = None):
    world.bootstrap(capacity=_CAPACITY)
    arrays = inputs(91, 4 * world.num_ranks, world.sizes["num_experts"])
    return arrays, put(mesh or world.mesh, world.spec, arrays)


def check_one_trace_and_one_lowering_on_meshes_of_one_shape(world: World):
    """The devices in three orders, under jax.set_mesh and with no mesh but the operands': only compiled anew."""
    world.bootstrap(capacity=_CAPACITY)
    for axis_type in (AxisType.Auto, AxisType.Explicit):
        for sets_mesh in (True, False):
            _expect_one_trace(world, axis_type, sets_mesh)


def _expect_one_trace(world: World, axis_type: AxisType, sets_mesh: bool) -> None:
    traces, devices = [], list(world.mesh.devices.flat)

    def step(idx, tokens, weights):
        traces.append(1)
        return layer(_CAPACITY, idx, tokens, weights)

    step = jax.jit(value_and_gradients(step))
    results = []
    for order in (devices, devices[::-1], devices[1:] + devices[:1]):
        grid = np.array(order).reshape(world.mesh.devices.shape)
        mesh = Mesh(grid, world.mesh.axis_names, axis_types=(axis_type,) * 2)
        arrays, operands = _operands(world, mesh)
        context = jax.set_mesh(mesh) if sets_mesh else contextlib.nullcontext()
        first = order is devices
        counted = contextlib.nullcontext() if first else _counted(lowered=0, compiled=1)
        with context, ep.global_shard_guard(world.resource), counted:
            results.append((jax.block_until_ready(step(*operands)), arrays))
        assert len(traces) == 2, f"{len(traces)} traces"  # The value's and the gradients'.
    for number, (got, arrays) in enumerate(results):
        expect_results(world, got, arrays, f"{axis_type} {sets_mesh} order {number}")


def check_one_trace_on_disjoint_devices(world: World):
    """Half of this process's devices, then the other half: the ranks are places in the mesh."""
    devices = jax.local_devices()
    halves = [Mesh(np.array(half), ("ep",)) for half in (devices[:2], devices[2:4])]
    spec, traces = PartitionSpec("ep"), []
    arrays = inputs(92, 8, 4)
    sizes = {"num_experts": 4, "max_tokens_per_rank": 16, "recv_capacity_per_rank": _CAPACITY}
    group = ep.Group(
        "halves",
        mesh=halves[0],
        resource=ep.MeshResource(ep_resource="ep"),
        hidden_dim=8,
        max_token_dtype=jnp.float32,
        **sizes,
    )

    @jax.jit
    def step(idx, tokens, weights):
        traces.append(1)
        recv, recv_weights, handle, counts, _ = group.dispatch(CFG, idx, tokens, weights, _CAPACITY)
        rows = jnp.sin(recv) * recv_weights[..., None]
        return group.combine(CFG, handle, rows, idx.shape[0])

    with group:
        first = step(*put(halves[0], spec, arrays))
        operands = put(halves[1], spec, arrays)
        with _counted(traced=0, lowered=0, compiled=1):
            second = jax.block_until_ready(step(*operands))
    assert len(traces) == 1 and first.devices().isdisjoint(second.devices())
    np.testing.assert_array_equal(np.asarray(first), np.asarray(second))


def check_abstract_mesh_inside_jit(world: World):
    """In the caller's shard_map and with_sharding_constraint; no mesh is active, the operands bring their devices."""
    arrays, operands = _operands(world)
    abstract = world.mesh.abstract_mesh
    pinned = NamedSharding(abstract, world.spec)

    def wrapped(idx, tokens, weights):
        tokens = jax.lax.with_sharding_constraint(tokens, pinned)
        inner = jax.shard_map(
            functools.partial(layer, _CAPACITY),
            mesh=abstract,
            in_specs=world.spec,
            out_specs=world.spec,
        )
        out = jax.lax.with_sharding_constraint(layer(_CAPACITY, idx, tokens, weights), pinned)
        return (out + inner(idx, tokens, weights)) / 2

    with ep.global_shard_guard(world.resource):
        expect_results(world, jax.jit(value_and_gradients(wrapped))(*operands), arrays)
        with jax.sharding.use_abstract_mesh(abstract):
            expect_results(world, jax.jit(value_and_gradients(wrapped))(*operands), arrays)


def check_abstract_mesh_eagerly(world: World):
    """The concrete mesh is the operands'; JAX's error where they have none, or one of another shape."""
    arrays, operands = _operands(world)
    abstract = world.mesh.abstract_mesh
    whole = jax.shard_map(
        functools.partial(layer, _CAPACITY),
        mesh=abstract,
        in_specs=world.spec,
        out_specs=world.spec,
    )
    flat = Mesh(world.mesh.devices.reshape(1, -1), world.mesh.axis_names)
    elsewhere = put(flat, world.spec, arrays)
    with ep.global_shard_guard(world.resource):
        for function in (whole, functools.partial(layer, _CAPACITY)):
            with jax.sharding.use_abstract_mesh(abstract):
                out = function(*operands)
                want = value_and_gradients(jax.jit(function))(*operands)[0]
                for a, b in zip(out.addressable_shards, want.addressable_shards, strict=True):
                    np.testing.assert_array_equal(np.asarray(a.data), np.asarray(b.data))
                for wrong in (arrays, elsewhere):
                    with raises(ValueError, "mesh"):
                        jax.block_until_ready(function(*wrong))
                tokens = jax.lax.with_sharding_constraint(
                    operands[1], NamedSharding(abstract, world.spec)
                )
                world.expect_equal(tokens, arrays[1])


def check_symbolic_sizes_are_refused(world: World):
    """jax.export with a symbolic number of tokens: an error that names the operand, the size and what to do."""
    world.bootstrap(capacity=_CAPACITY)
    (tokens,) = jax.export.symbolic_shape(f"{world.num_ranks}*t")
    shapes = [
        jax.ShapeDtypeStruct((tokens, width), dtype, sharding=world.sharding)
        for width, dtype in ((2, jnp.int32), (8, jnp.float32), (2, jnp.float32))
    ]
    with world.context():
        with raises(ValueError, "ep_prepare", "topk_idx", "symbolic size", "export once per size"):
            jax.export.export(jax.jit(functools.partial(ep.ep_prepare, CFG)))(shapes[0])
        with raises(ValueError, "ep_dispatch", "topk_idx", "tokens", "topk_weights", "symbolic"):
            jax.export.export(jax.jit(functools.partial(layer, _CAPACITY)))(*shapes)
        handle = jax.ShapeDtypeStruct(
            (world.num_ranks, ep.ep_handle_mem_size(CFG)), jnp.uint8, sharding=world.sharding
        )
        rows = jax.ShapeDtypeStruct((world.num_ranks, _CAPACITY, 8), jnp.float32)
        combine = jax.jit(lambda h, r, i: ep.ep_combine(CFG, h, None, r, i.shape[0]))
        with raises(TypeError, "ep_combine", "num_local_tokens", "symbolic size"):
            jax.export.export(combine)(handle, rows, shapes[0])


def check_abstract_mesh_of_sizes_only(world: World):
    """Lowering for a mesh that nobody has."""
    world.bootstrap(capacity=_CAPACITY)
    mesh = AbstractMesh((world.dp, world.ep), ("dp", "ep"))
    sharding = NamedSharding(mesh, world.spec)
    shapes = [
        jax.ShapeDtypeStruct((4 * world.num_ranks, width), dtype, sharding=sharding)
        for width, dtype in ((2, jnp.int32), (8, jnp.float32), (2, jnp.float32))
    ]
    step = jax.jit(value_and_gradients(functools.partial(layer, _CAPACITY)))
    with jax.sharding.use_abstract_mesh(mesh), ep.global_shard_guard(world.resource):
        text = step.trace(*shapes).lower(lowering_platforms=("cpu",)).as_text()
    assert all(f"@{target}(" in text for target in ep.FFI_TARGET_NAMES[:5]), text


def check_exported_program_runs(world: World):
    """What jax.export made gives the layer's numbers, and so does the gradient through it."""
    arrays, operands = _operands(world)
    checks = [jax.export.DisabledSafetyCheck.custom_call(name) for name in ep.FFI_TARGET_NAMES]
    with world.context():
        function = jax.jit(functools.partial(layer, _CAPACITY))
        exported = jax.export.export(function, disabled_checks=checks)(*operands)
        got = jax.jit(value_and_gradients(exported.call))(*operands)
    expect_results(world, got, arrays)
