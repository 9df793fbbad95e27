"""Kinds of axes and axes beside ep: the same numbers, the right varying axes, and no collective of XLA's anywhere."""

import functools
import math
from collections.abc import Callable

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from epd.jax import primitives
from jax.sharding import AxisType, Mesh, PartitionSpec
from layers import (
    CFG,
    collectives_in,
    expect_results,
    inputs,
    layer,
    put,
    value_and_gradients,
)
from world import World, raises

P = PartitionSpec
_CAPACITY = 64
_MESHES = {
    "dp": ({"dp": 2, "ep": 4}, {"dp_resource": "dp"}),
    "fsdp": ({"fsdp": 2, "ep": 4, "dp": 1}, {"fsdp_resource": "fsdp", "dp_resource": "dp"}),
    "tp": ({"dp": 2, "ep": 2, "tp": 2}, {"dp_resource": "dp", "tp_resource": "tp"}),
    "pp and cp": ({"pp": 2, "ep": 2, "cp": 2}, {"pp_resource": "pp", "cp_resource": "cp"}),
    "dp and fsdp": (
        {"ep": 2, "fsdp": 2, "dp": 2},
        {"dp_resource": "dp", "fsdp_resource": "fsdp"},
    ),
    "two of ep": (
        {"expert": 2, "dp": 2, "context": 2},
        {"dp_resource": "dp", "cp_resource": "context", "ep_resource": ("context", "expert")},
    ),
}


class _Job:
    """A mesh with a bootstrapped group, and operands that are split over (outer, ep)."""

    def __init__(self, world: World, kind: str, axis_type=AxisType.Auto):
        shape, resource = _MESHES[kind]
        devices = np.array(jax.devices()[: math.prod(shape.values())])
        self.mesh = Mesh(
            devices.reshape(tuple(shape.values())),
            tuple(shape),
            axis_types=(axis_type,) * len(shape),
        )
        self.resource = ep.MeshResource(**{"ep_resource": "ep", **resource})
        outer = tuple(axis for axis in ("dp", "fsdp") if shape.get(axis, 1) > 1)
        own = self.resource.ep_resource
        own = (own,) if isinstance(own, str) else own
        self.ep_size = math.prod(shape[axis] for axis in own)
        self.lead = (*outer, *own)
        self.spec = P(self.lead if len(self.lead) > 1 else "ep")
        self.shards = math.prod(shape[axis] for axis in self.lead)
        self.beside = tuple(axis for axis in shape if axis not in self.lead)
        self.arrays = inputs(61, 4 * self.shards, 2 * self.ep_size)
        ep.ep_finalize()
        world.sizes = {}
        with self:
            ep.ep_bootstrap(
                devices.size, 0, 2 * self.ep_size, 16, _CAPACITY, 8, max_token_dtype=jnp.float32
            )
        self.operands = put(self.mesh, self.spec, self.arrays)

    def __enter__(self):
        self._contexts = (jax.set_mesh(self.mesh), ep.global_shard_guard(self.resource))
        self._contexts[1].__enter__()

    def __exit__(self, *error):
        self._contexts[1].__exit__(*error)
        self._contexts[0].__exit__(*error)

    def expect(self, world: World, wrap, what: str, local_gradient: bool = False) -> None:
        """Numbers and no collectives. ``local_gradient``: gradients inside ``wrap``, as its shards see them."""
        function = functools.partial(layer, _CAPACITY)
        function = (
            wrap(value_and_gradients(function))
            if local_gradient
            else value_and_gradients(wrap(function))
        )
        with self:
            compiled = jax.jit(function).lower(*self.operands).compile()
            found = collectives_in(compiled)
            assert not found, f"{what}: {found}"
            expect_results(world, compiled(*self.operands), self.arrays, what)


def _plain(function):
    return function


def _every_axis(job: _Job, **options):
    return functools.partial(
        jax.shard_map, mesh=job.mesh, in_specs=job.spec, out_specs=job.spec, **options
    )


def _run(world: World, kind: str) -> None:
    for axis_type in (AxisType.Auto, AxisType.Explicit):
        job = _Job(world, kind, axis_type)
        what = f"{kind}, {axis_type.name} axes"
        job.expect(world, _plain, what)
        job.expect(world, _every_axis(job), f"{what}, shard_map with check_vma")
        # Without tracking, JAX sums the gradients of what a shard_map's axes do not split itself: so inside.
        whole = _every_axis(job, check_vma=False)
        job.expect(world, whole, f"{what}, shard_map without", local_gradient=bool(job.beside))


def check_dp(world: World):
    _run(world, "dp")


def check_that_a_collective_would_be_found(world: World):
    """Tokens that lie over one axis of two must be moved: the search of the other checks sees how."""
    job = _Job(world, "dp")
    tokens = put(job.mesh, P("dp"), job.arrays[1:2])[0]
    with job:
        step = jax.jit(functools.partial(layer, _CAPACITY), out_shardings=tokens.sharding)
        compiled = step.lower(job.operands[0], tokens, job.operands[2]).compile()
    assert collectives_in(compiled)


