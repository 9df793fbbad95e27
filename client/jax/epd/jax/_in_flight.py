"""Results that are on their way: programs that were launched and have not ended."""

import logging
import time

import jax

_log = logging.getLogger("epd.jax")
_SECONDS = 10.0


def _pending() -> int:
    arrays = [array for array in jax.live_arrays() if not array.is_deleted()]
    return sum(not array.is_ready() for array in arrays)


def await_results(group: str, seconds: float = _SECONDS) -> None:
    """Waits until every array that this process holds is there, at most so long; says so in the log if one is not.

    A program that is cut off half-way fails on one device and may leave another one in a collective of XLA's, which ends the
    process. Results that nobody holds are not seen.
    """
    deadline = time.monotonic() + seconds
    while (pending := _pending()) and time.monotonic() < deadline:
        time.sleep(0.001)
    if pending:
        _log.warning(
            "group=%s phase=finalize: %d results are not there after %g s; the operations that they wait for fail",
            group,
            pending,
            seconds,
        )
