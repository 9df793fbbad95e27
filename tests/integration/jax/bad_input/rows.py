"""What a row of the tables says, how it is run, and which public functions and arguments must have one."""

import dataclasses
import inspect
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import epd.jax as ep
import epd.jax.layers
import jax
from world import World, fails, raises

# Of what is around the call: the mesh, the MeshResource, the default group.
CONTEXT = "(context)"


@dataclass(frozen=True)
class Row:
    """``call(world)`` raises ``kind`` (or EpError with ``code``) whose text has all of ``texts``."""

    function: str
    argument: str
    wrong: str
    call: Callable[[World], Any]
    texts: tuple[str, ...]
    kind: type[BaseException] = ValueError
    code: str = ""

    def __str__(self) -> str:
        return f"{self.function}({self.argument}: {self.wrong})"

    def run(self, world: World) -> str:
        """What is wrong with how the call fails; "" if it fails as the row says."""
        try:
            with fails(self.code, *self.texts) if self.code else raises(self.kind, *self.texts):
                self.call(world)
        except Exception as error:  # noqa: BLE001 - the boundary of a row.
            return f"{self}: {type(error).__name__}: {error}"
        return ""


def rows_of(function: str, *cases: tuple) -> list[Row]:
    """Rows from (argument, what is wrong, call, kind, *texts); a str in place of the kind is a code of EpError."""
    return [
        Row(function, argument, wrong, call, tuple(texts), RuntimeError, kind)
        if isinstance(kind, str)
        else Row(function, argument, wrong, call, tuple(texts), kind)
        for argument, wrong, call, kind, *texts in cases
    ]


# What the functions return or raise, which is not called with arguments; and what is for epd.jax itself.
_NOT_CALLED = {
    "EpError",
    "RoutingStats",
    "Group.of_spec",
    "RoleLink",
    "StartedExchange",
    "errors.EpError",
    "layers.MoeAux",
    "layers.Routing",
    "primitives.EpConfig",
}
# Arguments that anything is right for, and why.
ANYTHING = {
    ("ep_bootstrap", "drop_on_overflow"): "a truth value",
    ("check", "group"): "any name: in a group that is not there nothing has failed",
    ("Group", "drop_on_overflow"): "a truth value",
    ("Group", "connect"): "a truth value",
    ("RoleGroup", "drop_on_overflow"): "a truth value",
    ("Group.join", "drop_on_overflow"): "a truth value",
    ("Group.join", "connect"): "a truth value",
    ("ep_combine", "token_counts"): "not looked at: the plan holds the counts",
    ("MeshResource", "tp_resource"): "not looked at: carries no tokens",
    ("MeshResource", "tpsp_resource"): "not looked at: carries no tokens",
    ("MeshResource", "pp_resource"): "not looked at: carries no tokens",
    ("MeshResource", "cp_resource"): "not looked at: carries no tokens",
    ("_ep_domain_for_rank", "mesh"): "whatever has axis_names and devices",
    ("errors.from_text", "text"): "any text",
    ("layers.RouterConfig", "normalize"): "a truth value",
    ("layers.RouterConfig", "selection_bias"): "a truth value",
    ("layers.MoeConfig", "gated"): "a truth value",
    ("layers.MoeConfig", "use_bias"): "a truth value",
    ("layers.updated_selection_bias", "rate"): "any number",
}


def _members(module: types.ModuleType, names: Iterable[str], prefix: str = "") -> dict:
    found = {}
    for name in names:
        member = getattr(module, name)
        if callable(member):
            found[prefix + name] = member
    return found


def public_functions() -> dict[str, Callable]:
    """Everything that a user calls, by the name that rows use."""
    found = _members(ep, ep.__all__)
    own = [name for name in ep.primitives.__all__ if name not in (*ep.__all__, "EpLayerConfig")]
    found |= _members(ep.primitives, own, "primitives.")
    found["_ep_domain_for_rank"] = found.pop("primitives._ep_domain_for_rank")
    own = [name for name, member in vars(ep.errors).items() if _made_in(ep.errors, member)]
    found |= _members(ep.errors, own, "errors.")
    found["ep_errors"] = found.pop("errors.ep_errors")
    found |= _members(epd.jax.layers, epd.jax.layers.__all__, "layers.")
    found.pop("layers.RAGGED_DOT", None)
    found |= {
        f"Group.{name}": member
        for name, member in inspect.getmembers(ep.Group)
        if not name.startswith("_") and callable(member)
    }
    found["RoleLink.nothing"] = ep.RoleLink.nothing
    found |= _flax_modules()
    return {name: member for name, member in found.items() if name not in _NOT_CALLED}


def _made_in(module: types.ModuleType, member: object) -> bool:
    return getattr(member, "__module__", "") == module.__name__


def _flax_modules() -> dict[str, Callable]:
    try:
        from epd.jax.layers import linen, nnx
    except ImportError:  # deploy/setup has Flax for Python 3.12 alone.
        return {}
    return {
        "layers.linen.Moe": linen.Moe,
        "layers.linen.Moe.__call__": linen.Moe.__call__,
        "layers.nnx.Moe": nnx.Moe,
        "layers.nnx.Moe.__call__": nnx.Moe.__call__,
    }


def arguments_of(function: Callable) -> list[str]:
    """Names of the arguments that a user gives."""
    if dataclasses.is_dataclass(function):
        given = [field.name for field in dataclasses.fields(function) if field.init]
        return [name for name in given if name not in ("parent", "name")]  # Flax's own.
    called = function.__init__ if inspect.isclass(function) else function
    return [name for name in inspect.signature(called).parameters if name != "self"]


def missing_rows(rows: Iterable[Row]) -> list[str]:
    """Functions and arguments that no row names and ANYTHING does not excuse; rows and excuses of what does not exist."""
    functions = public_functions()
    known = {(name, argument) for name, f in functions.items() for argument in arguments_of(f)}
    have = {(row.function, row.argument) for row in rows}
    excused = set(ANYTHING)
    wrong = [f"{f}({a}) has no row" for f, a in sorted(known - have - excused)]
    named = {pair for pair in have if pair[1] != CONTEXT}
    optional = {pair for pair in named if pair[0].startswith(("layers.linen", "layers.nnx"))}
    wrong += [
        f"a row for {f}({a}), which does not exist" for f, a in sorted(named - known - optional)
    ]
    wrong += [f"an excuse for {f}({a}), which does not exist" for f, a in sorted(excused - known)]
    wrong += [f"{f}({a}) has rows and an excuse" for f, a in sorted(excused & have)]
    return wrong


def traced(function: Callable, given: dict) -> None:
    """Lowers the function; arguments that are shapes are traced, the others static."""
    arrays = {k: v for k, v in given.items() if _is_traced(v)}
    static = {k: v for k, v in given.items() if k not in arrays}
    jax.jit(lambda arrays: function(**static, **arrays)).lower(arrays)


def _is_traced(value: object) -> bool:
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
