"""ep_bootstrap, Group and Group.join, and what they need around them."""

import contextlib
from collections.abc import Callable
from types import SimpleNamespace

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from epd.jax import primitives
from jax.sharding import AbstractMesh, Mesh
from world import World

from bad_input.rows import CONTEXT, Row, rows_of

_SIZES = ("num_experts", "max_tokens_per_rank", "recv_capacity_per_rank", "hidden_dim")


def sizes(world: World, **changed) -> dict:
    """Arguments of ep_bootstrap for the world's mesh."""
    return {
        "world_size": world.num_ranks,
        "rank": jax.process_index(),
        "num_experts": 2 * world.ep,
        "max_tokens_per_rank": 16,
        "recv_capacity_per_rank": 128,
        "hidden_dim": 8,
        **changed,
    }


def _bootstrap(**wrong) -> Callable[[World], None]:
    def call(world: World) -> None:
        with world.context():
            ep.ep_bootstrap(**sizes(world, **wrong))

    return call


def _bootstrap_in(mesh: Callable[[World], Mesh | None], **resource: str | None):
    """With this mesh and these axes' names; without a MeshResource if there are none."""

    def call(world: World) -> None:
        with contextlib.ExitStack() as stack:
            if resource:
                stack.enter_context(ep.global_shard_guard(ep.MeshResource(**resource)))
            if (found := mesh(world)) is not None:
                stack.enter_context(jax.set_mesh(found))
            ep.ep_bootstrap(**sizes(world))

    return call


def bootstraps() -> list[Row]:
    """Rows for a process without a default group, but for the last."""
    whole, none = (lambda world: world.mesh), (lambda world: None)
    cases = [
        (name, what, _bootstrap(**{name: value}), kind, f"ep_bootstrap: {name} ", *texts)
        for name in _SIZES
        for what, value, kind, *texts in (
            ("zero", 0, ValueError, "is 0", "1 or more"),
            ("too large", 2**31, ValueError, "is 2147483648", "below 2**31"),
            ("a text", "8", TypeError, "static Python int", "str"),
        )
    ]
    cases += [
        ("num_experts", "not a multiple", _bootstrap(num_experts=5), ValueError, "(5)", "size (2)"),
        ("world_size", "not the mesh's", _bootstrap(world_size=99), ValueError, "4 devices", "99"),
        ("world_size", "a float", _bootstrap(world_size=4.0), TypeError, "world_size", "float"),
        ("rank", "another one's", _bootstrap(rank=77), ValueError, "rank is 77", "process"),
        ("rank", "a text", _bootstrap(rank="0"), TypeError, "rank must be", "str"),
        ("max_num_sms", "a text", _bootstrap(max_num_sms="all"), TypeError, "max_num_sms", "str"),
        (
            "max_token_dtype",
            "cannot be summed",
            _bootstrap(max_token_dtype=np.float64),
            NotImplementedError,
            "max_token_dtype float64",
            "float32, bfloat16, float16",
        ),
        (
            "max_token_dtype",
            "no dtype",
            _bootstrap(max_token_dtype="wide"),
            TypeError,
            "max_token_dtype 'wide' is no dtype",
        ),
        (CONTEXT, "no mesh", _bootstrap_in(none, ep_resource="ep"), ValueError, "no active mesh"),
        (CONTEXT, "no resource", _bootstrap_in(whole), ValueError, "no ep_resource"),
    ]
    rows = rows_of("ep_bootstrap", *cases)
    names = {"dp_resource": "dp", "ep_resource": "ep"}
    rows += rows_of(
        "MeshResource",
        *[
            (
                name,
                "no axis",
                _bootstrap_in(whole, **{**names, name: "nowhere"}),
                ValueError,
                f"{name} is 'nowhere'",
                "('dp', 'ep')",
            )
            for name in ("dp_resource", "fsdp_resource", "ep_resource")
        ],
        ("ep_resource", "none", _bootstrap_in(whole, dp_resource="dp"), ValueError, "ep_resource"),
        (
            "fsdp_resource",
            "an axis of ep",
            _bootstrap_in(whole, fsdp_resource="dp", ep_resource=("ep", "dp")),
            ValueError,
            "ep_resource is ('ep', 'dp')",
            "name 'dp' once",
        ),
    )
    return rows


def second_bootstrap() -> list[Row]:
    return rows_of(
        "ep_bootstrap",
        (
            CONTEXT,
            "a second time",
            _bootstrap(),
            RuntimeError,
            "already bootstrapped",
            "ep_finalize()",
            "epd.jax.Group of its own",
        ),
    )


def _described(world: World, **changed) -> ep.Group:
    """A group of the world's mesh that is not joined."""
    given = {name: value for name, value in sizes(world).items() if name in _SIZES}
    given |= {"name": "bad", "mesh": world.mesh, "resource": world.resource, "connect": False}
    return ep.Group(**{**given, **changed})


