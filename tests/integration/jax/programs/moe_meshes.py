"""epd.jax.layers inside the caller's shard_map, on Explicit axes, with split experts; and what XLA communicates for them."""

import contextlib
import dataclasses
import re
from collections import Counter
from collections.abc import Iterator

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
    TOKENS,
    bootstrap,
    config_of,
    expect_dense,
    parameters_of,
    put_parameters,
    tokens_of,
)
from world import COLLECTIVES, World


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


@contextlib.contextmanager
def _bootstrapped(world: World, mesh: Mesh, **names) -> Iterator[None]:
    """The default group on another mesh of the world's devices."""
    ep.ep_finalize()
    world.sizes = {}
    with jax.set_mesh(mesh), ep.global_shard_guard(ep.MeshResource(**names)):
        ep.ep_bootstrap(
            world_size=4,
            rank=jax.process_index(),
            num_experts=EXPERTS,
            max_tokens_per_rank=2 * TOKENS,
            recv_capacity_per_rank=256,
            hidden_dim=HIDDEN,
            max_token_dtype=jnp.float32,
        )
        yield
        ep.ep_finalize()


def check_tokens_and_experts_over_two_axes(world: World):
    """Experts over ("context", "expert"), and tokens over dp and fsdp."""
    mesh = Mesh(world.mesh.devices, ("expert", "context"))
    spec = ("context", "expert")
    with _bootstrapped(world, mesh, cp_resource="context", ep_resource=spec):
        assert partition_specs(SIGMOID)["experts"]["up"][0] == spec
        expect_dense(world, SIGMOID, mesh=mesh, spec=PartitionSpec(spec))
    mesh = Mesh(world.mesh.devices[..., None], ("dp", "fsdp", "ep"))
    names = {"dp_resource": "dp", "fsdp_resource": "fsdp", "ep_resource": "ep"}
    with _bootstrapped(world, mesh, **names):
        expect_dense(world, SIGMOID, mesh=mesh, spec=PartitionSpec(("dp", "fsdp", "ep")))


def check_split_experts_under_logical_names(world: World):
    """Inner dimensions split over a tensor-parallel axis, by rules; tokens over ep alone."""
    mesh = Mesh(world.mesh.devices, ("ep", "tp"))
    rules = {"expert": "ep", "mlp": "tp", "embed": None}
    axes = Axes(expert="expert", mlp="mlp", embed="embed", rules=rules)
    config = dataclasses.replace(SIGMOID, axes=axes)
    with _bootstrapped(world, mesh, ep_resource="ep"):
        spec = PartitionSpec("ep")
        expect_dense(world, config, mesh=mesh, spec=spec)
        slots = recv_capacity(config, 2 * TOKENS, 2, jnp.float32)
        reduced = _reduced(_compiled(mesh, spec, config, backward=False))
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
