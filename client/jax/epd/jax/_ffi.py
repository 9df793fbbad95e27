"""libepd_jax.so: XLA's custom calls and the few functions that bootstrap needs. Importing only registers."""

import ctypes
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax

from epd.jax import _environment
from epd.jax.errors import EpError

# The version is part of the name: XLA's persistent cache does not look into the library.
PREPARE = "epd1.prepare"
DISPATCH = "epd1.dispatch"
COMBINE = "epd1.combine"
DISPATCH_BWD = "epd1.dispatch_bwd"
COMBINE_BWD = "epd1.combine_bwd"
FFI_TARGET_NAMES = (PREPARE, DISPATCH, COMBINE, DISPATCH_BWD, COMBINE_BWD)


_CODES = (
    "OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED RESOURCE_EXHAUSTED"
    " FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS UNAUTHENTICATED"
).split()


class _Error(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("code", ctypes.c_int32),
        ("message", ctypes.c_char * 4096),
    ]


class _Rank(ctypes.Structure):
    _fields_ = [
        ("domain", ctypes.c_uint32),
        ("position", ctypes.c_uint32),
        ("device", ctypes.c_char_p),
    ]


class _Group(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("alias", ctypes.c_char_p),
        ("job", ctypes.c_char_p),
        ("instance", ctypes.c_char_p),
        ("socket_path", ctypes.c_char_p),
        ("daemon_path", ctypes.c_char_p),
        ("num_domains", ctypes.c_uint32),
        ("ranks", ctypes.c_uint32),
        ("experts", ctypes.c_uint32),
        ("local_experts", ctypes.c_uint32),
        ("expert_owner", ctypes.POINTER(ctypes.c_uint32)),
        ("owners", ctypes.c_int64),
        ("max_tokens", ctypes.c_uint32),
        ("recv_capacity", ctypes.c_uint32),
        ("hidden", ctypes.c_uint32),
        ("top_k", ctypes.c_uint32),
        ("max_dtype", ctypes.c_int32),
        ("drop_on_overflow", ctypes.c_int32),
        ("executor", ctypes.c_int32),
        ("by_rank", ctypes.c_int32),
        ("warn_after_ms", ctypes.c_int64),
        ("absent_ms", ctypes.c_int64),
        ("undecided_ms", ctypes.c_int64),
        ("form_ms", ctypes.c_int64),
        ("held", ctypes.POINTER(_Rank)),
        ("num_held", ctypes.c_size_t),
        ("elsewhere", ctypes.POINTER(_Rank)),
        ("num_elsewhere", ctypes.c_size_t),
        ("devices", ctypes.c_char_p),
        ("program", ctypes.c_char_p),
        ("metadata", ctypes.c_char_p),
        ("backend", ctypes.c_char_p),
    ]


class _Meeting(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("alias", ctypes.c_char_p),
        ("domain", ctypes.c_uint32),
        ("position", ctypes.c_uint32),
        ("key", ctypes.c_char_p),
        ("ranks", ctypes.c_uint32),
        ("experts", ctypes.c_uint32),
        ("local_experts", ctypes.c_uint32),
        ("max_tokens", ctypes.c_uint32),
    ]


@dataclass(frozen=True)
class HeldRank:
    """A rank of this process: its domain, its position along ep, and its device's name for people."""

    domain: int
    position: int
    device: str


@dataclass(frozen=True)
class Group:
    """What the library needs to join the groups of an alias. See epd_jax.h."""

    alias: str
    job: str
    instance: str
    socket_path: str
    num_domains: int
    ranks: int
    experts: int
    local_experts: int
    expert_owner: Sequence[int] | None
    owners: int
    max_tokens: int
    recv_capacity: int
    hidden: int
    top_k: int
    max_dtype: int
    drop_on_overflow: bool
    executor: int
    by_rank: bool
    deadlines: _environment.Deadlines
    held: Sequence[HeldRank]
    elsewhere: Sequence[HeldRank]
    devices: str
    program: str
    metadata: str
    backend: str = ""


def _runtime_ffi_api() -> tuple[int, int] | None:
    """The FFI API of the jaxlib in use; None if its headers do not say."""
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    try:
        text = header.read_text()
    except OSError:
        return None
    found = [re.search(rf"#define XLA_FFI_API_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR")]
    return tuple(int(match.group(1)) for match in found) if all(found) else None