def check_fsdp(world: World):
    _run(world, "fsdp")


def check_tp_beside_ep(world: World):
    _run(world, "tp")


def check_pp_and_cp_beside_ep(world: World):
    _run(world, "pp and cp")


def check_dp_and_fsdp_carry_tokens(world: World):
    _run(world, "dp and fsdp")


def check_ep_over_two_axes(world: World):
    _run(world, "two of ep")


def check_shard_map_over_some_axes(world: World):
    """The caller is manual over one axis, of tokens or beside them; the others are left to the operations."""
    job = _Job(world, "tp")
    for axes, spec in (
        ({"dp"}, P("dp")),
        ({"tp"}, P()),
        ({"dp", "tp"}, P("dp")),
        ({"ep"}, P("ep")),
    ):
        if axes == {"ep"}:  # The caller splits by ep first, so that is how the operands must lie.
            job.operands = put(job.mesh, P(("ep", "dp")), job.arrays)
        for check_vma in (True, False):
            wrap = functools.partial(
                jax.shard_map,
                mesh=job.mesh,
                in_specs=spec,
                out_specs=spec,
                axis_names=axes,
                check_vma=check_vma,
            )
            sums_itself = not check_vma and "tp" in axes
            job.expect(world, wrap, f"{axes} {check_vma}", local_gradient=sums_itself)


def _varying(array) -> set[str]:
    aval = jax.typeof(array)
    manual = getattr(aval, "manual_axis_type", None)
    return set(manual.varying if manual is not None else aval.vma)


def check_outputs_carry_the_right_varying_axes(world: World):
    """Over (outer, ep) always; over an axis beside them exactly if an operand does."""
    job = _Job(world, "tp")
    seen = []

    def results(idx, tokens, weights):
        counts, total, handle = ep.ep_prepare(CFG, idx)
        recv = primitives.ep_dispatch_fwd(CFG, handle, idx, tokens, weights, _CAPACITY)
        out = ep.ep_combine(CFG, handle, counts, recv[0], idx.shape[0])
        back = primitives.ep_dispatch_bwd(CFG, handle, *recv, idx.shape[0])
        rows = primitives.ep_combine_bwd(CFG, handle, out, _CAPACITY)
        seen.append([_varying(a) for a in (counts, total, handle, *recv, out, *back, rows)])
        return out

    def apart_by_tp():
        return 1 + jax.lax.axis_index("tp").astype(jnp.float32)

    trace = jax.jit(_every_axis(job)(results)).lower
    with job:
        trace(*job.operands)
        # Ids and weights that are the same on all ranks become varying with the tokens.
        same = [job.arrays[0][:4], job.operands[1], job.arrays[2][:4]]
        specs = (P(), job.spec, P())
        some = jax.shard_map(results, mesh=job.mesh, in_specs=specs, out_specs=job.spec)
        jax.jit(some).lower(*same)
        # Half of the hidden dimension's neighbours: tokens that differ along tp.
        apart = jax.shard_map(
            lambda i, t, w: results(i, t * apart_by_tp(), w)[None],
            mesh=job.mesh,
            in_specs=job.spec,
            out_specs=P("tp", ("dp", "ep")),
        )
        out = jax.jit(apart)(*job.operands)
        with raises(ValueError, "tp"):
            wrong = jax.shard_map(
                lambda i, t, w: results(i, t * apart_by_tp(), w),
                mesh=job.mesh,
                in_specs=job.spec,
                out_specs=job.spec,
            )
            jax.jit(wrong).lower(*job.operands)
    lead, all_axes = {"dp", "ep"}, {"dp", "ep", "tp"}
    assert seen[0] == seen[1] == [lead] * 9, seen
    # The plan is made of ids that do not differ along tp; everything that the tokens reach may.
    assert seen[2] == [lead] * 3 + [all_axes] * 6, seen[2]
    plain = np.where(job.arrays[0] >= 0, 1, 0).sum(1, keepdims=True) * job.arrays[1]
    world.expect_close(out, np.stack([plain, 2 * plain]))


def _explicit(world: World):
    job = _Job(world, "dp", AxisType.Explicit)
    return job, job.operands


