"""The groups of ragged_all_to_all, which form at run time: each rank joins at its first call.

A program holds an alias, which says how the ranks of an exchange stand in the mesh: names and sizes of its axes, the axes of
the exchange, its index groups. All exchanges that stand alike share a group, whatever their sizes.
"""

import hashlib
import threading
from typing import Any

import jax
import numpy as np

from epd._errors import EpError
from epd._group_struct import JoinArguments, group_struct
from epd._program import CODES, DESCRIBE
from epd.jax import _ffi, _job, _join
from epd.jax.config import EpConfig, EpLayerConfig, GroupSpec
from epd.jax.errors import from_text
from epd.jax.mesh import Layout

_PREFIX = "ragged-"
LAYER = EpLayerConfig(top_k=1)


def spec_of(alias: str, ranks: int) -> GroupSpec:
    """The group: its sizes are those of no exchange of slices."""
    sizes = EpConfig(
        world_size=ranks,
        rank=0,
        ep_size=ranks,
        num_ep_groups=1,
        num_experts=ranks,
        num_local_experts=1,
        max_tokens_per_rank=1,
        recv_capacity_per_rank=1,
        hidden_dim=1,
    )
    return GroupSpec(sizes, np.dtype(np.float32), alias=alias, origin="ragged_all_to_all")


def alias_of(layout: Layout, groups: object) -> str:
    """The same in all processes of a program."""
    stands = repr((layout.axis_names, layout.mesh_shape, layout.ep_axes, groups))
    return _PREFIX + hashlib.blake2b(stands.encode(), digest_size=6).hexdigest()


# What this process has described, by alias: the nonce of jax.distributed as it was initialised then.
_lock = threading.Lock()
_described_in: dict[str, str] = {}


def drop_old() -> None:
    """Leaves the groups of an earlier initialisation of jax.distributed, whose processes may be others.

    Called while exchanges are traced and lowered, which all are anew after an initialisation: before it JAX wants its backends
    cleared, and with them every compiled program.
    """
    with _lock:
        old = [
            alias
            for alias, nonce in _described_in.items()
            if not _job.is_of_this_initialisation(nonce)
        ]
        for alias in old:
            del _described_in[alias]
    for alias in old:
        _ffi.finalize(alias)


def _describe(alias: str, ranks: int) -> None:
    """Says where the daemon is and which job this is. EpError, ValueError: neither is known."""
    arguments = JoinArguments((), num_domains=1, drop_on_overflow=False, joins_by_call=True)
    spec = spec_of(alias, ranks)
    job, instance = _job.identity(None, alone=jax.process_count() == 1)
    with _lock:
        _described_in[alias] = _job.nonce()
    group = group_struct(
        spec,
        arguments,
        job=job,
        instance=instance,
        on_gpus=False,
        devices=f"process-{jax.process_index()}",
    )
    path = _join.connect()
    try:
        group.socket_path = path.encode()
        _ffi.join(group)
    finally:
        _ffi.finalize("")  # Closes the session that found the daemon, if no group uses it.


@DESCRIBE
def _described(alias: bytes, ranks: int, error: Any) -> int:
    """In the thread of a call."""
    try:
        _describe(alias.decode(), ranks)
    except Exception as failure:  # noqa: BLE001 - the boundary to C: every failure is the call's.
        known = failure if isinstance(failure, EpError) else from_text(str(failure))
        code = known.code if known is not None else "FAILED_PRECONDITION"
        text = (
            str(failure)
            if known is not None
            else f"[epd:{code}] group={alias.decode()} phase=begin: {failure}"
        )
        error.contents.message = text.encode()[:4095]
        return CODES.index(code)
    return 0


_ffi.describe_with(_PREFIX, _described)
