"""What the processes of a job share: its name, a nonce, and the daemon's socket on each host.

JAX's distributed key-value store lives exactly as long as the job's set of processes. So what it holds is never met by
the processes of another job, nor by those of a restarted one, nor by these once they have initialised the service again.
"""

import os
import re
import socket
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from jax._src import distributed

from epd import _program
from epd._errors import EpError

_KEY_SECONDS = 60.0
_MEET_SECONDS = 5.0
_STEP_SECONDS = (
    0.25  # Of a wait for the store, after which the interpreter runs handlers of signals.
)
_MOST_ASKED = 64
_SAY_SECONDS = 0.5
_SEES = "epd/sees"
_NONCE = "epd/nonce"
_alone = uuid.uuid4().hex[:16]
# The client of the store, and the nonce in it. It is kept: another one at its address would look like it.
_agreed: tuple[object, str] | None = None


def _awaited(client: Any, key: str, seconds: float) -> str:
    """What the store has for ``key``, once it has; in short steps, so that Ctrl-C ends the wait.

    Raises:
        JaxRuntimeError, ValueError, RuntimeError: JAX's own, DEADLINE_EXCEEDED where nobody set the key in time.
    """
    until = time.monotonic() + seconds
    while True:
        left = until - time.monotonic()
        try:
            step = max(1, round(min(left, _STEP_SECONDS) * 1000))
            return client.blocking_key_value_get(key, step)
        except (jax.errors.JaxRuntimeError, ValueError, RuntimeError) as error:
            if left <= _STEP_SECONDS or "DEADLINE_EXCEEDED" not in str(error):
                raise


def _agree(key: str, proposal: str) -> str:
    """The first proposal that any process of the job made for ``key``; without a store, this one."""
    client = distributed.global_state.client
    if client is None:
        return proposal
    try:
        client.key_value_set(key, proposal)
        return proposal
    except (jax.errors.JaxRuntimeError, ValueError, RuntimeError) as error:
        if "ALREADY_EXISTS" not in str(error):
            raise
    return _awaited(client, key, _KEY_SECONDS)


def _known(key: str) -> str:
    """What the job has agreed on for ``key``, or ""."""
    client = distributed.global_state.client
    if client is None:
        return ""
    try:
        return client.key_value_try_get(key)
    except (jax.errors.JaxRuntimeError, ValueError, RuntimeError) as error:
        if "NOT_FOUND" not in str(error):
            raise
    return ""


def has_store() -> bool:
    """Whether jax.distributed is initialised, so that processes can agree."""
    return distributed.global_state.client is not None


def nonce() -> str:
    """What all processes of this initialisation of jax.distributed share, and no others; "" without it."""
    global _agreed
    client = distributed.global_state.client
    if client is None:
        return ""
    if _agreed is None or _agreed[0] is not client:
        _agreed = (client, _agree(_NONCE, uuid.uuid4().hex[:16]))
    return _agreed[1]


def is_of_this_initialisation(known: str) -> bool:
    """Whether ``known``, an earlier ``nonce()``, is of jax.distributed as it is initialised now. Proposes nothing."""
    client = distributed.global_state.client
    if client is None:
        return not known
    if _agreed is not None and _agreed[0] is client:
        return known == _agreed[1]
    return known == _known(_NONCE)


def identity(given: str | None, *, alone: bool) -> tuple[str, str]:
    """The job's name and its run: ``given`` or EPD_JOB, else the scheduler's and the launcher's words with the nonce.

    Args:
        alone: this process holds all ranks, so nobody else needs to know the name.

    Raises:
        ValueError: other processes hold ranks, and there is no way to agree with them.
    """
    name, run = _program.identity(given, nonce(), store="jax")
    if name:
        return name, run
    if alone:
        return "local-" + _alone, run
    raise ValueError(
        "this process holds only a part of the ranks and cannot tell which processes hold the others: call"
        " jax.distributed.initialize() first, or set EPD_JOB to one name in all processes of the job (job= of a Group)"
    )


def _host() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return re.sub(r"[^\w.-]", "_", f"{socket.gethostname()}-{boot}")


def shared_socket() -> str:
    """The socket that another process of this job and host uses, or ""."""
    return _known(f"epd/socket/{_host()}")


def share_socket(path: str) -> str:
    """Publishes the socket for the job's other processes on this host; returns the one they all use."""
    return _agree(f"epd/socket/{_host()}", path)


def _identity_of(path: str) -> str:
    """What tells one daemon's socket from another at the same path: its folder, which stays when the daemon is restarted, and
    itself, which is what a mount of the socket alone has in common."""
    folder, own = os.stat(os.path.dirname(path) or "."), os.stat(path)
    return f"{folder.st_dev}:{folder.st_ino} {own.st_dev}:{own.st_ino}"


def _is_same(one: str, other: str) -> bool:
    return any(a == b for a, b in zip(one.split(), other.split(), strict=True))


def _await_that_it_knows(client: Any, process: int) -> None:
    """Before an error that both raise: JAX ends a process at once when the first one ends, and what it was about to say."""
    client.key_value_set(f"{_SEES}/told/{jax.process_index()}", "", True)
    try:
        _awaited(client, f"{_SEES}/told/{process}", 2)
        time.sleep(_SAY_SECONDS)
    except (jax.errors.JaxRuntimeError, ValueError, RuntimeError):
        return


def check_one_daemon(path: str, processes: Sequence[int]) -> None:
    """EpError FAILED_PRECONDITION where processes of one host name use one path, and do not see the same socket there.

    On all of them, if they come within _MEET_SECONDS of each other; else on those that come later.

    Args:
        path: of the socket of a private daemon; "": a daemon that others look after, of which a cluster may have one in each
            container.
        processes: which join, too, as JAX counts them. They are not asked where they are many.
    """
    client = distributed.global_state.client
    if client is None:
        return
    mine = [_host(), path, _identity_of(path) if path else ""]
    client.key_value_set(f"{_SEES}/{jax.process_index()}", "\n".join(mine), True)
    until = time.monotonic() + _MEET_SECONDS
    for process in processes if len(processes) <= _MOST_ASKED else ():
        try:
            theirs = _awaited(client, f"{_SEES}/{process}", until - time.monotonic()).split("\n")
        except (jax.errors.JaxRuntimeError, ValueError, RuntimeError):
            return  # It is late; joining says who is missing.
        if not path or theirs[:2] != mine[:2] or _is_same(theirs[2], mine[2]):
            continue
        _await_that_it_knows(client, process)
        raise EpError(
            "FAILED_PRECONDITION",
            f"[epd:FAILED_PRECONDITION] phase=join rank=process {jax.process_index()}: share the folder"
            f" {os.path.dirname(path)} between the containers, or start one epd for all of them and set EPD_SOCKET to its"
            f" socket in each: this process and process {process} have one host name ({socket.gethostname()}) and the same"
            f" socket path {path}, and do not see the same daemon there (device:inode of folder and socket: {mine[2]} here,"
            f" {theirs[2]} there)",
        )
