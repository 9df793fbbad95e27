"""Joining a group: which daemon, which job, which ranks of this process."""

import logging
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Mesh

from epd.jax import _environment, _ffi, _in_flight, _job, config
from epd.jax.mesh import domain_grid

_log = logging.getLogger("epd.jax")


@dataclass(frozen=True)
class Membership:
    """What joining needs beside the spec.

    ``job``: the name that the caller gave, or None. ``held``: this process's ranks. ``elsewhere``: other processes', as far
    as known, with who holds each in place of its device. ``program``, ``metadata``: what epctl shows of this process.
    """

    held: tuple[_ffi.HeldRank, ...]
    num_domains: int
    drop_on_overflow: bool
    job: str | None = None
    elsewhere: tuple[_ffi.HeldRank, ...] = ()
    program: str = ""
    metadata: str = ""


def _name_of(device: jax.Device) -> str:
    """Of a GPU: as XLA counts it in this process, which is how a call on it finds its rank; else for people."""
    if device.platform in ("gpu", "cuda"):
        return f"cuda:{device.local_hardware_id}"
    return str(device)


def along(
    mesh: Mesh, ep_axis: str, *, drop_on_overflow: bool, job: str | None = None
) -> Membership:
    """The membership of a process whose devices in the mesh are its ranks; the other devices' ranks are elsewhere."""
    held, elsewhere = [], []
    grid = domain_grid(mesh, ep_axis)
    for (domain, position), device in np.ndenumerate(grid):
        if device.process_index == jax.process_index():
            held.append(_ffi.HeldRank(domain, position, _name_of(device)))
        else:
            whose = f"device id {device.id} (platform {device.platform}) of process {device.process_index}"
            elsewhere.append(_ffi.HeldRank(domain, position, whose))
    return Membership(
        held=tuple(held),
        num_domains=len(grid),
        drop_on_overflow=drop_on_overflow,
        job=job,
        elsewhere=tuple(elsewhere),
    )


def _devices_here() -> str:
    """This process's devices, for people."""
    devices = jax.local_devices()
    ids = ", ".join(str(device.id) for device in devices)
    return f"process {jax.process_index()}, device ids {ids}, platform {devices[0].platform}"


def _on_gpus(membership: Membership) -> bool:
    return _ffi.cuda_enabled() and all(rank.device.startswith("cuda:") for rank in membership.held)


def _connect() -> str:
    """Connects to the host's daemon, the same one as the job's other processes of this host; returns its socket."""
    asked = _environment.socket_path()
    path = _ffi.connect(asked or _job.shared_socket())
    agreed = _job.share_socket(path)
    if asked or agreed == path:
        return path
    _ffi.finalize("")  # Closes the session with the daemon that only this process found.
    return _ffi.connect(agreed)


def _job_and_instance(spec: config.GroupSpec, membership: Membership) -> tuple[str, str]:
    alone = len(membership.held) == membership.num_domains * spec.config.ep_size
    job = membership.job or _job.name(alone=alone)
    # The nonce is for processes that share a key-value store, which those of a group joined by rank need not do.
    named = membership.job is not None or _environment.job()
    return job, "" if spec.joined_by_rank and named else _job.instance()


def join(spec: config.GroupSpec, membership: Membership) -> None:
    """Joins with all ranks held here; collective. EpError with the cause, and then nothing is joined.

    Raises:
        ValueError: other processes hold ranks, and there is no way to agree with them on the job's name.
    """
    if not membership.held:
        return
    sizes, deadlines = spec.config, _environment.deadlines()
    executor, gpu_backend = _environment.executor(), _environment.gpu_backend()
    job, instance = _job_and_instance(spec, membership)
    try:
        path = _connect()
        _ffi.bootstrap(
            _ffi.Group(
                alias=spec.alias,
                job=job,
                instance=instance,
                socket_path=path,
                num_domains=membership.num_domains,
                ranks=sizes.ep_size,
                experts=sizes.num_experts,
                local_experts=sizes.num_local_experts,
                expert_owner=spec.expert_owner,
                owners=spec.owners_digest,
                max_tokens=sizes.max_tokens_per_rank,
                recv_capacity=sizes.recv_capacity_per_rank,
                hidden=sizes.hidden_dim,
                top_k=0 if spec.max_top_k == config.MAX_TOP_K else spec.max_top_k,
                max_dtype=spec.dtype_bound,
                drop_on_overflow=membership.drop_on_overflow,
                executor=executor,
                by_rank=spec.joined_by_rank,
                deadlines=deadlines,
                held=membership.held,
                elsewhere=membership.elsewhere,
                devices=_devices_here(),
                program=membership.program,
                metadata=membership.metadata,
                backend=gpu_backend if _on_gpus(membership) else "",
            )
        )
    except BaseException:
        _ffi.finalize("")  # Closes the session, if no group uses it.
        raise
    _log.info("group=%s/%s ranks=%d socket=%s", job, spec.alias, len(membership.held), path)


def leave(spec: config.GroupSpec) -> None:
    """Leaves; fine if nothing was joined. Results in flight get ten seconds to come, operations then two to end."""
    _in_flight.await_results(spec.alias)
    _ffi.cuda_finalize(spec.alias)
    _ffi.finalize(spec.alias)
    _ffi.cuda_check(spec.alias)