def _check_runtime(library: ctypes.CDLL) -> None:
    """ImportError for a jaxlib too old: registering there would disable JAX's whole CPU backend."""
    runtime = _runtime_ffi_api()
    built = (library.epd_jax_ffi_api_major(), library.epd_jax_ffi_api_minor())
    if runtime is not None and runtime < built:
        raise ImportError(
            f"epd.jax was built for XLA's FFI API {built[0]}.{built[1]}, but jaxlib {jax.lib.__version__} has"
            f" {runtime[0]}.{runtime[1]}; use a newer jaxlib, or build epd with this one (deploy/setup)"
        )


def _load() -> ctypes.CDLL:
    path = _environment.library_path()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(
            f"cannot load {path}: {error}; run deploy/setup, which builds and installs it"
        ) from error
    library.epd_jax_connect.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(_Error)]
    library.epd_jax_socket_path.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    library.epd_jax_socket_path.restype = ctypes.c_size_t
    library.epd_jax_bootstrap.argtypes = [ctypes.POINTER(_Group), ctypes.POINTER(_Error)]
    library.epd_jax_meet.argtypes = [ctypes.POINTER(_Meeting), ctypes.POINTER(_Error)]
    library.epd_jax_refuse.argtypes = [
        ctypes.POINTER(_Meeting),
        ctypes.c_int32,
        ctypes.c_char_p,
        ctypes.POINTER(_Error),
    ]
    library.epd_jax_finalize.argtypes = [ctypes.c_char_p]
    library.epd_jax_finalize.restype = None
    library.epd_jax_handle_mem_size.argtypes = [ctypes.c_uint32] * 4
    library.epd_jax_handle_mem_size.restype = ctypes.c_size_t
    library.epd_jax_end_compile.restype = None
    library.epd_jax_cuda_problem.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    library.epd_jax_cuda_problem.restype = ctypes.c_size_t
    library.epd_jax_cuda_check.argtypes = [ctypes.c_char_p, ctypes.POINTER(_Error)]
    library.epd_jax_cuda_finalize.argtypes = [ctypes.c_char_p]
    library.epd_jax_cuda_finalize.restype = None
    return library


def _register_cuda(library: ctypes.CDLL) -> None:
    initialize = jax.ffi.pycapsule(library.epd_jax_cuda_initialize)
    for target in FFI_TARGET_NAMES:
        operation = target.split(".")[1]
        handlers = {
            "instantiate": jax.ffi.pycapsule(getattr(library, f"epd_jax_{operation}_instantiate")),
            "initialize": initialize,
            "execute": jax.ffi.pycapsule(getattr(library, f"epd_jax_cuda_{operation}")),
        }
        jax.ffi.register_ffi_target(target, handlers, platform="CUDA", api_version=1)


def _register(library: ctypes.CDLL) -> None:
    for target in FFI_TARGET_NAMES:
        symbol = "epd_jax_" + target.split(".")[1]
        handlers = {
            "instantiate": jax.ffi.pycapsule(getattr(library, symbol + "_instantiate")),
            "execute": jax.ffi.pycapsule(getattr(library, symbol)),
        }
        jax.ffi.register_ffi_target(target, handlers, platform="cpu", api_version=1)


def _follow_compilations(library: ctypes.CDLL) -> None:
    """Tells the library where one compilation ends and the next begins: ordinals of calls count from there."""
    if tuple(int(part) for part in jax.__version__.split(".")[:2]) < (0, 11):
        library.epd_jax_follow_compiles_process_wide()

    def on_duration(event: str, duration: float, **kwargs: object) -> None:
        del duration, kwargs
        if event.startswith("/jax/core/compile/"):
            library.epd_jax_end_compile()

    jax.monitoring.register_event_duration_secs_listener(on_duration)


_library = _load()
_check_runtime(_library)
_register(_library)
_follow_compilations(_library)


def _raise(code: int, error: _Error) -> None:
    name = _CODES[code] if 0 <= code < len(_CODES) else "UNKNOWN"
    text = error.message.decode(errors="replace")
    raise EpError(name, text if text.startswith("[epd:") else f"[epd:{name}] {text}")


def _checked(function, *arguments) -> None:
    error = _Error(struct_size=ctypes.sizeof(_Error))
    code = function(*arguments, ctypes.byref(error))
    if code != 0:
        _raise(code, error)


def connect(socket_path: str) -> str:
    """Opens the process's session with the daemon and returns the path of its socket. EpError if there is none."""
    _checked(_library.epd_jax_connect, socket_path.encode(), _environment.daemon_path().encode())
    buffer = ctypes.create_string_buffer(4096)
    _library.epd_jax_socket_path(buffer, len(buffer))
    return buffer.value.decode()