def _described_by_rank(world: World, **changed) -> ep.Group:
    given = {name: value for name, value in sizes(world).items() if name in _SIZES}
    given |= {"name": "bad", "ranks": 2, "rank": 0, "connect": False}
    return ep.Group.join(**{**given, **changed})


def _with(make, **wrong):
    return lambda world: make(world, **wrong)


def common_rows(function: str, make) -> list[Row]:
    """What both ways to make a group refuse."""
    cases = [
        (name, what, _with(make, **{name: value}), kind, f"{function}: {name} ", *texts)
        for name in _SIZES
        for what, value, kind, *texts in (
            ("zero", 0, ValueError, "is 0", "1 to 2**31 - 1"),
            ("too large", 2**31, ValueError, "is 2147483648", "1 to 2**31 - 1"),
            ("a text", "8", TypeError, "static Python int", "str"),
        )
    ]
    cases += [
        (name, what, _with(make, **{name: value}), kind, f"{function}: ", *texts)
        for name, what, value, kind, *texts in (
            ("name", "an int", 5, TypeError, "name must be a str", "int"),
            ("name", "empty", "", ValueError, "name is ''", "1 to 60"),
            ("name", "a slash", "a/b", ValueError, "name is 'a/b'", "printable ASCII"),
            ("name", "too long", "x" * 61, ValueError, "1 to 60"),
            ("name", "ep_bootstrap's", "default", ValueError, "name is 'default'"),
            ("num_experts", "not a multiple", 5, ValueError, "num_experts is 5", "2 ranks"),
            ("max_token_dtype", "no dtype", "wide", TypeError, "max_token_dtype 'wide' is no"),
            ("max_token_dtype", "half a byte", jnp.int4, ValueError, "int4", "1, 2, 4 or 8 bytes"),
            ("max_token_dtype", "16 bytes", np.complex128, ValueError, "complex128", "8 bytes"),
            ("max_top_k", "zero", 0, ValueError, "max_top_k is 0", "1 to 128"),
            ("max_top_k", "too large", 129, ValueError, "max_top_k is 129", "1 to 128"),
            ("max_top_k", "a text", "2", TypeError, "max_top_k", "static Python int"),
            ("expert_owner", "too short", [0, 1], ValueError, "has 2 entries", "num_experts (4)"),
            ("expert_owner", "no rank", [0, 1, 2, -1], ValueError, "names [2, -1]", "0 to 1"),
            ("expert_owner", "texts", ["a"] * 4, TypeError, "expert_owner", "static Python int"),
            ("expert_owner", "an int", 3, TypeError, "expert_owner must be a sequence", "int"),
            ("resource", "a text", "ep", TypeError, "resource must be a MeshResource", "str"),
            ("resource", "no ep", ep.MeshResource(), ValueError, "resource has no ep_resource"),
            ("job", "an int", 5, TypeError, "job must be a str", "int"),
            ("job", "a space", "my job", ValueError, "job is 'my job'", "printable ASCII"),
        )
    ]
    takes_resource = function != "RoleGroup"
    return rows_of(function, *[case for case in cases if takes_resource or case[0] != "resource"])


def made() -> list[Row]:
    """Group and Group.join while nothing is joined."""
    rows = common_rows("Group", _described) + common_rows("Group.join", _described_by_rank)
    other = ep.MeshResource(ep_resource="tp")
    rows += rows_of(
        "Group",
        ("mesh", "a text", _with(_described, mesh="mesh"), TypeError, "mesh must be a Mesh", "str"),
        ("mesh", "none", _with(_described, mesh=None), ValueError, "there is no mesh"),
        (
            "resource",
            "no axis",
            _with(_described, resource=other),
            ValueError,
            "ep_resource is 'tp'",
            "('dp', 'ep')",
        ),
        (CONTEXT, "none", _with(_described, resource=None), ValueError, "no ep_resource"),
    )
    ranks = [
        (name, what, _with(_described_by_rank, **{name: value}), kind, "Group.join: ", *texts)
        for name, what, value, kind, *texts in (
            ("ranks", "zero", 0, ValueError, "ranks is 0", "1 to 2**31 - 1"),
            ("ranks", "a text", "2", TypeError, "ranks", "static Python int"),
            ("rank", "none", [], ValueError, "rank is []", "at least one"),
            ("devices", "a text", "cuda:0", TypeError, "devices must be a jax.Device", "cuda:0"),
            ("devices", "none", [], ValueError, "devices is []", "one device for each rank"),
            ("rank", "descending", [1, 0], ValueError, "rank is [1, 0]", "ascending"),
            ("rank", "twice", [1, 1], ValueError, "rank is [1, 1]", "each once"),
            ("rank", "too large", 2, ValueError, "rank is [2]", "0 to 1", "ranks=2"),
            ("rank", "negative", -1, ValueError, "rank is [-1]", "0 to 1"),
            ("rank", "a float", 0.5, TypeError, "rank", "static Python int", "float"),
        )
    ]
    rows += rows_of(
        "Group.get",
        ("name", "an int", lambda w: ep.Group.get(5), TypeError, "name must be a str", "int"),
        ("name", "unknown", lambda w: ep.Group.get("no"), ValueError, "no group 'no'", "'default'"),
    )

    def wait(timeout):
        return lambda world: _described(world).wait_ready(timeout)

    rows += rows_of(
        "Group.wait_ready",
        ("timeout", "a text", wait("1"), TypeError, "timeout must be a number of seconds", "str"),
        ("timeout", "zero", wait(0), ValueError, "timeout is 0", "more than 0"),
        (CONTEXT, "not joined", wait(1.0), "FAILED_PRECONDITION", "bad"),
    )
    return rows + rows_of("Group.join", *ranks)


