"""The exchanges while they are traced: those of the functional API, and the same ones as methods of a Group."""

from collections.abc import Callable
from dataclasses import dataclass

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from epd.jax import primitives
from jax.sharding import Mesh
from world import World

from bad_input.rows import CONTEXT, Row, rows_of, traced

CFG = ep.EpLayerConfig(top_k=2)
_CAPACITY, _HIDDEN, _MOST = 64, 8, 128  # Of the call, of the group, of the group.


def bootstrap(world: World) -> None:
    world.bootstrap(dtype=jnp.bfloat16)


def _shape(*dims: int, dtype=jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


def _good(world: World, argument: str):
    """A sound value of each argument."""
    ranks = world.num_ranks
    rows = 4 * ranks
    return {
        "cfg": CFG,
        "topk_idx": _shape(rows, 2, dtype=jnp.int32),
        "tokens": _shape(rows, _HIDDEN),
        "topk_weights": _shape(rows, 2, dtype=jnp.float32),
        "recv_capacity_per_rank": _CAPACITY,
        "handle_mem": _shape(ranks, ep.ep_handle_mem_size(CFG), dtype=jnp.uint8),
        "expert_out": _shape(ranks, _CAPACITY, _HIDDEN),
        "grad": _shape(ranks, _CAPACITY, _HIDDEN),
        "g_recv_topk_weights": _shape(ranks, _CAPACITY, dtype=jnp.float32),
        "num_local_tokens": rows,
        "token_counts": None,
    }[argument]


@dataclass(frozen=True)
class Wrong:
    """One wrong value of an argument; ``value(world)`` makes it. None: not for a single rank."""

    what: str
    value: Callable[[World], object]
    kind: type[Exception]
    texts: tuple[str, ...]


def _wrong(what: str, value, kind: type[Exception], *texts: str) -> Wrong:
    return Wrong(what, value if callable(value) else lambda world: value, kind, texts)


def _rows_per_rank(many: int, *dims: int, dtype=jnp.bfloat16):
    return lambda world: _shape(many * world.num_ranks, *dims, dtype=dtype)


_ABOVE = _MOST + 1
_WRONG_CAPACITIES = (
    _wrong("above the group's", _ABOVE, ValueError, f"recv_capacity_per_rank is {_ABOVE}", "128"),
    _wrong("none", 0, ValueError, "recv_capacity_per_rank is 0", "1 or more"),
    _wrong("traced", _shape(dtype=jnp.int32), TypeError, "recv_capacity_per_rank", "static Python"),
    _wrong("a float", 6.5, TypeError, "recv_capacity_per_rank", "static Python int", "float"),
)
_WRONG_SPECS = (
    _wrong("an unknown axis", ("nowhere",), ValueError, "nowhere", "axes are ('dp', 'ep')"),
    _wrong("an axis twice", ("ep", "ep"), ValueError, "'ep' twice"),
    _wrong("too long", ("ep", None, None), ValueError, "3 entries", "2 dimensions"),
    _wrong("an int", 5, TypeError, "must be a tuple or a PartitionSpec", "int"),
)
_WRONG = {
    "cfg": (
        _wrong("an int", 2, TypeError, "cfg must be an EpLayerConfig", "int"),
        _wrong("top_k", ep.EpLayerConfig(129), ValueError, "cfg.top_k is 129", "max_top_k 128"),
    ),
    "topk_idx": (
        _wrong("float", _rows_per_rank(4, 2, dtype=jnp.float32), TypeError, "topk_idx", "float32"),
        _wrong(
            "K", _rows_per_rank(4, 3, dtype=jnp.int32), ValueError, "topk_idx has shape", "3]", "2]"
        ),
        _wrong(
            "too many tokens",
            _rows_per_rank(17, 2, dtype=jnp.int32),
            ValueError,
            "17 tokens per rank",
            "max_tokens_per_rank 16",
        ),
        _wrong("no tokens", _shape(2, dtype=jnp.int32), ValueError, "no leading dimension"),
    ),
    "tokens": (
        _wrong("H", _rows_per_rank(4, 9), ValueError, "tokens has shape", "9]", f"{_HIDDEN}]"),
        _wrong("leading", _rows_per_rank(3, 8), ValueError, "tokens has shape", "expected"),
        _wrong(
            "wider",
            _rows_per_rank(4, 8, dtype=jnp.float32),
            ValueError,
            "tokens has dtype float32",
            "max_token_dtype bfloat16",
        ),
        _wrong(
            "narrower than a byte",
            _rows_per_rank(4, 8, dtype=jnp.int4),
            ValueError,
            "tokens has dtype int4",
            "1, 2, 4 or 8 bytes",
        ),
        _wrong("nothing", {}, TypeError, "tokens has no arrays"),
        _wrong(
            "rows of a payload",
            lambda world: {"rows": _shape(4 * world.num_ranks, 99)},
            ValueError,
            "tokens['rows'] has rows of 99 x bfloat16",
            "1 to 16 bytes",
        ),
    ),
    "topk_weights": (
        _wrong("int", _rows_per_rank(4, 2, dtype=jnp.int32), TypeError, "topk_weights", "int32"),
        _wrong(
            "shape", _rows_per_rank(4, 3, dtype=jnp.float32), ValueError, "topk_weights has shape"
        ),
    ),
    "recv_capacity_per_rank": _WRONG_CAPACITIES,
    "handle_mem": (
        _wrong("size", _rows_per_rank(1, 5, dtype=jnp.uint8), ValueError, "handle_mem has shape"),
        _wrong(
            "dtype",
            lambda world: _shape(world.num_ranks, ep.ep_handle_mem_size(CFG), dtype=jnp.int8),
            ValueError,
            "handle_mem has dtype int8",
            "uint8",
        ),
    ),
    "expert_out": (
        _wrong("H", _rows_per_rank(1, 64, 7), ValueError, "expert_out has shape", "7]", "8]"),
        _wrong(
            "C", _rows_per_rank(1, _ABOVE, 8), ValueError, "C of expert_out [", f"] is {_ABOVE}"
        ),
        _wrong(
            "no sum",
            _rows_per_rank(1, 64, 8, dtype=jnp.int16),
            ValueError,
            "expert_out has dtype int16",
            "float32, bfloat16 or float16",
        ),
    ),
    "num_local_tokens": (
        _wrong(
            "too many",
            lambda world: 17 * world.num_ranks,
            ValueError,
            "num_local_tokens is ",
            ", 17 tokens per rank",
        ),
        _wrong("negative", -4, ValueError, "num_local_tokens is -4", "negative"),
        _wrong("traced", _shape(dtype=jnp.int32), TypeError, "num_local_tokens", "static Python"),
        _wrong("a text", "many", TypeError, "num_local_tokens", "static Python int", "str"),
        _wrong("no dimension", (), ValueError, "num_local_tokens has no leading dimension"),
    ),
    "out_sharding": _WRONG_SPECS,
    "out_partition_spec": _WRONG_SPECS,
    "grad": (
        _wrong("H", _rows_per_rank(1, 64, 7), ValueError, "grad has shape", "7]", "8]"),
        _wrong(
            "wider",
            _rows_per_rank(1, 64, 8, dtype=jnp.float32),
            ValueError,
            "grad has dtype float32",
            "max_token_dtype bfloat16",
        ),
    ),
    "g_recv_topk_weights": (
        _wrong(
            "int",
            _rows_per_rank(1, 64, dtype=jnp.int32),
            TypeError,
            "g_recv_topk_weights",
            "int32",
        ),
        _wrong(
            "shape",
            _rows_per_rank(1, 63, dtype=jnp.float32),
            ValueError,
            "g_recv_topk_weights has shape",
            "63]",
            "64]",
        ),
    ),
    "start": (_wrong("an int", 1, TypeError, "start must be True or False", "got 1"),),
    "name": (
        _wrong("an int", 5, TypeError, "name must be a str", "int"),
        _wrong("a space", "a b", ValueError, "name is 'a b'", "printable ASCII"),
        _wrong("too long", "x" * 121, ValueError, "1 to 120"),
    ),
}
_DISPATCH = ("cfg", "topk_idx", "tokens", "topk_weights", "recv_capacity_per_rank")
_COMBINE = ("cfg", "handle_mem", "expert_out", "num_local_tokens")
# Of each operation: its name, and the name of its method; its arguments without those that may be left out; which one of
# those there is.
_OPERATIONS = (
    ("ep_prepare", "prepare", ("cfg", "topk_idx"), ()),
    ("ep_dispatch", "dispatch", _DISPATCH, ("start",)),
    ("ep_combine", "combine", (*_COMBINE, "token_counts"), ("out_sharding", "start")),
    ("primitives.ep_dispatch_fwd", "dispatch_fwd", ("handle_mem", *_DISPATCH), ()),
    ("primitives.ep_combine_fwd", "combine_fwd", _COMBINE, ("out_partition_spec",)),
    (
        "primitives.ep_dispatch_bwd",
        "dispatch_bwd",
        ("cfg", "handle_mem", "grad", "g_recv_topk_weights", "num_local_tokens"),
        ("out_partition_spec",),
    ),
    (
        "primitives.ep_combine_bwd",
        "combine_bwd",
        ("cfg", "handle_mem", "grad", "recv_capacity_per_rank"),
        (),
    ),
)


def _base(world: World, function: str, arguments) -> dict:
    good = {argument: _good(world, argument) for argument in arguments}
    if function.endswith("combine_bwd"):
        good["grad"] = _shape(
            4 * world.num_ranks, _HIDDEN
        )  # Of combine's result, not of its operand.
    return good


def _wrong_values(function: str, argument: str) -> tuple[Wrong, ...]:
    if argument == "grad" and function.endswith("combine_bwd"):
        return (
            _wrong("H", _rows_per_rank(4, 7), ValueError, "grad has shape", "7]", "8]"),
            _wrong(
                "tokens",
                _rows_per_rank(17, 8),
                ValueError,
                "grad has the leading shape [",
                "17 tokens per rank",
            ),
            _wrong(
                "wider",
                _rows_per_rank(4, 8, dtype=jnp.float32),
                ValueError,
                "grad has dtype float32",
            ),
        )
    return _WRONG.get(argument, ())


def _call(function: str, find, arguments, argument: str, wrong: Wrong):
    def call(world: World) -> None:
        given = {**_base(world, function, arguments), argument: wrong.value(world)}
        with world.context():
            traced(find(world), given)

    return call


def _uneven(function: str, find, arguments):
    """A leading size that the ranks do not divide."""

    def call(world: World) -> None:
        given = _base(world, function, arguments)
        odd = 4 * world.num_ranks + 1
        for name in ("topk_idx", "tokens", "topk_weights"):
            if name in given:
                given[name] = _shape(odd, *given[name].shape[1:], dtype=given[name].dtype)
        if "num_local_tokens" in given:
            given["num_local_tokens"] = odd
        elif function.endswith("combine_bwd"):
            given["grad"] = _shape(odd, _HIDDEN)
        with world.context():
            traced(find(world), given)

    return call


def _without_mesh(function: str, find, arguments):
    def call(world: World) -> None:
        with ep.global_shard_guard(world.resource):
            traced(find(world), _base(world, function, arguments))

    return call


def _without_resource(function: str, find, arguments):
    def call(world: World) -> None:
        with jax.set_mesh(world.mesh):
            traced(find(world), _base(world, function, arguments))

    return call


def _other_mesh(function: str, find, arguments):
    """A mesh of another shape than the group saw."""

    def call(world: World) -> None:
        mesh = Mesh(world.mesh.devices.reshape(1, -1), ("dp", "ep"))
        with jax.set_mesh(mesh), ep.global_shard_guard(world.resource):
            traced(find(world), _base(world, function, arguments))

    return call


def _twice(method: str, arguments):
    def call(world: World) -> None:
        operation = getattr(ep.default_group(), method)
        twice = lambda **given: (  # noqa: E731
            operation(**given, name="same"),
            operation(**given, name="same"),
        )
        with world.context():
            traced(twice, _base(world, method, arguments))

    return call


def _rows_of(function: str, find, arguments, optional) -> list[Row]:
    cases = [
        (argument, wrong.what, _call(function, find, arguments, argument, wrong), wrong.kind)
        + (("Group." if function.startswith("Group.") else "ep_"), *wrong.texts)
        for argument in (*arguments, *optional)
        for wrong in _wrong_values(function, argument)
    ]
    around = (function, find, arguments)
    cases += [
        (CONTEXT, "ranks do not divide it", _uneven(*around), ValueError, "not a multiple of the"),
        (CONTEXT, "no mesh", _without_mesh(*around), ValueError, "no active mesh"),
        (CONTEXT, "no resource", _without_resource(*around), ValueError, "ep_resource"),
        (
            CONTEXT,
            "another mesh",
            _other_mesh(*around),
            ValueError,
            "axis 'ep' has size 4",
            "saw 2",
        ),
    ]
    return rows_of(function, *cases)


def _function(path: str):
    *module, name = path.split(".")
    home = primitives if module else ep
    return lambda world: getattr(home, name)


def _method(name: str):
    return lambda world: getattr(ep.default_group(), name)


def tracing() -> list[Row]:
    """Rows of all operations; for a world of (2, 2) ranks whose default group ``bootstrap`` made."""
    rows = []
    for function, method, arguments, optional in _OPERATIONS:
        rows += _rows_of(function, _function(function), arguments, optional)
        arguments = tuple(name for name in arguments if name != "token_counts")  # TE's alone.
        rows += _rows_of(f"Group.{method}", _method(method), arguments, (*optional, "name"))
        rows += rows_of(
            f"Group.{method}",
            (
                "name",
                "used twice",
                _twice(method, arguments),
                ValueError,
                f"Group.{method}: the name 'same' is used twice",
            ),
        )
    return rows + _plan_readers()


def _plan_readers() -> list[Row]:
    """Functions that communicate nothing: the size of a plan, and what it says."""
    rows = []
    wrong_capacity = [w for w in _WRONG_CAPACITIES if w.what != "none"]
    for function, find in (
        ("routing_stats", _function("routing_stats")),
        ("Group.routing_stats", _method("routing_stats")),
        ("Group.expert_of_slots", _method("expert_of_slots")),
    ):
        arguments = ("handle_mem", "recv_capacity_per_rank")
        cases = [
            (argument, w.what, _call(function, find, arguments, argument, w), w.kind)
            + (f"{function}: ", *w.texts)
            for argument, values in (
                ("handle_mem", _WRONG["handle_mem"]),
                ("recv_capacity_per_rank", wrong_capacity),
            )
            for w in values
        ]
        rows += rows_of(function, *cases)
    for function, call in (
        ("ep_handle_mem_size", lambda world: ep.ep_handle_mem_size(2)),
        ("Group.handle_mem_size", lambda world: ep.default_group().handle_mem_size(2)),
    ):
        rows += rows_of(
            function,
            ("cfg", "an int", call, TypeError, "handle_mem_size: cfg must be an EpLayerConfig"),
        )
    return rows


def before_bootstrap() -> list[Row]:
    """Everything of the default group while there is none."""
    idx = np.zeros((4, 2), np.int32)
    calls = {
        function: lambda world, f=function, a=arguments: traced(
            _function(f)(world), {k: _good_without_group(k) for k in a}
        )
        for function, _, arguments, _ in _OPERATIONS
    }
    calls |= {
        "default_group": lambda world: ep.default_group(),
        "primitives.get_ep_config": lambda world: primitives.get_ep_config(),
        "ep_handle_mem_size": lambda world: ep.ep_handle_mem_size(CFG),
        "routing_stats": lambda world: ep.routing_stats(idx.astype(np.uint8)),
    }
    return [
        row
        for function, call in calls.items()
        for row in rows_of(
            function,
            (CONTEXT, "not bootstrapped", call, RuntimeError, "call epd.jax.ep_bootstrap() first"),
        )
    ]


def _good_without_group(argument: str):
    shapes = {
        "cfg": CFG,
        "topk_idx": _shape(4, 2, dtype=jnp.int32),
        "topk_weights": _shape(4, 2, dtype=jnp.float32),
        "recv_capacity_per_rank": 64,
        "num_local_tokens": 4,
        "handle_mem": _shape(4, 64, dtype=jnp.uint8),
        "g_recv_topk_weights": _shape(4, 64, dtype=jnp.float32),
        "token_counts": None,
    }
    return shapes.get(argument, _shape(4, 64, 8))
