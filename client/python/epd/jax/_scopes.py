"""Where a call stands in the user's program, as the user named it (``jax.named_scope``, jitted functions): for traces, ``epctl why``
and ``jax.profiler``. It is no part of what identifies a program or a call.

XLA tells a handler nothing of a call but its attributes, so the scope is one. It leaves out what transformations add, and so a
call and its rematerialised copy stay equal for XLA.
"""

import contextlib
import contextvars
import re
from collections.abc import Iterator

_MOST_BYTES = 31  # What a call's record in shared memory holds.
# A transformation's mark round a scope: jvp(layer), transpose(jvp(layer)).
_WRAPPED = re.compile(r"(?P<mark>[A-Za-z_]\w*)\((?P<inner>.*)\)$")
_FUNCTIONS = {"jit", "pjit"}
# What JAX's own control flow is called.
_STRUCTURE = re.compile(
    r"while|body|cond|scan|shard_map|checkpoint|remat\d*|rematted_computation|closed_call|core_call|xla_call"
    r"|custom_(?:jvp|vjp)_call(?:_jaxpr)?|branch_\d+_fun|body_fun|cond_fun|epd_exchange|epd_call"
)

_stack: contextvars.ContextVar[str] = contextvars.ContextVar("epd_name_stack", default="")


@contextlib.contextmanager
def lowered_in(name_stack: object) -> Iterator[None]:
    """Calls that are lowered inside stand in this name stack of JAX's."""
    token = _stack.set(str(name_stack))
    try:
        yield
    finally:
        _stack.reset(token)


def name_stack() -> str:
    """That of the innermost ``lowered_in``; "": of none."""
    return _stack.get()


def _parts(text: str) -> list[str]:
    """Split at the slashes that stand in no parentheses."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "/" and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _named(part: str, program: str) -> list[str]:
    """The user's names in one part of a name stack."""
    found = _WRAPPED.fullmatch(part)
    if not found:
        return [] if not part or _STRUCTURE.fullmatch(part) else [part]
    inner = found["inner"]
    if found["mark"] in _FUNCTIONS:
        return [] if f"jit_{inner}" == program or inner.startswith(("_", "<")) else [inner]
    return [name for one in _parts(inner) for name in _named(one, program)]


def scope(stack: str, program: str) -> str:
    """What the user would say: "layer_3/out". Without a scope the compiled function's own name; at most the last 31 bytes.

    ``program``: the module's name, "jit_train_step".
    """
    names = [name for part in _parts(stack) for name in _named(part, program)]
    unique = [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]
    own = program.removeprefix("jit_")
    text = "/".join(unique) or ("" if own.startswith("_") else own)
    text = re.sub(r"[^A-Za-z0-9_.:/-]", "_", text)
    if len(text) <= _MOST_BYTES:
        return text
    end = text[-_MOST_BYTES:]
    whole = end.find("/") + 1
    return end[whole:] if 0 < whole < len(end) else end
