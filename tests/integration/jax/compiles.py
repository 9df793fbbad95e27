"""Counts what XLA compiles, to show that a step goes on without compiling anew."""

import contextlib
from collections.abc import Iterator

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"
_count = 0


def _listen(event: str, *_: object, **__: object) -> None:
    global _count
    _count += event == _EVENT


jax.monitoring.register_event_duration_secs_listener(_listen)


@contextlib.contextmanager
def none() -> Iterator[None]:
    """AssertionError if the block compiles anything; and if the counting itself has stopped to work."""
    before = _count
    yield
    compiled = _count - before
    assert compiled == 0, f"{compiled} compilations, expected none"
    jax.jit(lambda x: x + 1)(1)
    assert _count == before + 1, "a compilation was not counted"
