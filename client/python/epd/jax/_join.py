"""Joining a group: which daemon, which job, which ranks of this process."""

import dataclasses
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from epd import _environment, _freed_memory
from epd._arguments import listed
from epd._group_struct import HeldRank, JoinArguments, group_struct
from epd.jax import _ffi, _job, config
from epd.jax.mesh import active_device_mesh, domain_grid

_log = logging.getLogger("epd.jax")
_RESULTS_SECONDS = 10.0


_GPU_PLATFORMS = ("gpu", "cuda")
_GPU = "cuda:"


def _name_of(device: jax.Device) -> str:
    """Of a GPU: as XLA counts it in this process, which is how a call on it finds its rank; else for people."""
    if device.platform in _GPU_PLATFORMS:
        return f"{_GPU}{device.local_hardware_id}"
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


def _listed(devices: Iterable[jax.Device]) -> str:
    return ", ".join(map(_name_of, devices))


def _process_device() -> jax.Device:
    """Where this process's programs run that no mesh places."""
    mesh = active_device_mesh()
    if mesh is not None and mesh.size == 1:
        return mesh.devices.flat[0]
    chosen = jax.config.jax_default_device
    if chosen is None or isinstance(chosen, str):
        return jax.local_devices(backend=chosen)[0]
    return chosen


def check_devices(function: str, ranks: Sequence[int], devices: object) -> tuple[jax.Device, ...]:
    """The devices that ``function`` was given for the ranks, one for each.

    Raises:
        TypeError: they are no devices.
        ValueError: another number of them; one of another process; several ranks on one GPU, GPUs beside other devices.
    """
    given = (devices,) if isinstance(devices, jax.Device) else devices
    if not isinstance(given, Sequence | np.ndarray) or not all(
        isinstance(device, jax.Device) for device in given
    ):
        raise TypeError(
            f"{function}: devices must be a jax.Device, or one for each rank in a list, got {devices!r}"
        )
    found = tuple(given)
    which = f"{function}: devices is [{_listed(found)}] for ranks {listed(ranks)}"
    if len(found) != len(ranks):
        raise ValueError(f"{which}; give one device for each rank, in the order of the ranks")
    if others := [device for device in found if device.process_index != jax.process_index()]:
        raise ValueError(
            f"{which}, of which [{_listed(others)}] are of other processes; give devices of this process:"
            f" [{_listed(jax.local_devices())}]"
        )
    if any(device.platform in _GPU_PLATFORMS for device in found) and (
        len(set(found)) != len(found) or len({device.platform for device in found}) != 1
    ):
        raise ValueError(f"{which}; give each rank a GPU of its own, or all of them CPU devices")
    return found


def placed(spec: config.GroupSpec, arguments: JoinArguments) -> JoinArguments:
    """The arguments of a group joined by rank, whose ranks on GPUs have their devices' names: a call on a GPU finds its rank by it.

    One rank is where its process's programs run, several are on the active mesh in its order; ``Group.join`` may have
    been told. On CPUs a call says its rank itself.

    Raises:
        ValueError: several ranks, and no mesh of as many GPUs is active.
    """
    held = arguments.held
    if not spec.joined_by_rank or any(rank.device for rank in held):
        return arguments
    mesh = active_device_mesh()
    if len(held) == 1:
        found = [_process_device()]
    elif mesh is not None and mesh.size == len(held):
        found = list(mesh.devices.flat)
    else:
        found = [_process_device()]
        if found[0].platform in _GPU_PLATFORMS:
            ranks = listed([rank.position for rank in held])
            got = "none is active" if mesh is None else f"the active one has {mesh.size} devices"
            raise ValueError(
                f"{spec.origin}: ranks {ranks} of this process need a GPU each, in the order of a mesh, and {got}; enter"
                f" `with jax.set_mesh(mesh):` with {len(held)} of this process's devices around the call, or give"
                f" devices=[...], one for each rank in this order (this process has [{_listed(jax.local_devices())}])"
            )
    if all(device.platform not in _GPU_PLATFORMS for device in found):
        return arguments
    return on_devices(arguments, check_devices(spec.origin, [r.position for r in held], found))


def on_devices(arguments: JoinArguments, devices: Sequence[jax.Device]) -> JoinArguments:
    """The arguments with the ranks' devices."""
    ranks = zip(arguments.held, devices, strict=True)
    named = tuple(HeldRank(rank.domain, rank.position, _name_of(on)) for rank, on in ranks)
    return dataclasses.replace(arguments, held=named)


def check_order(function: str, arguments: JoinArguments) -> None:
    """ValueError where the active mesh does not have the GPUs of a group joined by rank in the order of their ranks.

    There a call's rank is its GPU's, and the rows of the i-th device would be taken for those of the i-th rank.
    """
    mesh = active_device_mesh()
    names = [rank.device for rank in arguments.held]
    if mesh is None or not all(name.startswith(_GPU) for name in names):
        return
    got = [_name_of(device) for device in mesh.devices.flat]
    if got != names:
        ranks = listed([rank.position for rank in arguments.held])
        raise ValueError(
            f"{function}: the active mesh has the devices [{', '.join(got)}], and ranks {ranks} of this process joined on"
            f" [{', '.join(names)}]; use a mesh of these devices in this order, or join with devices= in the mesh's order"
        )


def _devices_here() -> str:
    """This process's devices, for people."""
    devices = jax.local_devices()
    ids = ", ".join(str(device.id) for device in devices)
    return f"process {jax.process_index()}, device ids {ids}, platform {devices[0].platform}"


def _on_gpus(spec: config.GroupSpec, arguments: JoinArguments) -> bool:
    """Whether the ranks held here are on GPUs. ValueError where some of them are."""
    gpus = [rank for rank in arguments.held if rank.device.startswith(_GPU)]
    if gpus and len(gpus) != len(arguments.held):
        held = ", ".join(f"rank {rank.position} on {rank.device}" for rank in arguments.held)
        raise ValueError(
            f"{spec.origin}: some ranks of this process are on GPUs and some are not ({held}); rows do not go between a CPU's"
            " staging and a GPU's: use devices of one kind"
        )
    return bool(gpus)


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
        ValueError: other processes hold ranks, and there is no way to agree with them on the job's name; ranks on GPUs and
            others; what the environment says of command buffers does not fit.
    """
    if not arguments.held:
        return
    on_gpus = _on_gpus(spec, arguments)
    if on_gpus:
        _ffi.enable_cuda()
    else:
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
