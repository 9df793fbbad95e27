"""A group as the library takes it: the one place in Python where the fields of epd_group_spec and epd_program_group stand.

A new field of epd_group_spec is a line of ``_SPEC``: its name, its type, and where its value comes from. The order is that of
the headers.
"""

import ctypes
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol, Self

from epd import _environment
from epd._program import Rank

MAX_TOP_K = 128


class Unique:
    """An object that stands for what this process holds: a copy is the object itself, and no other process gets one."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        del memo
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__}: it stands for ranks that this process holds and cannot be pickled; leave it out of what is"
            " pickled, and make it in the process that uses it"
        )


class Sizes(Protocol):
    """``EpConfig``."""

    @property
    def ep_size(self) -> int: ...
    @property
    def num_experts(self) -> int: ...
    @property
    def num_local_experts(self) -> int: ...
    @property
    def max_tokens_per_rank(self) -> int: ...
    @property
    def recv_capacity_per_rank(self) -> int: ...
    @property
    def hidden_dim(self) -> int: ...


class Described(Protocol):
    """What a framework knows of a group, as ``epd.jax.config.GroupSpec`` has it."""

    @property
    def alias(self) -> str: ...
    @property
    def config(self) -> Sizes: ...
    @property
    def expert_owner(self) -> tuple[int, ...] | None: ...
    @property
    def owners_digest(self) -> int: ...
    @property
    def max_top_k(self) -> int: ...
    @property
    def dtype_bound(self) -> int: ...
    @property
    def joined_by_rank(self) -> bool: ...


def owners_digest(table: Sequence[int] | None) -> int:
    """What programs hold of the table of owners; 0 without one."""
    if table is None:
        return 0
    words = b"".join(owner.to_bytes(4, "little") for owner in table)
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little") >> 1 | 1


@dataclass(frozen=True)
class HeldRank:
    """A rank: its domain, its position along ep, and its device's name for people; of another process's, who holds it."""

    domain: int
    position: int
    device: str


@dataclass(frozen=True)
class JoinArguments:
    """What joining needs beside the spec.

    ``job``: the name that the caller gave, or None. ``held``: this process's ranks. ``elsewhere``: other processes', as far
    as known, with who holds each in place of its device. ``program``, ``metadata``: what epctl shows of this process.
    ``joins_by_call``: none is held yet, each rank joins at its first call; CPUs alone. ``others``: the processes of
    ``elsewhere``, as the framework counts them.
    """

    held: tuple[HeldRank, ...]
    num_domains: int
    drop_on_overflow: bool
    job: str | None = None
    elsewhere: tuple[HeldRank, ...] = ()
    program: str = ""
    metadata: str = ""
    joins_by_call: bool = False
    others: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Joining:
    """What values are made of. ``on_gpus``: the ranks held here are on GPUs."""

    spec: Described
    arguments: JoinArguments
    instance: str
    on_gpus: bool


def _owners(j: _Joining) -> ctypes.Array[ctypes.c_uint32] | None:
    table = j.spec.expert_owner
    return None if table is None else (ctypes.c_uint32 * len(table))(*table)


def _backend(j: _Joining) -> bytes:
    chosen = _environment.gpu_backend()
    if j.arguments.joins_by_call:
        return b"cpu"
    return chosen.encode() if j.on_gpus else b""


def _executor(j: _Joining) -> int:
    return _environment.executor("client" if j.arguments.joins_by_call else None)


_U32, _I32, _I64, _TEXT = ctypes.c_uint32, ctypes.c_int32, ctypes.c_int64, ctypes.c_char_p
_SPEC = (
    ("name", _TEXT, lambda j: None),  # Each domain's, made by the library.
    ("instance", _TEXT, lambda j: j.instance.encode()),
    ("tenant", _TEXT, lambda j: None),  # EPD_TENANT, which the C library reads.
    ("num_ranks", _U32, lambda j: j.spec.config.ep_size),
    ("num_experts", _U32, lambda j: j.spec.config.num_experts),
    ("expert_owner", ctypes.POINTER(_U32), _owners),
    ("max_tokens_per_rank", _U32, lambda j: j.spec.config.max_tokens_per_rank),
    ("recv_capacity_per_rank", _U32, lambda j: j.spec.config.recv_capacity_per_rank),
    ("hidden", _U32, lambda j: j.spec.config.hidden_dim),
    ("top_k", _U32, lambda j: j.spec.max_top_k % MAX_TOP_K),  # 0: the most that there is.
    ("max_token_dtype", _I32, lambda j: j.spec.dtype_bound),
    ("drop_on_overflow", _I32, lambda j: j.arguments.drop_on_overflow),
    ("executor", _I32, _executor),
    ("backend", _TEXT, _backend),
    ("warn_after_ms", _I64, lambda j: _environment.milliseconds("EPD_WARN_AFTER")),
    ("absent_ms", _I64, lambda j: _environment.milliseconds("EPD_ABSENT_TIMEOUT")),
    ("undecided_ms", _I64, lambda j: _environment.milliseconds("EPD_UNDECIDED_TIMEOUT")),
    ("form_ms", _I64, lambda j: _environment.milliseconds("EPD_FORM_TIMEOUT")),
)


class Spec(ctypes.Structure):
    """epd_group_spec."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        *((name, ctype) for name, ctype, _ in _SPEC),
    )


class Group(ctypes.Structure):
    """epd_program_group."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("alias", _TEXT),
        ("job", _TEXT),
        ("socket_path", _TEXT),
        ("daemon_path", _TEXT),
        ("spec", ctypes.POINTER(Spec)),
        ("local_experts", _U32),
        ("owners", _I64),
        ("by_rank", _I32),
        ("held", ctypes.POINTER(Rank)),
        ("num_held", ctypes.c_size_t),
        ("elsewhere", ctypes.POINTER(Rank)),
        ("num_elsewhere", ctypes.c_size_t),
        ("devices", _TEXT),
        ("program", _TEXT),
        ("metadata", _TEXT),
        ("reconnect_timeout_ms", _I64),
        ("joins_by_call", _I32),
    )


def _ranks(ranks: Sequence[HeldRank]) -> ctypes.Array[Rank]:
    size = ctypes.sizeof(Rank)
    return (Rank * len(ranks))(
        *[Rank(size, rank.domain, rank.position, rank.device.encode()) for rank in ranks]
    )


def group_struct(
    spec: Described,
    arguments: JoinArguments,
    *,
    job: str,
    instance: str,
    on_gpus: bool,
    devices: str,
) -> Group:
    """The group without the daemon's socket; ValueError for a variable of the environment that makes no sense.

    Args:
        devices: this process's, for people.
    """
    joining = _Joining(spec, arguments, instance, on_gpus)
    group_spec = Spec(ctypes.sizeof(Spec), *[value(joining) for _, _, value in _SPEC])
    return Group(
        struct_size=ctypes.sizeof(Group),
        alias=spec.alias.encode(),
        job=job.encode(),
        daemon_path=_environment.daemon_path().encode(),
        spec=ctypes.pointer(group_spec),
        local_experts=spec.config.num_local_experts,
        owners=spec.owners_digest,
        by_rank=spec.joined_by_rank,
        held=_ranks(arguments.held),
        num_held=len(arguments.held),
        elsewhere=_ranks(arguments.elsewhere),
        num_elsewhere=len(arguments.elsewhere),
        devices=devices.encode(),
        program=arguments.program.encode(),
        metadata=arguments.metadata.encode(),
        reconnect_timeout_ms=_environment.reconnect_milliseconds(),
        joins_by_call=arguments.joins_by_call,
    )
