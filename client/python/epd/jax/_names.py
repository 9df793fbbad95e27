"""Static names of operations: by them ranks find each other whose programs differ.

A name means one call of an operation in a program, since ranks count its uses: a name that is used twice in one program is
refused. Here while tracing, as far as one trace sees it; what only the compiled program shows (a function that is called
twice, a loop that was unrolled) is refused when it is compiled, see ``ffi_site.cc``.
"""

import contextlib
import contextvars
import weakref
from collections.abc import Iterator

from jax._src import core

from epd._arguments import check_text
from epd.jax.config import GroupSpec

_MOST_BYTES = 120
# A name that is taken: the group's alias, the name, the operation.
_Use = tuple[str, str, str]
_taken: weakref.WeakKeyDictionary[object, set[_Use]] = weakref.WeakKeyDictionary()
_seen: contextvars.ContextVar[set[_Use] | None] = contextvars.ContextVar(
    "epd_names_seen", default=None
)


def _program() -> object | None:
    """The function that is being traced to a program (the innermost one: loops trace their bodies repeatedly), or None."""
    trace = core.trace_ctx.trace
    while trace is not None and not hasattr(trace, "frame"):
        trace = getattr(trace, "parent_trace", None)
    return trace


def take(function: str, group: GroupSpec, name: object, operations: tuple[str, ...]) -> str:
    """Takes ``name`` for these operations of the group, and returns it; "" for None.

    Raises:
        TypeError: the name is no str.
        ValueError: it is taken already in the program that is being traced, or has characters that are not allowed.
    """
    if name is None and group.of_roles:
        raise ValueError(
            f"{function}: name is missing; ranks of the other role, whose program differs, find this call by its name"
        )
    if name is None:
        return ""
    text = check_text(function, "name", name, _MOST_BYTES)
    program = _program()
    if program is None:
        return text
    taken = _taken.setdefault(program, set())
    wanted = {(group.alias, text, operation) for operation in operations}
    if wanted & taken:
        raise ValueError(
            f"{function}: the name {text!r} is used twice in this program, so ranks cannot tell which call is which; give"
            " each call its own name"
        )
    taken |= wanted
    if (seen := _seen.get()) is not None:
        seen |= wanted
    return text


@contextlib.contextmanager
def seen() -> Iterator[set[_Use]]:
    """Collects what is taken inside: the group's alias, the name, the operation."""
    collected: set[_Use] = set()
    token = _seen.set(collected)
    try:
        yield collected
    finally:
        _seen.reset(token)
