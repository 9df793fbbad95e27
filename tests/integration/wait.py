"""Waiting in tests: for what is to happen, never for a time."""

import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def until(condition: Callable[[], _T], what: str, seconds: float = 10.0) -> _T:
    """Polls until ``condition()`` is true, and returns its value; AssertionError at the deadline."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.01)
