"""Group: ranks that exchange tokens, one per process."""

import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from epd import _arguments, _environment, _freed_memory, _group_struct, _program
from epd._arguments import integer
from epd._group_struct import MAX_TOP_K, HeldRank, JoinArguments, Unique
from epd.torch import _compiled, _exchange, _operands, _tensors
from epd.torch._exchange import Exchange, Execution, PlanSizes, Routing
from epd.torch._library import library
from epd.torch.plan import Plan

_DEFAULT_ALIAS = "default"  # epd.jax.ep_bootstrap's.
# What the group is told of a max_token_dtype that cannot be summed, by its width: the widest epd_dtype has 4 bytes.
_BOUND_CODES = {1: 2, 2: 2, 4: 1, 8: 1}


@dataclass(frozen=True)
class Sizes:
    """The sizes of a group. ``num_local_experts``: the most that any rank owns."""

    ep_size: int
    num_experts: int
    num_local_experts: int
    max_tokens_per_rank: int
    recv_capacity_per_rank: int
    hidden_dim: int


@dataclass(frozen=True)
class GroupSpec:
    """What all ranks must give alike. See ``_group_struct.Described``."""

    alias: str
    config: Sizes
    expert_owner: tuple[int, ...] | None
    max_top_k: int
    max_token_dtype: torch.dtype
    joined_by_rank: bool = False  # A call says its rank.

    @property
    def owners_digest(self) -> int:
        return _group_struct.owners_digest(self.expert_owner)

    @property
    def dtype_bound(self) -> int:
        dtype = self.max_token_dtype
        return _tensors.SUMMED.get(dtype) or _BOUND_CODES[_tensors.width_of(dtype)]

    @property
    def row_bytes(self) -> int:
        return self.config.hidden_dim * _tensors.width_of(self.max_token_dtype)

    def experts_of(self, rank: int) -> list[int]:
        """In ascending order."""
        sizes = self.config
        if self.expert_owner is None:
            first = rank * sizes.num_local_experts
            return list(range(first, first + sizes.num_local_experts))
        return [expert for expert, owner in enumerate(self.expert_owner) if owner == rank]


def _nonce() -> str:
    """What the processes of torch.distributed's default group share, and no others; "" where it is not initialised."""
    if not (dist.is_available() and dist.is_initialized()):
        return ""
    from torch.distributed import distributed_c10d  # Not in every build of torch.

    store = distributed_c10d._get_default_store()
    return store.compare_set("epd/nonce", "", os.urandom(8).hex()).decode()


def _identity(function: str, job: str | None, ranks: int) -> tuple[str, str]:
    """The job's name, and the run of it."""
    if job is not None:
        job = _arguments.check_text(function, "job", job, _arguments.MOST_JOB_BYTES)
    name, run = _program.identity(job, _nonce() if ranks > 1 else "", store="torch")
    if name:
        return name, run
    if ranks == 1:
        return f"local-{os.urandom(8).hex()}", run
    raise ValueError(
        f"{function}: job is missing; give one name in all processes of the job, set EPD_JOB to it, or call"
        " torch.distributed.init_process_group first"
    )


