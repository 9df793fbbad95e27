"""Joining a group: which daemon, which job, which ranks of this process."""

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from epd import _environment, _freed_memory
from epd._group_struct import HeldRank, JoinArguments, group_struct
from epd.jax import _ffi, _job, config
from epd.jax.mesh import domain_grid

_log = logging.getLogger("epd.jax")
_RESULTS_SECONDS = 10.0


def _name_of(device: jax.Device) -> str:
    """Of a GPU: as XLA counts it in this process, which is how a call on it finds its rank; else for people."""
    if device.platform in ("gpu", "cuda"):
        return f"cuda:{device.local_hardware_id}"
    return str(device)


def arguments_of(
    ranks: Iterable[tuple[int, int, jax.Device]], num_domains: int, **given: Any
) -> JoinArguments:
    """The arguments of a process whose devices are its ranks; the other devices' ranks are elsewhere.

    Args:
        ranks: domain, position and device of all ranks.
        given: other fields of JoinArguments.
    """
    held, elsewhere = [], []
    others = set()
    for domain, position, device in ranks:
        if device.process_index == jax.process_index():
            held.append(HeldRank(domain, position, _name_of(device)))
        else:
            whose = f"device id {device.id} (platform {device.platform}) of process {device.process_index}"
            elsewhere.append(HeldRank(domain, position, whose))
            others.add(device.process_index)
    return JoinArguments(
        tuple(held),
        num_domains,
        elsewhere=tuple(elsewhere),
        others=tuple(sorted(others)),
        **given,
    )


def along(mesh: Mesh, ep_axes: tuple[str, ...], **given: Any) -> JoinArguments:
    """As ``arguments_of``, of ranks that stand along axes."""
    grid = domain_grid(mesh, ep_axes)
    ranks = ((domain, position, device) for (domain, position), device in np.ndenumerate(grid))
    return arguments_of(ranks, len(grid), **given)


def _devices_here() -> str:
    """This process's devices, for people."""
    devices = jax.local_devices()
    ids = ", ".join(str(device.id) for device in devices)
    return f"process {jax.process_index()}, device ids {ids}, platform {devices[0].platform}"


def _on_gpus(arguments: JoinArguments) -> bool:
    return _ffi.cuda_enabled() and all(rank.device.startswith("cuda:") for rank in arguments.held)


def connect(others: Sequence[int] = ()) -> str:
    """Connects to the host's daemon, the same one as the job's other processes of this host; returns its socket.

    EpError FAILED_PRECONDITION where those of ``others`` with this host's name see another daemon at its path.
    """
    asked = _environment.socket_path()
    path = _ffi.connect(asked or _job.shared_socket())
    agreed = _job.share_socket(path)
    if not asked and agreed != path:
        _ffi.finalize("")  # Closes the session with the daemon that only this process found.
        path = _ffi.connect(agreed)
    is_private = not asked and path != _environment.NODE_SOCKET
    _job.check_one_daemon(path if is_private else "", others)
    return path


def join(spec: config.GroupSpec, arguments: JoinArguments) -> None:
    """Joins with all ranks held here; collective. EpError with the cause, and then nothing is joined.

    Raises:
        ValueError: other processes hold ranks, and there is no way to agree with them on the job's name.
    """
    if not arguments.held:
        return
    on_gpus = _on_gpus(arguments)
    if not on_gpus:
        _freed_memory.keep()
    alone = len(arguments.held) == arguments.num_domains * spec.config.ep_size
    job, instance = _job.identity(arguments.job, alone=alone)
    group = group_struct(
        spec,
        arguments,
        job=job,
        instance=instance,
        on_gpus=on_gpus,
        devices=_devices_here(),
    )
    try:
        path = connect(arguments.others)
        group.socket_path = path.encode()
        _ffi.join(group)
    except BaseException:
        _ffi.finalize("")  # Closes the session, if no group uses it.
        raise
    _log.info("group=%s/%s ranks=%d socket=%s", job, spec.alias, len(arguments.held), path)


def _num_pending() -> int:
    arrays = [array for array in jax.live_arrays() if not array.is_deleted()]
    return sum(not array.is_ready() for array in arrays)


def _await_results(group: str) -> None:
    """Waits until every array that this process holds is there, not for ever; says so in the log if one is not.

    A program that is cut off half-way fails on one device and may leave another one in a collective of XLA's, which ends the
    process. Results that nobody holds are not seen.
    """
    deadline = time.monotonic() + _RESULTS_SECONDS
    while (pending := _num_pending()) and time.monotonic() < deadline:
        time.sleep(0.001)
    if pending:
        _log.warning(
            "group=%s phase=finalize: %d results are not there after %g s; the operations that they wait for fail",
            group,
            pending,
            _RESULTS_SECONDS,
        )


def leave_unused(alias: str) -> None:
    """Leaves a group that nothing names any more."""
    _ffi.cuda_finalize(alias)
    _ffi.finalize(alias)


def leave(spec: config.GroupSpec) -> None:
    """Leaves; fine if nothing was joined. Results in flight get ten seconds to come, operations then two to end."""
    _await_results(spec.alias)
    leave_unused(spec.alias)
    _ffi.cuda_check(spec.alias)
