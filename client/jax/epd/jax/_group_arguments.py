"""The arguments of Group and Group.join: each checked and brought into its final form. ``function`` is for messages."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh
from jax.typing import DTypeLike

from epd.jax import _checks, _names, config
from epd.jax.config import EpConfig, GroupSpec
from epd.jax.mesh import MeshResource, active_device_mesh, active_resource

MOST_NAME_BYTES = 60
_MOST_JOB_BYTES = 120


def _listed(values: Sequence[object]) -> str:
    """A list for messages, cut short."""
    shown = ", ".join(str(value) for value in values[:16])
    return f"[{shown}{', ...' if len(values) > 16 else ''}]"


def positive(function: str, **sizes: object) -> dict[str, int]:
    """The sizes as ints; TypeError if one is none, ValueError naming it unless in [1, 2**31)."""
    checked = {name: _checks.static_int(function, name, value) for name, value in sizes.items()}
    for name, value in checked.items():
        if not 1 <= value < 2**31:
            raise ValueError(f"{function}: {name} is {value}; expected 1 to 2**31 - 1")
    return checked


def row_dtype(function: str, max_token_dtype: DTypeLike) -> np.dtype:
    dtype = config.dtype_of(function, "max_token_dtype", max_token_dtype)
    if not config.is_row_dtype(dtype):
        raise ValueError(
            f"{function}: max_token_dtype is {dtype}; expected a dtype of 1, 2, 4 or 8 bytes"
        )
    return dtype


def owners(
    function: str, expert_owner: Sequence[int] | None, num_experts: int, ranks: int
) -> tuple[tuple[int, ...] | None, int]:
    """The table, and the most experts of a rank. TypeError if it is no sequence of integers, ValueError if it does not fit."""
    if expert_owner is None:
        if num_experts % ranks:
            raise ValueError(
                f"{function}: num_experts is {num_experts}, which the {ranks} ranks do not divide; give expert_owner, the"
                " rank of each expert"
            )
        return None, num_experts // ranks
    try:
        given = tuple(expert_owner)
    except TypeError as error:
        raise TypeError(
            f"{function}: expert_owner must be a sequence of ranks, got {type(expert_owner).__name__}"
        ) from error
    table = tuple(_checks.static_int(function, "expert_owner", owner) for owner in given)
    if len(table) != num_experts:
        raise ValueError(
            f"{function}: expert_owner has {len(table)} entries; expected one for each of num_experts ({num_experts})"
        )
    wrong = [owner for owner in table if not 0 <= owner < ranks]
    if wrong:
        raise ValueError(
            f"{function}: expert_owner names {_listed(wrong)}; expected ranks from 0 to {ranks - 1}"
        )
    return table, max(Counter(table).values())


def top_k_of(function: str, max_top_k: object) -> int:
    top_k = _checks.static_int(function, "max_top_k", max_top_k)
    if not 1 <= top_k <= config.MAX_TOP_K:
        raise ValueError(f"{function}: max_top_k is {top_k}; expected 1 to {config.MAX_TOP_K}")
    return top_k


def job_of(function: str, job: object) -> str | None:
    return None if job is None else _names.check_text(function, "job", job, _MOST_JOB_BYTES)


def resource_of(function: str, resource: object) -> MeshResource:
    if resource is None:
        return active_resource()
    if not isinstance(resource, MeshResource):
        raise TypeError(
            f"{function}: resource must be a MeshResource, got {type(resource).__name__}"
        )
    if resource.ep_resource is None:
        raise ValueError(f"{function}: resource has no ep_resource, the name of the axis of ranks")
    return resource


def mesh_of(function: str, mesh: object) -> Mesh | AbstractMesh:
    if mesh is None:
        mesh = active_device_mesh()
    if mesh is None:
        mesh = jax.sharding.get_abstract_mesh()
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise TypeError(f"{function}: mesh must be a Mesh, got {type(mesh).__name__}")
    if mesh.empty:
        raise ValueError(
            f"{function}: there is no mesh; give mesh=, or enter `with jax.set_mesh(mesh):` around the call"
        )
    return mesh


def ranks_here(function: str, rank: int | Sequence[int], ranks: int) -> tuple[int, ...]:
    given = tuple(rank) if isinstance(rank, Sequence) else (rank,)
    held = tuple(_checks.static_int(function, "rank", value) for value in given)
    if not held or sorted(set(held)) != list(held):
        raise ValueError(
            f"{function}: rank is {_listed(held)}; expected at least one, each once, in ascending order"
        )
    if held[0] < 0 or held[-1] >= ranks:
        raise ValueError(
            f"{function}: rank is {_listed(held)}; expected 0 to {ranks - 1}, for ranks={ranks}"
        )
    return held


def label(function: str, argument: str, key: object, value: object, most_bytes: int) -> str:
    """ "<key>=<value>" for epctl; TypeError or ValueError unless both are short printable texts without ";" and "="."""
    for text in (key, value):
        _names.check_text(function, argument, text, most_bytes)
        if set(str(text)) & set(";="):
            raise ValueError(f"{function}: {argument} is {text!r}; expected a text without ; and =")
    return f"{key}={value}"


def alias(function: str, name: object) -> str:
    """The group's name; TypeError or ValueError if it cannot be one."""
    text = _names.check_text(function, "name", name, MOST_NAME_BYTES)
    if text == config.DEFAULT_ALIAS:
        raise ValueError(
            f"{function}: name is {text!r}, which is ep_bootstrap's; choose another one"
        )
    return text


@dataclass(frozen=True)
class GroupArguments:
    """What Group and Group.join are both given, each checked once. ``sizes``: of GroupSpec.config, by name."""

    function: str
    alias: str
    sizes: dict[str, int]
    max_token_dtype: np.dtype
    drop_on_overflow: bool
    max_top_k: int
    expert_owner: Sequence[int] | None
    job: str | None

    @classmethod
    def checked(
        cls,
        function: str,
        name: object,
        *,
        max_token_dtype: DTypeLike,
        drop_on_overflow: object,
        max_top_k: object,
        expert_owner: Sequence[int] | None,
        job: object,
        **sizes: object,
    ) -> "GroupArguments":
        """TypeError or ValueError naming the argument, as the public functions document. ``expert_owner``: see ``spec``."""
        return cls(
            function,
            alias(function, name),
            positive(function, **sizes),
            row_dtype(function, max_token_dtype),
            bool(drop_on_overflow),
            top_k_of(function, max_top_k),
            expert_owner,
            job_of(function, job),
        )

    def spec(
        self,
        *,
        world_size: int,
        rank: int,
        ep_size: int,
        num_ep_groups: int = 1,
        **place: Any,
    ) -> GroupSpec:
        """The group on so many ranks. TypeError or ValueError of expert_owner and num_experts.

        Args:
            place: resource, mesh and ranks_here of GroupSpec.
        """
        table, most_experts = owners(
            self.function, self.expert_owner, self.sizes["num_experts"], ep_size
        )
        return GroupSpec(
            EpConfig(
                world_size=world_size,
                rank=rank,
                ep_size=ep_size,
                num_ep_groups=num_ep_groups,
                num_local_experts=most_experts,
                **self.sizes,
            ),
            self.max_token_dtype,
            alias=self.alias,
            origin=f"{self.function}({self.alias!r})",
            max_top_k=self.max_top_k,
            expert_owner=table,
            **place,
        )
