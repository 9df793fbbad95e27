"""ep_bootstrap and ep_finalize: the default group of this process."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import DTypeLike

from epd.jax import _checks, _ffi, _held_groups, _join, config
from epd.jax.group import Group
from epd.jax.mesh import _ep_domain_for_rank, active_device_mesh, active_resource, group_sizes

_group: Group | None = None


def _set_default(group: Group | None) -> None:
    global _group
    _group = group
    config.set_default(None if group is None else group.spec)


def _check_dtype(max_token_dtype: DTypeLike) -> np.dtype:
    dtype = config.dtype_of("ep_bootstrap", "max_token_dtype", max_token_dtype)
    if dtype not in config.DTYPE_CODES:
        raise NotImplementedError(
            f"ep_bootstrap: max_token_dtype {dtype} is not supported; give one of"
            f" {', '.join(str(known) for known in config.DTYPE_CODES)}"
        )
    return dtype


def _active_mesh() -> Mesh:
    mesh = active_device_mesh()
    if mesh is None:
        raise ValueError(
            "ep_bootstrap: there is no active mesh of devices; call it inside `with jax.set_mesh(mesh):`"
        )
    return mesh


def _check_world_size(mesh: Mesh, world_size: int) -> None:
    if mesh.devices.size != world_size:
        raise ValueError(
            f"ep_bootstrap: the mesh has {mesh.devices.size} devices, but world_size is {world_size}; world_size counts"
            " the devices of the mesh: give that, or None"
        )


def _check_sizes(sizes: dict[str, int], ep_size: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"ep_bootstrap: {name} is {value}; it must be 1 or more")
        if value >= 2**31:
            raise ValueError(f"ep_bootstrap: {name} is {value}; it must be below 2**31")
    if sizes["num_experts"] % ep_size:
        raise ValueError(
            f"ep_bootstrap: num_experts ({sizes['num_experts']}) is not a multiple of the ep axis's size ({ep_size})"
        )


def _check_rank(mesh: Mesh, ep_axes: tuple[str, ...], rank: int) -> None:
    """The rank occurs exactly once; of a process with several devices at least one does, and none twice."""
    if rank != jax.process_index():
        raise ValueError(
            f"ep_bootstrap: rank is {rank}, but this is JAX's process {jax.process_index()} of {jax.process_count()};"
            " rank must be jax.process_index(), or None"
        )
    present = Counter(mesh.devices.reshape(-1))
    local = jax.local_devices()
    if len(local) == 1 or not any(device in present for device in local):
        _ep_domain_for_rank(mesh, ep_axes, rank)
    elif twice := [str(device) for device in local if present[device] > 1]:
        raise ValueError(
            f"ep_bootstrap: name each device of this process (rank {rank}) at most once in the mesh; {', '.join(twice)}"
            " occurs several times"
        )


def ep_bootstrap(
    world_size: int | None,
    rank: int | None,
    num_experts: int,
    max_tokens_per_rank: int,
    recv_capacity_per_rank: int,
    hidden_dim: int,
    max_token_dtype: DTypeLike = jnp.bfloat16,
    max_num_sms: int = 0,
    drop_on_overflow: bool = False,
) -> None:
    """Joins the default expert-parallel group. Eager and collective: every process of the mesh calls it.

    Call it inside the mesh (``jax.set_mesh(mesh)``) and a ``global_shard_guard`` whose MeshResource
    names ``ep_resource``. Sizes are fixed here; axis names are read again at every trace.

    Args:
        world_size: devices of the mesh, or None: as many as it has. 1 is fine.
        rank: ``jax.process_index()``, or None: that. A process with several devices takes the ranks of those that are in the mesh.
        num_experts: experts of one domain, a multiple of ep's size n; ep position r owns
            ``[r * num_experts / n, (r + 1) * num_experts / n)``.
        max_tokens_per_rank: most tokens that a rank sends in one dispatch.
        recv_capacity_per_rank: most slots that a rank receives in one dispatch, padding and duplicates included.
        hidden_dim: elements of a token.
        max_token_dtype: widest dtype of tokens: float32, bfloat16 or float16.
        max_num_sms: ignored on CPU.
        drop_on_overflow: True: routes beyond the capacity of a call are dropped; False: they are an error on every rank.

    Raises:
        NotImplementedError: ``max_token_dtype`` is not supported.
        TypeError: it is no dtype, or a size is no integer.
        ValueError: no ep_resource, no active mesh, a size that does not fit the mesh, or a rank that is not exactly once
            in it; several processes that cannot agree on the job's name.
        RuntimeError: already bootstrapped. Its subclass EpError: no daemon, or not all ranks came; see ``.code``.
    """
    dtype = _check_dtype(max_token_dtype)
    resource = active_resource()
    given = {
        "world_size": world_size,
        "rank": rank,
        "max_num_sms": max_num_sms,
        "num_experts": num_experts,
        "max_tokens_per_rank": max_tokens_per_rank,
        "recv_capacity_per_rank": recv_capacity_per_rank,
        "hidden_dim": hidden_dim,
    }
    sizes = {
        name: _checks.static_int("ep_bootstrap", name, value)
        for name, value in given.items()
        if value is not None or name not in ("world_size", "rank")
    }
    del sizes["max_num_sms"]
    mesh = _active_mesh()
    _check_world_size(mesh, sizes.pop("world_size", mesh.devices.size))
    own_rank = sizes.pop("rank", jax.process_index())
    ep_axes, mesh_sizes = group_sizes(resource, mesh, "ep_bootstrap")
    ep_size = mesh_sizes["ep_size"]
    _check_sizes(sizes, ep_size)
    _check_rank(mesh, ep_axes, own_rank)
    if _group is not None and not _held_groups.is_old(config.DEFAULT_ALIAS):
        raise RuntimeError(
            "ep_bootstrap: already bootstrapped; call ep_finalize() first, or, where two code bases share this process, give"
            " one of them an epd.jax.Group of its own"
        )
    experts = sizes["num_experts"] // ep_size
    of_group = config.EpConfig(rank=own_rank, num_local_experts=experts, **mesh_sizes, **sizes)
    spec = config.GroupSpec(of_group, dtype)
    group = Group.of_spec(spec, _join.along(mesh, ep_axes, drop_on_overflow=bool(drop_on_overflow)))
    group.connect()
    _set_default(group)


def default_group() -> Group:
    """The Group that ep_bootstrap made, on which the functions of the functional API act.

    Raises:
        RuntimeError: not bootstrapped.
    """
    config.bootstrapped()
    assert _group is not None
    return _group


def ep_finalize() -> None:
    """Leaves the default group; ``ep_bootstrap`` works again afterwards, also with other parameters.

    Safe when never bootstrapped and when called twice. Results in flight get ten seconds to come; operations that have not
    ended two seconds later fail. Compiled programs stay valid: they run again after an ``ep_bootstrap`` with the same sizes,
    and say which field differs otherwise. A process may also end without it.
    """
    group = _group
    _set_default(None)
    if group is None:
        _ffi.finalize(config.DEFAULT_ALIAS)
    else:
        group.finalize()
