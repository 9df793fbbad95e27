"""The arguments of Group and Group.join: each checked and brought into its final form. ``function`` is for messages."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh
from jax.typing import DTypeLike

from epd import _arguments
from epd.jax import _checks, config
from epd.jax.config import EpConfig, GroupSpec
from epd.jax.mesh import MeshResource, active_device_mesh, active_resource


def positive(function: str, **sizes: object) -> dict[str, int]:
    """``_arguments.positive``, of static sizes."""
    return _arguments.positive(function, _checks.static_int, **sizes)


def _row_dtype(function: str, max_token_dtype: DTypeLike) -> np.dtype:
    dtype = config.dtype_of(function, "max_token_dtype", max_token_dtype)
    if not config.is_row_dtype(dtype):
        raise ValueError(
            f"{function}: max_token_dtype is {dtype}; expected a dtype of 1, 2, 4 or 8 bytes"
        )
    return dtype


def resource_of(function: str, resource: object) -> MeshResource:
    if resource is None:
        return active_resource()
    given: MeshResource = _checks.of_kind(function, "resource", resource, MeshResource)
    if given.ep_resource is None:
        raise ValueError(f"{function}: resource has no ep_resource, the name of the axis of ranks")
    return given


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
            f"{function}: rank is {_arguments.listed(held)}; expected at least one, each once, in ascending order"
        )
    if held[0] < 0 or held[-1] >= ranks:
        raise ValueError(
            f"{function}: rank is {_arguments.listed(held)}; expected 0 to {ranks - 1}, for ranks={ranks}"
        )
    return held


def label(function: str, argument: str, key: object, value: object, most_bytes: int) -> str:
    """ "<key>=<value>" for epctl; TypeError or ValueError unless both are short printable texts without ";" and "="."""
    for text in (key, value):
        _arguments.check_text(function, argument, text, most_bytes)
        if set(str(text)) & set(";="):
            raise ValueError(f"{function}: {argument} is {text!r}; expected a text without ; and =")
    return f"{key}={value}"


class GroupArguments:
    """What Group, Group.join and RoleGroup are given alike, each checked once. ``sizes``: of GroupSpec.config, by name."""

    def __init__(
        self,
        function: str,
        name: object,
        *,
        max_token_dtype: DTypeLike,
        drop_on_overflow: object,
        max_top_k: object,
        expert_owner: Sequence[int] | None,
        job: object,
        **sizes: object,
    ):
        """TypeError or ValueError naming the argument, as the public functions document. ``expert_owner``: see ``owners``."""
        self._function = function
        self.alias = _arguments.check_text(function, "name", name, _arguments.MOST_NAME_BYTES)
        if self.alias == config.DEFAULT_ALIAS:
            raise ValueError(
                f"{function}: name is {name!r}, which is ep_bootstrap's; choose another one"
            )
        self.sizes = positive(function, **sizes)
        self._max_token_dtype = _row_dtype(function, max_token_dtype)
        self._max_top_k = _checks.static_int(function, "max_top_k", max_top_k)
        if not 1 <= self._max_top_k <= config.MAX_TOP_K:
            raise ValueError(
                f"{function}: max_top_k is {self._max_top_k}; expected 1 to {config.MAX_TOP_K}"
            )
        self._expert_owner = expert_owner
        job = (
            None
            if job is None
            else _arguments.check_text(function, "job", job, _arguments.MOST_JOB_BYTES)
        )
        self.joining: dict[str, Any] = {"drop_on_overflow": bool(drop_on_overflow), "job": job}

    def owners(self, ranks: int) -> tuple[tuple[int, ...] | None, int]:
        """The table of the experts' owners, and the most experts of a rank.

        TypeError if it is no sequence of integers, ValueError if it or num_experts does not fit.
        """
        given = (self._expert_owner, self.sizes["num_experts"], ranks)
        return _arguments.owners(self._function, _checks.static_int, *given)

    def spec(
        self, owners: tuple[tuple[int, ...] | None, int], sizes: dict[str, int], **place: Any
    ) -> GroupSpec:
        """The group.

        Args:
            owners: the table, and the most experts of a rank.
            sizes: world_size, rank, ep_size and num_ep_groups of GroupSpec.config.
            place: resource, mesh, ranks_here and of_roles of GroupSpec.
        """
        table, most_experts = owners
        return GroupSpec(
            EpConfig(num_local_experts=most_experts, **sizes, **self.sizes),
            self._max_token_dtype,
            alias=self.alias,
            origin=f"{self._function}({self.alias!r})",
            max_top_k=self._max_top_k,
            expert_owner=table,
            **place,
        )
