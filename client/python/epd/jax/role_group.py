"""RoleGroup: ranks with tokens and ranks with experts, on two meshes. See roles.py."""

import contextlib
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike

from epd._group_struct import Unique
from epd.jax import _checks, _ffi, _join, _place, config
from epd.jax._checked_operations import Operation
from epd.jax._group_arguments import GroupArguments
from epd.jax._role_streams import Side
from epd.jax.config import EpConfig, EpLayerConfig, GroupSpec
from epd.jax.group_operations import GroupOperations


@jax.tree_util.register_pytree_node_class
class RoleLink(GroupOperations):
    """One execution's way to the other role: the first argument of a role's function. A pytree, valid while it is traced.

    A token rank's link leads to all expert ranks; an expert rank's link leads to the other expert ranks and one token
    rank. Its operations are those of ``Group``, with two differences: ``name=`` is required, the same on both sides; and
    arrays are this rank's alone, so that R is 1 in every shape of the functional API.
    """

    def __init__(self, spec: GroupSpec, place: _place.Place):
        self._spec, self._place = spec, place

    def tree_flatten(self) -> tuple[_place.Place, GroupSpec]:
        return self._place, self._spec

    @classmethod
    def tree_unflatten(cls, spec: GroupSpec, place: Iterable[jax.Array]) -> "RoleLink":
        domain, position = place
        return cls(spec, (domain, position))

    def _here(self) -> contextlib.AbstractContextManager[None]:
        return _place.at(self._place)

    def dispatch(
        self,
        cfg: EpLayerConfig,
        topk_idx: jax.Array,
        tokens: jax.Array,
        topk_weights: jax.Array,
        recv_capacity_per_rank: int,
        *,
        name: str | None = None,
        start: bool = False,
    ) -> Any:
        """``Group.dispatch``, of one rank. Its prepare waits for the tokens, too: so it follows from what they follow from.

        ValueError: ``start`` is True.
        """
        leaves = [leaf for leaf in jax.tree.leaves(tokens) if isinstance(leaf, jax.Array)]
        with _place.at(_place.after(self._place, leaves)):
            call = Operation(self._spec, "RoleLink.dispatch", name)
            given = (cfg, topk_idx, tokens, topk_weights, recv_capacity_per_rank)
            return call.dispatch(*given, start=start)

    def nothing(
        self, cfg: EpLayerConfig, dtype: DTypeLike | None = None, *, after: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """What a rank without tokens brings to dispatch: (topk_idx, tokens, topk_weights) of one row, routed nowhere.

        Args:
            cfg: static; the layer.
            dtype: static; of the row, which must be that of the other role's. None: max_token_dtype.
            after: ``[1, H]`` what combine gave in the layer before, if the program has several layers: it is the row,
                which ties the layers, and their gradients, to the order in which the token ranks come to them.

        Returns:
            int32 ``[1, K]`` of -1; zeros ``[1, H]``, or ``after``; float32 zeros ``[1, K]``.

        Raises:
            TypeError: ``cfg`` is no EpLayerConfig, ``dtype`` no dtype.
            ValueError: ``after`` has another shape.
        """
        function = "RoleLink.nothing"
        _checks.layer(function, cfg)
        shape = (1, self._spec.config.hidden_dim)
        idx = jnp.full((1, cfg.top_k), -1, jnp.int32)
        weights = jnp.zeros((1, cfg.top_k), jnp.float32)
        if after is None:
            dtype = self._spec.max_token_dtype if dtype is None else dtype
            return idx, jnp.zeros(shape, config.dtype_of(function, "dtype", dtype)), weights
        if after.shape != shape:
            raise ValueError(
                f"{function}: after has shape {list(after.shape)}, expected {list(shape)}: what combine gave in the layer"
                " before"
            )
        return idx, after if dtype is None else after.astype(dtype), weights


def check_meshes(function: str, meshes: Sequence[Mesh]) -> None:
    """ValueError if an axis has two sizes."""
    sizes: dict[str, tuple[int, int]] = {}
    for number, mesh in enumerate(meshes):
        for axis, size in mesh.shape.items():
            other, known = sizes.setdefault(axis, (number, size))
            if known != size:
                raise ValueError(
                    f"{function}: axis {axis!r} has size {known} in mesh {other} and {size} in mesh {number}; give the same"
                    " sizes, or the axes different names"
                )


def check_mesh(function: str, argument: str, mesh: object) -> None:
    if _checks.of_kind(function, argument, mesh, Mesh).empty:
        raise ValueError(f"{function}: {argument} has no devices")


class _HasNumber(Protocol):
    """A user of names, by its number among the functions."""

    number: int


class _CanClose(Protocol):
    def close(self) -> None: ...


class RoleGroup(Unique):
    """Token ranks (attention) and expert ranks on two meshes. ``roles`` joins it and runs the roles' functions."""

    def __init__(
        self,
        name: str,
        token_mesh: Mesh,
        expert_mesh: Mesh,
        *,
        num_experts: int,
        max_tokens_per_rank: int,
        recv_capacity_per_rank: int,
        hidden_dim: int,
        max_token_dtype: DTypeLike = jnp.bfloat16,
        drop_on_overflow: bool = False,
        max_top_k: int = config.MAX_TOP_K,
        expert_owner: Sequence[int] | None = None,
        job: str | None = None,
    ):
        """Describes the group; looks for no daemon. All processes of both meshes make it alike.

        Args:
            name: as for ``Group``.
            token_mesh: the devices that bring tokens, M of them; rank a is the a-th in row-major order.
            expert_mesh: the devices that own experts, N of them. A device may be in both meshes.
            num_experts: experts, over all of ``expert_mesh``. Without expert_owner a multiple of N.
            recv_capacity_per_rank: most slots that an expert rank receives from one token rank in one dispatch.
            expert_owner: ``[num_experts]`` the position of each expert's owner in ``expert_mesh``.
            max_tokens_per_rank, hidden_dim, max_token_dtype, drop_on_overflow, max_top_k, job: as for ``Group``.

        Raises:
            TypeError, ValueError: as for ``Group``; ValueError, too: a mesh without devices, an axis with two sizes, one
                mesh for both roles.
        """
        function = "RoleGroup"
        given = GroupArguments(
            function,
            name,
            num_experts=num_experts,
            max_tokens_per_rank=max_tokens_per_rank,
            recv_capacity_per_rank=recv_capacity_per_rank,
            hidden_dim=hidden_dim,
            max_token_dtype=max_token_dtype,
            drop_on_overflow=drop_on_overflow,
            max_top_k=max_top_k,
            expert_owner=expert_owner,
            job=job,
        )
        check_mesh(function, "token_mesh", token_mesh)
        check_mesh(function, "expert_mesh", expert_mesh)
        check_meshes(function, (token_mesh, expert_mesh))
        if token_mesh == expert_mesh:
            raise ValueError(
                f"{function}: token_mesh and expert_mesh are the same mesh, {dict(token_mesh.shape)}; give the axes different"
                " names, as functions are told apart by their mesh"
            )
        self._meshes = {Side.TOKENS: token_mesh, Side.EXPERTS: expert_mesh}
        tokens, experts = token_mesh.size, expert_mesh.size
        table, most = given.owners(experts)
        if table is None:
            num_experts = given.sizes["num_experts"]
            table = tuple(e * experts // num_experts for e in range(num_experts))
        self._spec = given.spec(
            (tuple(1 + owner for owner in table), most),
            {
                "world_size": tokens + experts,
                "rank": jax.process_index(),
                "ep_size": 1 + experts,
                "num_ep_groups": tokens,
            },
            of_roles=True,
        )
        self._joining = given.joining
        self._joined, self._num_handshakes = False, 0
        # Which program uses a name of an operation; what runs, to be ended with the group.
        self._users: weakref.WeakValueDictionary[tuple[Side, str, str], _HasNumber] = (
            weakref.WeakValueDictionary()
        )
        self._running: weakref.WeakSet[_CanClose] = weakref.WeakSet()

    @property
    def name(self) -> str:
        """The name in programs and in epctl; the group of token rank a and all experts is ``<job>/<name>/<a>`` there."""
        return self._spec.alias

    @property
    def config(self) -> EpConfig:
        """The sizes; ``ep_size`` counts one token rank and all expert ranks."""
        return self._spec.config

    @property
    def spec(self) -> GroupSpec:
        """What tracing knows of the group. Hashable, equal by value."""
        return self._spec

    @property
    def is_joined(self) -> bool:
        return self._joined

    def side_of(self, mesh: Mesh) -> Side | None:
        """Whose mesh it is. None: none of the group's."""
        return next((side for side, known in self._meshes.items() if known == mesh), None)

    def take_names(self, side: Side, names: set[tuple[str, str, str]], user: _HasNumber) -> None:
        """Notes that ``user`` uses the names on that side; ValueError if another one does."""
        for _, name, operation in sorted(names):
            other = self._users.setdefault((side, name, operation), user)
            if other is not user:
                raise ValueError(
                    f"roles: functions {other.number} and {user.number} both have a {operation} of the name {name!r} and run"
                    " on the same ranks, so ranks cannot tell which call is which; give each function its own names"
                )

    def next_handshake(self) -> str:
        """A key for one more ``roles`` of the group, which no name of an operation has; the same in every process."""
        self._num_handshakes += 1
        return f"roles/{self._num_handshakes}/begin"

    def at(self, domain: int, position: int, key: str) -> _ffi.Handshake:
        """What the rank can say under the key."""
        return _ffi.Handshake(self._spec.alias, domain, position, key)

    def connect(self, program: str, metadata: str, running: _CanClose) -> None:
        """Joins with this process's ranks, once; collective. ``running`` is closed before the group is left."""
        self._running.add(running)
        if self._joined:
            return
        num_domains = self._meshes[Side.TOKENS].size
        about = {"program": program, "metadata": metadata}
        _join.join(
            self._spec, _join.arguments_of(self._ranks(), num_domains, **about, **self._joining)
        )
        self._joined = True

    def _ranks(self) -> list[tuple[int, int, jax.Device]]:
        """(domain, position, device) of all ranks: a domain for each token rank, which is its rank 0."""
        tokens, experts = (
            self._meshes[side].devices.reshape(-1) for side in (Side.TOKENS, Side.EXPERTS)
        )
        return [
            (domain, position, device)
            for domain, own in enumerate(tokens)
            for position, device in enumerate([own, *experts])
        ]

    def finalize(self) -> None:
        """Leaves the group: executions that have not begun are cancelled, others get the time that ``Group.finalize`` gives.
        Safe when called twice or never joined. ``roles`` joins it again.
        """
        self._joined, self._num_handshakes = False, 0
        for running in list(self._running):
            running.close()
        self._running.clear()
        self._users.clear()
        _join.leave(self._spec)

    def __enter__(self) -> "RoleGroup":
        return self

    def __exit__(self, *exception: object) -> None:
        self.finalize()
