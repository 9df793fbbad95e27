"""Group: ranks that exchange tokens, as an object. A process may hold ranks of many groups.

::

    with jax.set_mesh(mesh), Group("encoder", resource=MeshResource(ep_resource="ep"), num_experts=64,
                                   max_tokens_per_rank=512, recv_capacity_per_rank=4096, hidden_dim=1024) as encoder:
        layer = EpLayerConfig(top_k=4)

        @jax.jit
        def step(idx, tokens, weights):
            recv, recv_weights, handle, *_ = encoder.dispatch(layer, idx, tokens, weights, 4096)
            return encoder.combine(layer, handle, experts(recv), tokens.shape[0])

A program holds a group's name and sizes, and nothing of this process: what the name means is looked up at every call.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh
from jax.typing import DTypeLike

from epd._arguments import seconds
from epd._group_struct import HeldRank, JoinArguments, Unique
from epd.jax import _checks, _ffi, _held_groups, _join, config
from epd.jax import _group_arguments as _arguments
from epd.jax._group_arguments import GroupArguments
from epd.jax.config import EpConfig, GroupSpec
from epd.jax.group_operations import GroupOperations
from epd.jax.mesh import MeshResource, group_sizes


class Group(Unique, GroupOperations):
    """Ranks that exchange tokens. Hashable by identity; several may be used in one process and in one program.

    Its methods are those of the functional API, with the same arguments, gradients, errors and contexts; in place of
    the default group they act on this one. ``name=`` of an operation: static; ranks whose *programs differ* find each other by it
    (it may be used once per operation and program, and must be the same on all ranks); without it, by their
    place in the program, which must be the same one on all ranks: a jitted function of the same name with the same exchanges.

    It is left by ``finalize``, at the end of ``with``, or at the process's end. A Group that is collected leaves only
    where no trace, jitted function, lowered module or compiled program that lives names it; ``Group.get`` finds the others.

    Compiled programs stay valid when the group is left and joined again, by this object or another one of the same name
    and sizes; they say which size differs otherwise.
    """

    def __init__(
        self,
        name: str,
        *,
        num_experts: int,
        max_tokens_per_rank: int,
        recv_capacity_per_rank: int,
        hidden_dim: int,
        max_token_dtype: DTypeLike = jnp.bfloat16,
        drop_on_overflow: bool = False,
        max_top_k: int = config.MAX_TOP_K,
        expert_owner: Sequence[int] | None = None,
        mesh: Mesh | AbstractMesh | None = None,
        resource: MeshResource | None = None,
        job: str | None = None,
        connect: bool = True,
    ):
        """A group whose ranks stand along an axis of a mesh, or several. Eager and collective, as ep_bootstrap is.

        Processes that make several groups make them in the same order. A process whose devices are not in the mesh may
        call it too, and then holds no rank.

        Args:
            name: by which programs and ``epctl`` know the group: 1 to 60 printable ASCII characters without spaces and
                slashes; not "default". A second Group of the same name and sizes in a process takes over what the first
                one holds, so that a notebook's cell may run again.
            num_experts: experts of one domain. Without expert_owner a multiple of the ep axis's size.
            max_tokens_per_rank: most tokens that a rank sends in one dispatch.
            recv_capacity_per_rank: most slots that a rank receives in one dispatch, padding and duplicates included.
            hidden_dim: elements of a token.
            max_token_dtype: widest dtype of tokens, of 1, 2, 4 or 8 bytes. A row of a call has at most hidden_dim times its
                bytes.
            drop_on_overflow: True: routes beyond the capacity of a call are dropped; False: an error on every rank.
            max_top_k: largest top_k of any layer, 1 to 128.
            expert_owner: ``[num_experts]`` the rank (position along ep) of each expert, in any order; ranks may own
                different numbers of experts, or none. A rank's local experts are its own in ascending order. n, the
                size of ``token_counts``, is the largest number that any rank owns; where a rank owns fewer, the rest
                is zeros. None: contiguous blocks.
            mesh: its devices are the ranks; None: the active one. Operations traced where no mesh is active use its
                shape. An AbstractMesh is enough with ``connect=False``: ``mesh.abstract_mesh``, or one with the mesh's
                ``axis_types``, which JAX makes Auto in a Mesh, and Explicit in an AbstractMesh and in ``jax.make_mesh``.
            resource: names of the mesh's axes for this group; None: the active MeshResource, now and at every trace.
            job: name of the job, see ``EPD_JOB``; None: as for ep_bootstrap.
            connect: False: only describe the group. Tracing, lowering and exporting work, and no daemon is looked for;
                ``connect()`` joins later.

        Raises:
            TypeError: an argument of another type.
            ValueError: no mesh, no ep_resource, or a size, name or table that does not fit; several processes that
                cannot agree on the job's name.
            EpError: FAILED_PRECONDITION, another group of this name exists in the process; UNAVAILABLE, no daemon;
                DEADLINE_EXCEEDED, not all ranks came; INVALID_ARGUMENT, ranks gave different sizes.
        """
        function = "Group"
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
        names = _arguments.resource_of(function, resource)
        found = _arguments.mesh_of(function, mesh)
        ep_axes, mesh_sizes = group_sizes(names, found, function)
        spec = given.spec(
            given.owners(mesh_sizes["ep_size"]),
            {"rank": jax.process_index() if isinstance(found, Mesh) else 0, **mesh_sizes},
            resource=resource,
            mesh=None if mesh is None else found.abstract_mesh,
        )
        arguments = None
        if isinstance(found, Mesh):
            arguments = _join.along(found, ep_axes, **given.joining)
        self._set(spec, arguments)
        if connect:
            self.connect()

    def _set(self, spec: GroupSpec, arguments: JoinArguments | None) -> None:
        self._spec, self._join_arguments = _held_groups.watch(spec), arguments

    @classmethod
    def of_spec(cls, spec: GroupSpec, arguments: JoinArguments) -> "Group":
        """A group that is described already and not joined yet; for ep_bootstrap."""
        group = cls.__new__(cls)
        group._set(spec, arguments)
        return group

    @classmethod
    def join(
        cls,
        name: str,
        ranks: int,
        rank: int | Sequence[int],
        *,
        num_experts: int,
        max_tokens_per_rank: int,
        recv_capacity_per_rank: int,
        hidden_dim: int,
        max_token_dtype: DTypeLike = jnp.bfloat16,
        drop_on_overflow: bool = False,
        max_top_k: int = config.MAX_TOP_K,
        expert_owner: Sequence[int] | None = None,
        devices: jax.Device | Sequence[jax.Device] | None = None,
        resource: MeshResource | None = None,
        job: str | None = None,
        connect: bool = True,
    ) -> "Group":
        """A group whose ranks are named by their processes: no mesh spans them, and no ``jax.distributed``. Collective.

        In a process of one rank, arrays are that rank's: R is 1 in every shape of the functional API, and no mesh is
        needed. In a process of several ranks they lie on the active mesh, of as many local devices as ranks along
        ``ep_resource``: R is their number, and the i-th device is the i-th of ``rank``. All processes run one program
        (its text does not depend on the rank), or find each other by ``name=``. Their numbers of tokens may differ, none included. In
        the function of a program that makes them, calls without a name keep the order of the source; between functions
        (nested jit, ``jax.checkpoint``) their data orders them, which it cannot do on a rank without tokens: give it one
        token there whose indices are all -1.

        Args:
            name: as for ``Group``.
            ranks: ranks of the group, in all processes together.
            rank: this process's rank, or its ranks in ascending order.
            devices: the device of each rank, in this order. None: of one rank the device that this process's programs run
                on (of an active mesh of one device, ``jax.default_device``, or the first one); of several ranks those of the
                active mesh, in its order. A group whose ranks are on GPUs is served on GPUs: each rank has one of its own, and the
                programs run where the ranks are. On CPUs it changes nothing.
            job: name of the job: the processes of one name belong together, those of one ``jax.distributed`` where it is initialised
                (``EPD_INSTANCE`` where they are not all in one). Jobs that run at once need different names. None: ``EPD_JOB``,
                else the scheduler's and the launcher's words for this launch, with what JAX's key-value store agrees on.
            num_experts, max_tokens_per_rank, recv_capacity_per_rank, hidden_dim, max_token_dtype, drop_on_overflow,
                max_top_k, expert_owner, resource, connect: as for ``Group``.

        Raises:
            ValueError: also if ``job`` is None, other processes hold ranks, and no other source names the job; several ranks
                on GPUs without a mesh or ``devices``, or with another number of them.
            TypeError: also if ``devices`` are none.
            Otherwise as ``Group``; ALREADY_EXISTS: another process holds the rank.
        """
        function = "Group.join"
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
        ranks = _arguments.positive(function, ranks=ranks)["ranks"]
        held = _arguments.ranks_here(function, rank, ranks)
        if resource is not None:
            resource = _arguments.resource_of(function, resource)
        spec = given.spec(
            given.owners(ranks),
            {"world_size": ranks, "rank": held[0], "ep_size": ranks, "num_ep_groups": 1},
            resource=resource,
            ranks_here=len(held),
        )
        here = tuple(HeldRank(0, value, "") for value in held)
        arguments = JoinArguments(here, num_domains=1, **given.joining)
        if devices is not None:
            arguments = _join.on_devices(arguments, _join.check_devices(function, held, devices))
        group = cls.of_spec(spec, arguments)
        if connect:
            group.connect()
        return group

    @classmethod
    def get(cls, name: str) -> "Group":
        """The Group of this process that has the name, ``ep_bootstrap``'s being "default".

        The object that joined; a new one that stands for it if it was collected while a program went on naming the group.

        Raises:
            TypeError: ``name`` is no str.
            ValueError: there is none.
        """
        _checks.of_kind("Group.get", "name", name, str)
        found = _held_groups.find(name)
        if found is None:
            known = ", ".join(map(repr, _held_groups.names())) or "none"
            raise ValueError(
                f"Group.get: make the group first: this process is in no group {name!r}; its groups: {known}"
            )
        owner, spec, arguments = found
        if isinstance(owner, Group):
            return owner
        group = cls.of_spec(dataclasses.replace(spec), arguments)
        _held_groups.adopt(name, group)
        return group

    # ---- what it is ----

    @property
    def name(self) -> str:
        """The name in programs and in epctl."""
        return self._spec.alias

    @property
    def config(self) -> EpConfig:
        """The sizes, as ``get_ep_config`` gives those of the default group."""
        return self._spec.config

    @property
    def joining(self) -> JoinArguments:
        """What ``connect`` joins with. ValueError: the group was made for an AbstractMesh."""
        if self._join_arguments is None:
            raise ValueError(
                f"Group.connect: make the group with a Mesh: {self.name!r} was made for an AbstractMesh, which has no devices"
            )
        return self._join_arguments

    @property
    def state(self) -> str:
        """Where this process's ranks are; never blocks.

        "ready": in the group, also while a worker or another rank is replaced, which calls say. "lost": the daemon or the group is gone; a call says why, the next one joins again, as
        ``wait_ready`` does. "joining": another thread joins. "left": not joined, finalized, or no rank is held here.
        """
        return _ffi.state(self.name)[0]

    @property
    def epoch(self) -> int:
        """The group's epoch as it is formed now, of several domains the newest; 0: not joined."""
        return _ffi.state(self.name)[1]

    def wait_ready(self, timeout: float | None = None) -> None:
        """Waits until this process's ranks are in the group, joining again if it was lost; at once if it is ready.

        Collective where the group must be joined again. Nothing is done by a process that holds no rank.

        Args:
            timeout: seconds; None: the forming deadline, ``EPD_FORM_TIMEOUT``.

        Raises:
            TypeError, ValueError: timeout is no number above 0.
            EpError: DEADLINE_EXCEEDED, not all ranks came in time (joining goes on in a thread when it was ``timeout``);
                FAILED_PRECONDITION, not joined, or finalized; else as for ``Group``.
        """
        most = seconds("Group.wait_ready", "timeout", timeout)
        if self._join_arguments is not None and not self._join_arguments.held:
            return
        _ffi.wait_ready(self.name, most)

    def __repr__(self) -> str:
        sizes = self.config
        return f"Group({self.name!r}, ranks={sizes.ep_size}, num_experts={sizes.num_experts})"

    # ---- joining and leaving ----

    def connect(self) -> None:
        """Joins the group with this process's ranks; collective. For groups made with ``connect=False``, or finalized.

        Where this process is in a group of the same name and sizes, takes it over from the Group that joined, whose
        ``finalize`` then does nothing.

        Raises:
            ValueError: the group was made for an AbstractMesh; the job's name is not known.
            EpError: as for ``Group``.
        """
        self._join_arguments = _join.placed(self._spec, self.joining)
        _held_groups.hold(self)

    def finalize(self) -> None:
        """Leaves the group. Safe when called twice, never joined, or taken over by another Group. Results in flight get ten seconds to come; operations
        that have not ended two seconds later fail.

        Compiled programs stay valid: they run again after ``connect()``.
        """
        _held_groups.leave(self)

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *exception: object) -> None:
        self.finalize()