def _abstract(world: World) -> None:
    mesh = AbstractMesh((2, 2), ("dp", "ep"))
    _described(world, mesh=mesh).connect()


def _name_in_use(world: World) -> None:
    with _described(world, name="used", connect=True):
        try:
            _described(world, name="used", hidden_dim=16, connect=True)
        finally:
            world.barrier("every process has tried")


def _sizes_that_differ(world: World) -> None:
    first = world.index % world.ep == 0
    _described(world, name="unlike", hidden_dim=8 if first else 16, connect=True)


def _rank_twice(world: World) -> None:
    """Two processes hold the same rank: whoever comes second is told, and everybody in the end."""
    ep.Group.join(
        "twice",
        jax.process_count(),
        0,
        num_experts=jax.process_count(),
        max_tokens_per_rank=8,
        recv_capacity_per_rank=8,
        hidden_dim=8,
        job="bad-input",
    )


def joined() -> list[Row]:
    """What only joining shows, with a process per rank."""
    rows = rows_of(
        "Group.connect",
        (CONTEXT, "no devices", _abstract, ValueError, "Group.connect", "AbstractMesh"),
    )
    rows += rows_of(
        "Group",
        (
            "name",
            "in use",
            _name_in_use,
            "FAILED_PRECONDITION",
            "call Group.get('used').finalize() first",
            "hidden_dim is 8, not 16",
        ),
        (
            "hidden_dim",
            "differs between ranks",
            _sizes_that_differ,
            "INVALID_ARGUMENT",
            "give every rank the same arguments",
            "hidden_dim: ",
            "8",
            "16",
        ),
    )
    return rows + rows_of(
        "Group.join", ("rank", "held by another process", _rank_twice, "INVALID_ARGUMENT", "rank=0")
    )


class _Mesh:
    """A mesh of eight devices, one per process, as (ep 4, tp 2)."""

    axis_names = ("ep", "tp")
    devices = np.array([SimpleNamespace(process_index=n) for n in range(8)]).reshape(4, 2)


def places() -> list[Row]:
    """_ep_domain_for_rank, global_shard_guard and EpLayerConfig."""
    find = primitives._ep_domain_for_rank

    def guard(world: World) -> None:
        del world
        with ep.global_shard_guard("ep"):
            pass

    rows = rows_of(
        "_ep_domain_for_rank",
        ("ep_axis", "no axis", lambda w: find(_Mesh, "pp", 0), ValueError, "'pp'", "('ep', 'tp')"),
        ("rank", "not there", lambda w: find(_Mesh, "ep", 8), ValueError, "rank 8", "0 times"),
        (
            "device_to_rank",
            "two of a rank",
            lambda w: find(_Mesh, "ep", 0, lambda device: device.process_index // 2),
            ValueError,
            "rank 0",
            "2 times",
        ),
        (
            "device_to_rank",
            "no function",
            lambda w: find(_Mesh, "ep", 0, 5),
            TypeError,
            "device_to_rank must be a function",
            "int",
        ),
    )
    rows += rows_of(
        "global_shard_guard",
        ("resource", "a text", guard, TypeError, "resource must be a MeshResource", "str"),
    )
    alignment = "dispatch_output_per_expert_alignment"
    return rows + rows_of(
        "EpLayerConfig",
        *[
            (name, what, lambda w, a=given: ep.EpLayerConfig(*a), kind, "EpLayerConfig: ", *texts)
            for name, what, given, kind, *texts in (
                ("top_k", "zero", (0,), ValueError, "top_k is 0", "1 or more"),
                ("top_k", "a float", (2.5,), TypeError, "top_k must be an integer", "float"),
                (alignment, "negative", (2, -4), ValueError, f"{alignment} is -4", "power of two"),
                (alignment, "three", (2, 3), ValueError, f"{alignment} is 3", "power of two"),
                (alignment, "a text", (2, "4"), TypeError, f"{alignment} must be", "str"),
            )
        ],
    )
