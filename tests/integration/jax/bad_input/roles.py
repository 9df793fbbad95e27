"""RoleGroup, roles, and what only a role's link has; programs/roles.py has the errors of running roles."""

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from world import World

from bad_input.groups import common_rows
from bad_input.rows import Row, rows_of

_CFG = ep.EpLayerConfig(top_k=2)


def _meshes(world: World) -> tuple[Mesh, Mesh]:
    devices = world.mesh.devices.reshape(-1)
    return Mesh(devices[:2], ("attention",)), Mesh(devices[2:], ("experts",))


def _described(world: World, **changed) -> ep.RoleGroup:
    """Two ranks with tokens and two with experts; no daemon is looked for."""
    tokens, experts = _meshes(world)
    given = {"num_experts": 4, "max_tokens_per_rank": 16, "recv_capacity_per_rank": 128}
    given |= {"hidden_dim": 8, "name": "bad", "token_mesh": tokens, "expert_mesh": experts}
    return ep.RoleGroup(**{**given, **changed})


def _role_groups() -> list[Row]:
    def meshes(**changed):
        return lambda world: _described(world, **{k: v(world) for k, v in changed.items()})

    same = lambda world: _meshes(world)[0]  # noqa: E731
    three = lambda world: Mesh(world.mesh.devices.reshape(-1)[1:], ("attention",))  # noqa: E731
    return common_rows("RoleGroup", _described) + rows_of(
        "RoleGroup",
        ("token_mesh", "a text", meshes(token_mesh=str), TypeError, "token_mesh must be a Mesh"),
        ("expert_mesh", "a text", meshes(expert_mesh=str), TypeError, "expert_mesh must be a Mesh"),
        ("expert_mesh", "the same", meshes(expert_mesh=same), ValueError, "are the same mesh"),
        (
            "expert_mesh",
            "an axis of another size",
            meshes(expert_mesh=three),
            ValueError,
            "axis 'attention' has size 2 in mesh 0 and 3 in mesh 1",
        ),
    )


def _calls() -> list[Row]:
    def call(**changed):
        def run(world: World) -> None:
            function = lambda link, *arguments: arguments  # noqa: E731
            shape = jax.ShapeDtypeStruct((2, 2), jnp.float32)
            given = {
                "pairs": [(_meshes(world)[0], function)],
                "group": _described(world),
                "out_shapes": [shape],
            }
            given |= {k: v(world) if callable(v) else v for k, v in changed.items()}
            ep.roles(**given)

        return run

    other = lambda world: [(world.mesh, print)]  # noqa: E731
    odd = [jax.ShapeDtypeStruct((3, 2), jnp.float32)]
    return rows_of(
        "roles",
        ("pairs", "none", call(pairs=[]), ValueError, "roles: pairs is empty"),
        (
            "pairs",
            "no pair",
            call(pairs=["x"]),
            TypeError,
            "roles: pair 0 must be (mesh, function)",
        ),
        ("pairs", "no mesh", call(pairs=[(3, print)]), TypeError, "mesh of pair 0 must be a Mesh"),
        (
            "pairs",
            "no function",
            call(pairs=lambda w: [(_meshes(w)[0], 5)]),
            TypeError,
            "the function of pair 0 must be callable, got int",
        ),
        ("pairs", "another mesh", call(pairs=other), ValueError, "pair 0", "none of the group's"),
        ("group", "a text", call(group="mine"), TypeError, "group must be a RoleGroup, got str"),
        ("out_shapes", "none", call(out_shapes=[]), ValueError, "0 entries, expected 1"),
        ("out_shapes", "a text", call(out_shapes=["x"]), TypeError, "ShapeDtypeStruct, got str"),
        (
            "out_shapes",
            "odd",
            call(out_shapes=odd),
            ValueError,
            "out_shapes[0]",
            "[3, 2]",
            "2 ranks",
        ),
        ("name", "an int", call(name=5), TypeError, "roles: name must be a str, got int"),
        ("name", "a space", call(name="a b"), ValueError, "roles: name is 'a b'"),
        ("name", "too long", call(name="x" * 201), ValueError, "roles: name is", "1 to 200"),
        ("metadata", "a text", call(metadata="x"), TypeError, "metadata must be a dict", "str"),
        (
            "metadata",
            "no text",
            call(metadata={"a": 1}),
            TypeError,
            "metadata must be a str",
            "int",
        ),
        ("metadata", "a sign", call(metadata={"a;b": "c"}), ValueError, "metadata is 'a;b'"),
        (
            "metadata",
            "too long",
            call(metadata={str(n): "x" * 50 for n in range(9)}),
            ValueError,
            "metadata has",
            "at most 256",
        ),
    )


def _links() -> list[Row]:
    def nothing(*arguments, **options):
        def call(world: World) -> None:
            place = (np.int32(0), np.int32(1))
            ep.RoleLink(_described(world).spec, place).nothing(*arguments, **options)

        return call

    short = jnp.zeros((1, 2))
    return rows_of(
        "RoleLink.nothing",
        ("cfg", "an int", nothing(2), TypeError, "cfg must be an EpLayerConfig, got int"),
        ("dtype", "no dtype", nothing(_CFG, "wide"), TypeError, "dtype 'wide' is no dtype"),
        ("after", "H", nothing(_CFG, after=short), ValueError, "after has shape [1, 2]", "[1, 8]"),
    )


def rows() -> list[Row]:
    """For a world of four ranks."""
    return _role_groups() + _calls() + _links()
