"""Who comes to a call of roles: told before the first exchanges, so that no rank waits for one whose function failed.

A function fails in the process that traces it, and no other one knows. Its peers would wait for its exchanges, each under
a name that only a traced function has. So the ranks of a token rank's group make a *handshake* at the beginning of a call,
under a key that all of them know from ``roles`` itself, until a call was traced by all of them. A rank whose process failed
refuses instead, and the refusal is an error on all of them. From then on the names are known, and calls cost no handshake: a rank
whose function fails later (for arguments of another shape) refuses the function's first exchange.
"""

import contextlib
import threading
from collections.abc import Callable

from epd.jax._ffi import Handshake
from epd.jax.errors import EpError

_CODE = "INVALID_ARGUMENT"
_MOST_BYTES = 440  # Of a refusal's text, see SlotRequest.


def reason_of(function: str, error: BaseException) -> str:
    """What the other ranks are told: the function, the error's type, and its first line."""
    lines = str(error).strip().splitlines() or ["no text"]
    start = f"{function} failed before it ran: {type(error).__name__}: "
    end = "; that process has the whole error: correct it, and call again on all ranks"
    room = _MOST_BYTES - len(f"{start}{end}".encode())
    line = lines[0].encode()[: max(0, room)].decode(errors="ignore")
    return f"{start}{line}{end}"


class RoleHandshake:
    """One rank's part in the calls of one ``roles``, shared by the threads of its streams. Thread-safe.

    ``key``: of the handshake; None: not all of the ranks have a function, so there is none. ``at``: what
    this rank can say under a key.
    """

    def __init__(self, key: str | None, at: Callable[[str], Handshake]):
        self._key, self._at = key, at
        self._lock = threading.Lock()
        self._all_traced = key is None
        self._failed: dict[int, EpError] = {}  # By call: why no stream of this rank runs in it.

    def agree(self, call: int) -> None:
        """Returns once all ranks have traced their functions. EpError: a rank has not, or the handshake failed."""
        with self._lock:
            if call not in self._failed and not self._all_traced:
                self._hold(call, lambda at: at.wait())
            if (cause := self._failed.get(call)) is not None:
                raise EpError(cause.code, str(cause))

    def withdraw(self, call: int, text: str, first_exchange: str | None) -> None:
        """Tells the other ranks that a stream of this one does not run in the call. ``first_exchange``: its key."""
        with self._lock:
            if call in self._failed:
                return
            if not self._all_traced:
                self._hold(call, lambda at: at.refuse(_CODE, text))
                return
        if first_exchange is not None:  # Else it exchanges nothing, and nobody waits.
            with contextlib.suppress(EpError):  # The refusal itself, or why nobody waits any more.
                self._at(first_exchange).refuse(_CODE, text)

    def _hold(self, call: int, say: Callable[[Handshake], None]) -> None:
        assert self._key is not None
        try:
            say(self._at(self._key))
        except EpError as error:
            self._failed[call] = error
        # After another error (a lost rank, say) some may know that all have traced, and others not: no handshake follows.
        self._all_traced = call not in self._failed or self._failed[call].code != _CODE