class Group(Unique):
    """Ranks that exchange tokens, of which this process is one. ``Group.join`` makes it.

    It is left by ``finalize``, at the end of ``with``, when it is collected, or at the process's end. A forked child, a data
    loader's worker say, has no group, and lives beside it.
    """

    def __init__(self, spec: GroupSpec, rank: int, job: str | None, drop_on_overflow: bool):
        """Joins; for ``join``."""
        self._spec, self._rank, self._job = spec, rank, job
        self._arguments = JoinArguments(
            (HeldRank(0, rank, ""),), num_domains=1, drop_on_overflow=drop_on_overflow
        )
        self.experts = spec.experts_of(rank)
        sizes = spec.config
        self._plan_sizes = PlanSizes(
            sizes.ep_size, sizes.num_experts, len(self.experts), sizes.max_tokens_per_rank
        )
        self._recorder = _compiled.Recorder(spec, rank, self._plan_sizes)
        self.connect()

    @classmethod
    def join(
        cls,
        name: str,
        ranks: int,
        rank: int,
        *,
        num_experts: int,
        max_tokens_per_rank: int,
        recv_capacity_per_rank: int,
        hidden_dim: int,
        max_token_dtype: torch.dtype = torch.bfloat16,
        drop_on_overflow: bool = False,
        max_top_k: int = MAX_TOP_K,
        expert_owner: Sequence[int] | None = None,
        job: str | None = None,
    ) -> "Group":
        """Joins as one rank of a group, and waits for the others. They may run epd.jax (``epd.jax.Group.join``, same arguments).

        Args:
            name: by which ``epctl`` knows the group: 1 to 60 printable ASCII characters without spaces and slashes; not
                "default". One group of a name at a time in a process.
            ranks, rank: how many there are, and which this process is.
            num_experts: experts of the group. Without expert_owner a multiple of ``ranks``.
            max_tokens_per_rank: most tokens that a rank sends in one dispatch.
            recv_capacity_per_rank: most slots that a rank receives in one dispatch, padding and duplicates included.
            hidden_dim: elements of a token.
            max_token_dtype: widest dtype of tokens, of 1, 2, 4 or 8 bytes.
            drop_on_overflow: True: routes beyond the capacity of a call are dropped; False: an error on every rank.
            max_top_k: largest top_k of any layer, 1 to 128.
            expert_owner: ``[num_experts]`` the rank of each expert, in any order; ranks may own different numbers of
                experts, or none. None: contiguous blocks.
            job: name of the job: the processes of one name belong together, those of one default process group where
                torch.distributed is initialised (``EPD_INSTANCE`` where they are not all in one). Jobs that run at once need
                different names. None: ``EPD_JOB``, else the scheduler's and the launcher's words for this launch, with what
                torch.distributed's store agrees on.

        Raises:
            TypeError: an argument of another type.
            ValueError: a size, name or table that does not fit; no job's name.
            EpError: FAILED_PRECONDITION, the process is in a group of this name; UNAVAILABLE, no daemon;
                DEADLINE_EXCEEDED, not all ranks came; INVALID_ARGUMENT, ranks gave different sizes; ALREADY_EXISTS, another
                process holds the rank.
        """
        function = "Group.join"
        alias = _arguments.check_text(function, "name", name, _arguments.MOST_NAME_BYTES)
        if alias == _DEFAULT_ALIAS:
            raise ValueError(
                f"{function}: name is {name!r}, which is ep_bootstrap's; choose another one"
            )
        sizes = _arguments.positive(
            function,
            integer,
            ranks=ranks,
            num_experts=num_experts,
            max_tokens_per_rank=max_tokens_per_rank,
            recv_capacity_per_rank=recv_capacity_per_rank,
            hidden_dim=hidden_dim,
        )
        ranks = sizes.pop("ranks")
        rank = integer(function, "rank", rank)
        if not 0 <= rank < ranks:
            raise ValueError(
                f"{function}: rank is {rank}; expected 0 to {ranks - 1}, for ranks={ranks}"
            )
        max_top_k = integer(function, "max_top_k", max_top_k)
        if not 1 <= max_top_k <= MAX_TOP_K:
            raise ValueError(f"{function}: max_top_k is {max_top_k}; expected 1 to {MAX_TOP_K}")
        if not isinstance(max_token_dtype, torch.dtype):
            raise TypeError(
                f"{function}: max_token_dtype must be a torch.dtype, got {type(max_token_dtype).__name__}"
            )
        if max_token_dtype not in {**_tensors.SUMMED, **_tensors.MOVED}:
            raise ValueError(
                f"{function}: max_token_dtype is {max_token_dtype}; expected a dtype of 1, 2, 4 or 8 bytes"
            )
        table, most = _arguments.owners(
            function, integer, expert_owner, sizes["num_experts"], ranks
        )
        spec = GroupSpec(
            alias,
            Sizes(ep_size=ranks, num_local_experts=most, **sizes),
            table,
            max_top_k,
            max_token_dtype,
        )
        return cls(spec, rank, job, bool(drop_on_overflow))

    # ---- what it is ----

    @property
    def name(self) -> str:
        return self._spec.alias

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def config(self) -> Sizes:
        return self._spec.config

    @property
    def state(self) -> str:
        """Where this process's rank is; never blocks: "ready"; "lost", the daemon or the group is gone, a call says why and the
        next one joins again; "joining", another thread joins; "left"."""
        return library.state(self.name)[0]

    @property
    def epoch(self) -> int:
        """The group's epoch as it is formed now; 0: not joined."""
        return library.state(self.name)[1]

    def wait_ready(self, timeout: float | None = None) -> None:
        """Waits until this rank is in the group, joining again if it was lost; at once if it is ready.

        Args:
            timeout: seconds; None: the forming deadline, ``EPD_FORM_TIMEOUT``.

        Raises:
            TypeError, ValueError: timeout is no number above 0.
            EpError: DEADLINE_EXCEEDED, not all ranks came in time; FAILED_PRECONDITION, left; else as for ``join``.
        """
        seconds = _arguments.seconds("Group.wait_ready", "timeout", timeout)
        library.wait_ready(self.name, seconds)

    def __repr__(self) -> str:
        sizes = self.config
        return f"Group({self.name!r}, ranks={sizes.ep_size}, rank={self.rank}, num_experts={sizes.num_experts})"

    # ---- joining and leaving ----

    def connect(self) -> None:
        """Joins again after ``finalize``; collective. EpError as of ``join``."""
        _freed_memory.keep()
        job, instance = _identity("Group.join", self._job, self.config.ep_size)
        struct = _group_struct.group_struct(
            self._spec,
            self._arguments,
            job=job,
            instance=instance,
            on_gpus=False,
            devices=f"process {os.getpid()}",
        )
        struct.socket_path = _environment.socket_path().encode()
        library.join(struct)
        self._leave = weakref.finalize(self, library.finalize, self.name)

    def finalize(self) -> None:
        """Leaves the group. Safe when called twice. Calls under way in other threads get two seconds to end."""
        self._leave()

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *exception: object) -> None:
        self.finalize()

    # ---- operations ----

    def _execution(self, name: str | None) -> Execution:
        return Execution(self.name, self.rank, name)

    def prepare(
        self, topk_idx: torch.Tensor, *, alignment: int = 0, name: str | None = None
    ) -> Plan:
        """Agrees with the other ranks on where the tokens go. Collective, as are ``dispatch``, ``combine`` and their gradients.

        Ranks make these calls in one order. Those whose programs differ (or which run epd.jax) give ``name``, static and the
        same on all ranks, for a plan and all that is done with it: they find each other by it, and uses of a name are counted.

        Args:
            topk_idx: int32 or int64 ``[T, K]`` (or ``[..., K]``) the experts of each token; -1: none. T may differ between
                ranks, or be 0; K may not.
            alignment: experts' zones begin at multiples of this many slots; a power of two; 0 and 1 mean none.
            name: see above.

        Raises:
            TypeError, ValueError: an argument does not fit; the other ranks get EpError INVALID_ARGUMENT with the same text.
            EpError: INVALID_ARGUMENT, an index of num_experts or more, ranks that do not agree; UNAVAILABLE, a rank or the
                daemon is gone; DEADLINE_EXCEEDED, a rank is late; see the README.
        """
        function = "Group.prepare"
        if name is not None:
            name = _arguments.check_text(function, "name", name, _operands.MOST_NAME_BYTES)
        if _compiled.recording():
            return self._recorder.prepare(topk_idx, alignment, name)
        execution = self._execution(name)
        with _operands.Told(execution, "prepare"):
            _operands.check_untraced(function)
            alignment = _operands.alignment(function, alignment)
            idx = _operands.indices(function, topk_idx, self._spec)
        idx = idx.reshape(-1, idx.shape[-1])
        handle_mem, counts, total = _exchange.prepare(execution, idx, self._plan_sizes, alignment)
        routing = Routing(handle_mem, idx.shape[1], alignment, idx.shape[0])
        return Plan(counts, int(total), tuple(topk_idx.shape[:-1]), routing, name, self.name)

    def dispatch(
        self,
        plan: Plan,
        tokens: torch.Tensor,
        topk_weights: torch.Tensor,
        recv_capacity: int | None = None,
        *,
        out: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sends each token's row to its experts' ranks.

        Args:
            plan: of ``prepare`` of this group.
            tokens: ``[T, H]`` (or ``[..., H]``) of any dtype of up to 8 bytes; rows of float32, bfloat16 and float16 have
                gradients.
            topk_weights: floating ``[T, K]`` (or ``[..., K]``), which travel along as float32.
            recv_capacity: C, 1 to recv_capacity_per_rank; may differ between ranks. None: the slots of ``out``, else what
                the plan needs.
            out: ``[C, H]`` of the tokens' dtype, contiguous: recv_tokens are written there and returned, zeros where the call
                fails. Under torch.no_grad() only.

        Returns:
            recv_tokens ``[C, H]``: the zones of this rank's experts one after another, zeros behind; recv_topk_weights
            float32 ``[C]``.

        Raises:
            As ``prepare``; EpError RESOURCE_EXHAUSTED: a rank would receive more than its C, without drop_on_overflow;
            ABORTED: the plan is from before the group was formed anew.
        """
        function = "Group.dispatch"
        plan = _operands.plan_of(function, plan, self.name)
        if _compiled.recording():
            _operands.check_no_output(function, out)
            capacity = _operands.capacity(function, recv_capacity, plan, self._spec)
            return self._recorder.dispatch(plan, tokens, topk_weights, capacity)
        execution = self._execution(plan.name)
        with _operands.Told(execution, "dispatch"):
            _operands.check_untraced(function)
            if recv_capacity is None and isinstance(out, torch.Tensor) and out.dim() > 0:
                recv_capacity = out.shape[0]
            capacity = _operands.capacity(function, recv_capacity, plan, self._spec)
            rows = _operands.tokens(function, tokens, plan, self._spec)
            weights = _operands.weights(function, topk_weights, plan)
            into = _operands.output(function, out, rows, (capacity,))
        exchange = Exchange(plan.routing, "dispatch", capacity, execution)
        return plan.exchange(exchange, rows, weights, into)

    def combine(
        self, plan: Plan, expert_out: torch.Tensor, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Sums each token's expert rows back, unweighted: in fp32, in k order, rounded once.

        Args:
            plan: of the dispatch.
            expert_out: float32, bfloat16 or float16 ``[C, H]``, as dispatch's recv_tokens, or without the rows behind the
                last zone.
            out: ``[T, H]`` (or ``[..., H]``) of the same dtype, contiguous: see ``dispatch``.

        Returns:
            ``[T, H]`` (or ``[..., H]``).

        Raises:
            As ``dispatch``.
        """
        function = "Group.combine"
        plan = _operands.plan_of(function, plan, self.name)
        if _compiled.recording():
            _operands.check_no_output(function, out)
            return self._recorder.combine(plan, expert_out)
        execution = self._execution(plan.name)
        with _operands.Told(execution, "combine"):
            _operands.check_untraced(function)
            least = 0 if self._arguments.drop_on_overflow else plan.total_recv
            rows = _operands.expert_rows(function, expert_out, self._spec, least)
            into = _operands.output(function, out, rows, plan.leading)
        exchange = Exchange(plan.routing, "combine", rows.shape[0], execution)
        summed, _ = plan.exchange(exchange, rows, None, into)
        return summed if into is not None else summed.reshape(*plan.leading, rows.shape[1])
