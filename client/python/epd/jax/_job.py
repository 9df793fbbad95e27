"""What the processes of a job share: its name, a nonce, and the daemon's socket on each host.

JAX's distributed key-value store lives exactly as long as the job's set of processes. So what it holds is never met by
the processes of another job, nor by those of a restarted one.
"""

import re
import socket
import uuid
from pathlib import Path

import jax
from jax._src import distributed

from epd import _environment

_KEY_TIMEOUT_MS = 60_000
_own_nonce = uuid.uuid4().hex[:16]


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
    return client.blocking_key_value_get(key, _KEY_TIMEOUT_MS)


def has_store() -> bool:
    """Whether jax.distributed is initialised, so that processes can agree."""
    return distributed.global_state.client is not None


def instance() -> str:
    """A nonce that all processes of this job share: fresh processes never meet old ones. "" without a store."""
    return _agree("epd/nonce", _own_nonce) if has_store() else ""


def name(*, alone: bool) -> str:
    """The job's name: EPD_JOB, else the scheduler's job id, else the nonce.

    Args:
        alone: this process holds all ranks, so nobody else needs to know the name.

    Raises:
        ValueError: other processes hold ranks, and there is no way to agree with them.
    """
    given = _environment.job()
    if given:
        return re.sub(r"[^!-.0-~]", "_", given)[:120]
    if has_store():
        return "jax-" + instance()
    if alone:
        return "local-" + _own_nonce
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
    client = distributed.global_state.client
    if client is None:
        return ""
    try:
        return client.key_value_try_get(f"epd/socket/{_host()}")
    except (jax.errors.JaxRuntimeError, ValueError, RuntimeError) as error:
        if "NOT_FOUND" not in str(error):
            raise
    return ""


def share_socket(path: str) -> str:
    """Publishes the socket for the job's other processes on this host; returns the one they all use."""
    return _agree(f"epd/socket/{_host()}", path)
