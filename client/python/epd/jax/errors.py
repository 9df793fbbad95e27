"""Errors of epd, and how to catch them.

A failed operation raises on every rank, with a text such as::

    DEADLINE_EXCEEDED: [epd:DEADLINE_EXCEEDED] group=... epoch=3 rank=1 phase=announce: ...

JAX decides the exception's type: ``jax.errors.JaxRuntimeError``, but plain ``ValueError`` under ``jax.distributed``, and
either at the call or where the result is waited for. ``ep_errors`` turns all of them into ``EpError``::

    with ep_errors():
        out = jax.block_until_ready(step(...))
"""

import contextlib
import re
from collections.abc import Iterator

import jax

from epd._errors import EpError as EpError

# What an operation's failure may come as. ``except epd.jax.errors.EXCEPTIONS`` catches other errors of XLA too.
EXCEPTIONS = (jax.errors.JaxRuntimeError, ValueError)

_TAG = re.compile(r"\[epd:([A-Z_]+)\]")


def from_text(text: str) -> EpError | None:
    """The EpError that an exception's text reports, or None if it is not epd's."""
    tag = _TAG.search(text)
    return EpError(tag.group(1), text[tag.start() :]) if tag else None


@contextlib.contextmanager
def ep_errors() -> Iterator[None]:
    """Raises EpError for what comes as another exception; those that are not epd's pass."""
    try:
        yield
    except EpError:
        raise
    except EXCEPTIONS as error:
        translated = from_text(str(error))
        if translated is None:
            raise
        raise translated from error
