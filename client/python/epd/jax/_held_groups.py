"""The Groups of this process by name, and how long it stays in them: until finalize(), the process's end, or until nothing
names the group any more.

What names a group: a Group or a trace, which hold its GroupSpec; a lowered module, which is made to hold it (``keep_with``);
a compiled program, which the library counts. An exported program that was written out is none of these. So the end of the
last GroupSpec of a name is when to look whether a program is left. If one is, the group stays, since nobody is told of
that program's end.
"""

import dataclasses
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from epd._group_struct import JoinArguments
from epd.jax import _ffi, _job, _join
from epd.jax.config import GroupSpec
from epd.jax.errors import EpError


class Owner(Protocol):
    """A Group: what leaves the group when it is told to."""

    @property
    def spec(self) -> GroupSpec: ...

    @property
    def joining(self) -> JoinArguments: ...


@dataclasses.dataclass
class _Held:
    """``spec``: a copy, which names nothing. ``nonce``: of jax.distributed as it was initialised when this process joined."""

    spec: GroupSpec
    arguments: JoinArguments
    owner: weakref.ref[Owner]
    nonce: str

    @property
    def is_old(self) -> bool:
        """jax.distributed was finalized or initialised anew since: the others may be other processes, with other devices."""
        return bool(self.nonce) and not _job.is_of_this_initialisation(self.nonce)


_SIZES = (
    "ep_size",
    "num_ep_groups",
    "num_experts",
    "max_tokens_per_rank",
    "recv_capacity_per_rank",
    "hidden_dim",
)

# Held by the end of a GroupSpec, too, which may come at any line of this thread.
_lock = threading.RLock()
_held: dict[str, _Held] = {}
_num_specs: Counter[str] = Counter()
_kept_for_good: list[GroupSpec] = []


def _at_end_of(living: object, act: Callable[..., object], argument: object) -> None:
    """Calls ``act(argument)``, which live until then, when ``living`` is gone; not when the process ends."""
    weakref.finalize(living, act, argument).atexit = False  # type: ignore[misc]


def watch(spec: GroupSpec) -> GroupSpec:
    """``spec``, whose end is noticed."""
    with _lock:
        _num_specs[spec.alias] += 1
    _at_end_of(spec, _ended, spec.alias)
    return spec


def keep_with(holder: object, spec: GroupSpec) -> None:
    """Lets the spec live as long as ``holder``; for good where that cannot be seen."""
    try:
        _at_end_of(holder, id, spec)
    except TypeError:
        _kept_for_good.append(spec)


def _ended(alias: str) -> None:
    with _lock:
        _num_specs[alias] -= 1
        if _num_specs[alias] > 0 or alias not in _held or _ffi.is_named(alias):
            return
        del _held[alias]
        _join.leave_unused(alias)


def _difference(known: _Held, group: Owner) -> str:
    """In which of its arguments the group is another one than the known; "" if it is the same."""
    pairs = [
        (name, getattr(known.spec.config, name), getattr(group.spec.config, name))
        for name in _SIZES
    ]
    pairs += [
        (name, getattr(known.spec, name), getattr(group.spec, name))
        for name in ("max_token_dtype", "max_top_k", "expert_owner")
    ]
    pairs += [
        (name, getattr(known.arguments, name), getattr(group.joining, name))
        for name in ("drop_on_overflow", "job")
    ]
    wrong = [f"{name} is {have}, not {want}" for name, have, want in pairs if have != want]
    if not wrong and (known.spec.ranks_here, known.arguments) != (
        group.spec.ranks_here,
        group.joining,
    ):
        wrong = ["this process's ranks or their devices are others"]
    return ", ".join(wrong)


def hold(group: Owner) -> None:
    """Joins, or takes over what this process holds under the name. ``group`` is the one to leave from now on.

    EpError FAILED_PRECONDITION if the process is in another group of the name.
    """
    alias = group.spec.alias
    with _lock:
        known = _held.get(alias)
    if known is not None and known.arguments.held and _ffi.state(alias)[0] == "left":
        known = None  # In a forked child, which has none of its parent's groups.
    if known is not None and known.is_old:
        _join.leave_unused(alias)
        known = None
    if known is None:
        _join.join(group.spec, group.joining)
    elif difference := _difference(known, group):
        raise EpError(
            "FAILED_PRECONDITION",
            f"[epd:FAILED_PRECONDITION] group={alias} phase=join: call Group.get({alias!r}).finalize() first, or choose"
            f" another name: this process is in a group {alias!r} whose {difference}",
        )
    elif known.arguments.held:
        _ffi.join_again(alias)
    with _lock:
        copy = dataclasses.replace(group.spec)
        _held[alias] = _Held(copy, group.joining, weakref.ref(group), _job.nonce())


def is_old(alias: str) -> bool:
    """Whether this process joined the group before jax.distributed was finalized or initialised anew."""
    with _lock:
        known = _held.get(alias)
    return known is not None and known.is_old


def check_current(alias: str) -> None:
    """For programs that are traced.

    Raises:
        EpError: FAILED_PRECONDITION, the group was joined before jax.distributed was initialised anew.
        ValueError: it was joined by rank, and the active mesh has its GPUs in another order.
    """
    if is_old(alias) and _job.has_store():
        call = "ep_bootstrap" if alias == "default" else f"Group.get({alias!r}).connect()"
        raise EpError(
            "FAILED_PRECONDITION",
            f"[epd:FAILED_PRECONDITION] group={alias} phase=begin: connect again ({call}): this process has no group of"
            " jax.distributed as it is initialised now; it joined before that, with processes that may be others by now",
        )
    with _lock:
        known = _held.get(alias)
    if known is not None and (known.spec.ranks_here or 0) > 1:
        _join.check_order(known.spec.origin, known.arguments)


def find(alias: str) -> tuple[Owner | None, GroupSpec, JoinArguments] | None:
    """The Group that holds the name, or None in its place where it is gone, with a spec to make one of; None: no group."""
    with _lock:
        known = _held.get(alias)
        return None if known is None else (known.owner(), known.spec, known.arguments)


def names() -> list[str]:
    with _lock:
        return sorted(_held)


def leave(group: Owner) -> None:
    """Leaves, if ``group`` is the one to do it."""
    with _lock:
        known = _held.get(group.spec.alias)
        if known is None or known.owner() is not group:
            return
        del _held[group.spec.alias]
    _join.leave(group.spec)


def adopt(alias: str, group: Owner) -> None:
    """``group`` is the one to leave from now on."""
    with _lock:
        if alias in _held:
            _held[alias].owner = weakref.ref(group)
