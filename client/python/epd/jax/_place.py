"""Where an operation runs, as a value of the program: in the programs of roles, which no mesh tells.

Such a program runs on one device at a time, and the same one runs for several ranks and domains: so its domain and its
position are operands, which ``roles`` gives to every execution.
"""

import contextlib
import contextvars
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import jax

# int32 scalars: the domain, and the position in it.
Place: TypeAlias = tuple[jax.Array, jax.Array]

_current: contextvars.ContextVar[Place | None] = contextvars.ContextVar("epd_place", default=None)


@contextlib.contextmanager
def at(place: Place | None) -> Iterator[None]:
    """Operations that are traced inside run at ``place``; None: where the mesh says."""
    token = _current.set(place)
    try:
        yield
    finally:
        _current.reset(token)


def zero_after(arrays: Iterable[jax.Array]) -> jax.Array:
    """An int32 scalar 0, once the arrays are there."""
    zero = jax.numpy.zeros((), jax.numpy.int32)
    for array in arrays:
        if not array.size:
            continue
        first = jax.lax.slice(jax.lax.stop_gradient(array), (0,) * array.ndim, (1,) * array.ndim)
        value = first.reshape(()).astype(jax.numpy.float32)
        # No NaN is below 0, which XLA does not know.
        zero = zero + ((value != value) & (value < 0)).astype(jax.numpy.int32)
    return zero


def after(place: Place, arrays: Sequence[jax.Array]) -> Place:
    """``place``, once the arrays are there."""
    domain, position = place
    return (domain, position + zero_after(arrays)) if any(a.size for a in arrays) else place


def current() -> Place | None:
    """The place of the innermost ``at``; None: the mesh says."""
    return _current.get()