def check_wrong_shardings_raise_while_tracing(world: World):
    """Explicit axes: every operand of every operation that lies otherwise is named, with what it is and should be."""
    job, (idx, tokens, weights) = _explicit(world)
    other = {
        "topk_idx": put(job.mesh, P("dp"), job.arrays[:1])[0],
        "tokens": put(job.mesh, P(None, ("dp", "ep")), job.arrays[1:2])[0],
        "topk_weights": put(job.mesh, P(), job.arrays[2:])[0],
    }
    wanted = "P(('dp', 'ep')"

    def dispatch(idx, tokens, weights):
        return ep.ep_dispatch(CFG, idx, tokens, weights, _CAPACITY)

    with job:
        for name, got in (
            ("topk_idx", "P('dp'"),
            ("tokens", "P(None, ('dp', 'ep'))"),
            ("topk_weights", "P(None, None)"),
        ):
            operands = {
                "topk_idx": idx,
                "tokens": tokens,
                "topk_weights": weights,
                name: other[name],
            }
            with raises(ValueError, "ep_dispatch", name, got, wanted):
                jax.jit(dispatch).lower(*operands.values())
        with raises(ValueError, "ep_dispatch", "topk_idx", "tokens", "topk_weights"):
            jax.jit(dispatch).lower(*other.values())
        with raises(ValueError, "ep_prepare", "topk_idx", "P('dp'", wanted):
            jax.jit(functools.partial(ep.ep_prepare, CFG)).lower(other["topk_idx"])
        _, _, handle = jax.jit(functools.partial(ep.ep_prepare, CFG))(idx)
        rows = np.zeros((job.shards, _CAPACITY, 8), np.float32)
        rows = put(job.mesh, P("ep"), [rows])[0]
        count = idx.shape[0]
        for call, name in (
            (lambda h, r: ep.ep_combine(CFG, h, None, r, count), "expert_out"),
            (lambda h, r: primitives.ep_combine_fwd(CFG, h, r, count), "expert_out"),
            (lambda h, r: primitives.ep_dispatch_bwd(CFG, h, r, r[..., 0], count), "grad"),
        ):
            with raises(ValueError, name, "P('ep'", wanted):
                jax.jit(call).lower(handle, rows)
        with raises(ValueError, "handle_mem", "grad", wanted):
            jax.jit(lambda h, g: primitives.ep_combine_bwd(CFG, h, g, _CAPACITY)).lower(
                jax.sharding.reshard(handle, P()), other["tokens"]
            )


def _group_of(devices: int) -> tuple[ep.Group, Callable]:
    """A group on the first devices, and a round trip in it, outside of which no mesh is active."""
    mesh = jax.make_mesh((devices,), ("ep",), (AxisType.Explicit,), devices=jax.devices()[:devices])
    resource = ep.MeshResource(ep_resource="ep")
    sizes = {"max_tokens_per_rank": 8, "recv_capacity_per_rank": 64, "hidden_dim": 8}
    group = ep.Group(
        f"placed-{devices}",
        mesh=mesh,
        resource=resource,
        num_experts=8,
        max_token_dtype=jnp.float32,
        **sizes,
    )

    def step(idx, tokens, weights):
        recv, _, handle, *_ = group.dispatch(CFG, idx, tokens, weights, 64)
        return group.combine(CFG, handle, recv, len(tokens))

    return group, step


def _on_no_mesh(rows: int) -> tuple[np.ndarray, ...]:
    return np.zeros((rows, 2), np.int32), np.ones((rows, 8), np.float32), np.ones((rows, 2), "f")


def check_operands_on_no_mesh_raise_while_tracing(world: World):
    """Explicit axes, as jax.make_mesh makes them."""
    group, step = _group_of(devices=2)
    with group:
        for given in (_on_no_mesh(16), tuple(map(jnp.asarray, _on_no_mesh(16)))):
            for function in (step, jax.jit(step)):
                names = "tokens", "topk_idx", "topk_weights"
                with raises(ValueError, "Group.dispatch", *names, "P(None, None)", "P('ep'"):
                    function(*given)


def check_operands_on_no_mesh_are_fine_on_one_device(world: World):
    group, step = _group_of(devices=1)
    idx, tokens, weights = _on_no_mesh(8)
    with group:
        for function in (step, jax.jit(step)):
            out = function(idx, tokens, weights)
            np.testing.assert_array_equal(np.asarray(out), 2 * tokens)
        gradient = jax.jit(jax.grad(lambda t: step(idx, t, weights).sum()))(tokens)
        np.testing.assert_array_equal(np.asarray(gradient), 2 * tokens)


def check_out_shardings_that_cannot_be_are_named(world: World):
    """out_sharding with an axis that is none of the mesh's, twice the same axis, or too many entries."""
    for axis_type in (AxisType.Auto, AxisType.Explicit):
        job = _Job(world, "dp", axis_type)
        with job:
            _, _, handle = jax.jit(functools.partial(ep.ep_prepare, CFG))(job.operands[0])
            rows = put(job.mesh, job.spec, [np.zeros((job.shards, _CAPACITY, 8), np.float32)])[0]
            for spec, texts in (
                (("elsewhere",), ("out_sharding", "elsewhere", "('dp', 'ep')")),
                ((("dp", "ep"), "ep"), ("out_sharding", "'ep'", "twice")),
                ((("dp", "ep"), None, None), ("out_sharding", "3 entries", "2 dimensions")),
                ((("dp", 3),), ("out_sharding", "[3]")),
            ):
                with raises(ValueError, *texts):
                    jax.jit(
                        lambda h, r, s=spec: ep.ep_combine(CFG, h, None, r, 32, out_sharding=s)
                    ).lower(handle, rows)