def bootstrap(group: Group) -> None:
    """Joins the groups of all domains held here; collective; EpError with the cause."""
    held, elsewhere = (
        (_Rank * len(ranks))(*[_Rank(r.domain, r.position, r.device.encode()) for r in ranks])
        for ranks in (group.held, group.elsewhere)
    )
    deadlines = group.deadlines
    owner = group.expert_owner
    _checked(
        _library.epd_jax_bootstrap,
        ctypes.byref(
            _Group(
                struct_size=ctypes.sizeof(_Group),
                alias=group.alias.encode(),
                job=group.job.encode(),
                instance=group.instance.encode(),
                socket_path=group.socket_path.encode(),
                daemon_path=_environment.daemon_path().encode(),
                num_domains=group.num_domains,
                ranks=group.ranks,
                experts=group.experts,
                local_experts=group.local_experts,
                expert_owner=None if owner is None else (ctypes.c_uint32 * len(owner))(*owner),
                owners=group.owners,
                max_tokens=group.max_tokens,
                recv_capacity=group.recv_capacity,
                hidden=group.hidden,
                top_k=group.top_k,
                max_dtype=group.max_dtype,
                drop_on_overflow=group.drop_on_overflow,
                executor=group.executor,
                by_rank=group.by_rank,
                warn_after_ms=deadlines.warn_after_ms,
                absent_ms=deadlines.absent_ms,
                undecided_ms=deadlines.undecided_ms,
                form_ms=deadlines.form_ms,
                held=held,
                num_held=len(group.held),
                elsewhere=elsewhere,
                num_elsewhere=len(group.elsewhere),
                devices=group.devices.encode(),
                program=group.program.encode(),
                metadata=group.metadata.encode(),
                backend=group.backend.encode(),
            )
        ),
    )


@dataclass(frozen=True)
class Meeting:
    """A key under which the ranks of a domain meet, and the rank that speaks. See meeting.h."""

    alias: str
    domain: int
    position: int
    key: str
    ranks: int
    experts: int
    local_experts: int
    max_tokens: int

    def _given(self) -> _Meeting:
        return _Meeting(
            struct_size=ctypes.sizeof(_Meeting),
            alias=self.alias.encode(),
            domain=self.domain,
            position=self.position,
            key=self.key.encode(),
            ranks=self.ranks,
            experts=self.experts,
            local_experts=self.local_experts,
            max_tokens=self.max_tokens,
        )

    def come(self) -> None:
        """Waits until all ranks have come. EpError: the cause, the same on every rank."""
        _checked(_library.epd_jax_meet, ctypes.byref(self._given()))

    def refuse(self, code: str, text: str) -> None:
        """Makes the key's next use fail with ``text`` on every rank, and raises that EpError."""
        given = self._given()
        _checked(_library.epd_jax_refuse, ctypes.byref(given), _CODES.index(code), text.encode())


@functools.cache
def enable_cuda() -> None:
    """Registers the handlers for GPUs. EpError FAILED_PRECONDITION with the reason where the driver is not there."""
    buffer = ctypes.create_string_buffer(4096)
    if _library.epd_jax_cuda_problem(buffer, len(buffer)) != 0:
        reason = buffer.value.decode(errors="replace")
        raise EpError(
            "FAILED_PRECONDITION",
            f"[epd:FAILED_PRECONDITION] phase=begin: this process cannot use GPUs: {reason}; epctl doctor says what to do",
        )
    _register_cuda(_library)


def cuda_enabled() -> bool:
    """Whether enable_cuda() has succeeded."""
    return enable_cuda.cache_info().currsize != 0


def cuda_check(alias: str) -> None:
    """EpError with the first failure on a GPU since the last call; "": in any group."""
    if cuda_enabled():
        _checked(_library.epd_jax_cuda_check, alias.encode())


def cuda_finalize(alias: str) -> None:
    """Gives up what GPUs hold of the alias's groups."""
    if cuda_enabled():
        _library.epd_jax_cuda_finalize(alias.encode())


def finalize(alias: str) -> None:
    """Leaves the alias's groups, if there are any, and the session with the daemon if no other group is left."""
    _library.epd_jax_finalize(alias.encode())


@functools.cache
def handle_mem_size(ranks: int, experts: int, max_tokens: int, top_k: int) -> int:
    """Bytes of one rank's routing plan. Needs no daemon."""
    return _library.epd_jax_handle_mem_size(ranks, experts, max_tokens, top_k)
