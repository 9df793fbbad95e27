"""libepd_jax.so: XLA's custom calls and the few functions that bootstrap needs. Importing only registers."""

import ctypes
import functools
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jaxlib import version as jaxlib

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
_STATES = ("left", "ready", "lost", "joining")  # EPD_PROGRAM_*.


class _Error(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("code", ctypes.c_int32),
        ("message", ctypes.c_char * 4096),
    ]


class Rank(ctypes.Structure):
    """epd_program_rank."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("domain", ctypes.c_uint32),
        ("position", ctypes.c_uint32),
        ("device", ctypes.c_char_p),
    ]


class _Call(ctypes.Structure):
    """epd_program_call."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("alias", ctypes.c_char_p),
        ("domain", ctypes.c_int32),
        ("position", ctypes.c_int32),
        ("name", ctypes.c_char_p),
        ("program", ctypes.c_uint8 * 16),
        ("execution", ctypes.c_uint64),
        ("executable", ctypes.c_uint64),
        ("site", ctypes.c_uint32),
        ("occurrence", ctypes.c_uint32),
        ("traced", ctypes.c_void_p),
    ]


def _runtime_ffi_api() -> tuple[int, int] | None:
    """The FFI API of the jaxlib in use; None if its headers do not say."""
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    try:
        text = header.read_text()
    except OSError:
        return None
    major, minor = (
        re.search(rf"#define XLA_FFI_API_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR")
    )
    return (int(major[1]), int(minor[1])) if major and minor else None


def _check_runtime(library: ctypes.CDLL) -> None:
    """ImportError for a jaxlib too old: registering there would disable JAX's whole CPU backend."""
    runtime = _runtime_ffi_api()
    built = (library.epd_jax_ffi_api_major(), library.epd_jax_ffi_api_minor())
    if runtime is not None and runtime < built:
        raise ImportError(
            f"epd.jax was built for XLA's FFI API {built[0]}.{built[1]}, but jaxlib {jaxlib.__version__} has"
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
    problem, text, size = ctypes.POINTER(_Error), ctypes.c_char_p, ctypes.c_size_t
    call, code, number = ctypes.POINTER(_Call), ctypes.c_int, ctypes.c_uint32
    signatures: dict[str, tuple[Any, ...]] = {  # The result's type, then the arguments'.
        "jax_watch_interrupts": (None,),
        "program_connect": (code, text, text, problem),
        "program_socket_path": (size, text, size),
        "program_join": (code, ctypes.c_void_p, problem),
        "program_handshake": (code, call, problem),
        "program_refuse": (code, call, ctypes.c_int32, text, problem),
        "program_wait": (code, text, problem),
        "program_state": (code, text, ctypes.POINTER(ctypes.c_uint64)),
        "program_finalize": (None, text),
        "program_handle_mem_size": (size, number, number, number, number),
        "jax_end_compile": (None,),
        "jax_is_named": (code, text),
        "jax_words": (size, code, text, text, size),
        "jax_retry": (text, code, text),
        "jax_cuda_problem": (size, text, size),
        "jax_cuda_check": (code, text, problem),
        "jax_cuda_finalize": (None, text),
    }
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, f"epd_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def _register(library: ctypes.CDLL, platform: str, prefix: str, **shared: object) -> None:
    """The handlers ``<prefix><operation>`` of a platform; ``shared``: those of other stages, for all operations."""
    for target in FFI_TARGET_NAMES:
        operation = target.split(".")[1]
        instantiate = getattr(library, f"epd_jax_{operation}_instantiate")
        handlers = {
            "instantiate": jax.ffi.pycapsule(instantiate),
            "execute": jax.ffi.pycapsule(getattr(library, prefix + operation)),
            **{stage: jax.ffi.pycapsule(handler) for stage, handler in shared.items()},
        }
        jax.ffi.register_ffi_target(target, handlers, platform=platform, api_version=1)


def _follow_compilations(library: ctypes.CDLL) -> None:
    """Tells the library where one compilation ends and the next begins: ordinals of calls count from there."""
    if tuple(int(part) for part in jax.__version__.split(".")[:2]) < (0, 11):
        library.epd_jax_follow_compiles_process_wide()

    def on_duration(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del duration_secs, kwargs
        if event.startswith("/jax/core/compile/"):
            library.epd_jax_end_compile()

    jax.monitoring.register_event_duration_secs_listener(on_duration)


_library = _load()
_check_runtime(_library)
_register(_library, "cpu", "epd_jax_")
_follow_compilations(_library)
# Without it the main thread hears of Ctrl-C when the other ranks come. A program with a handler of its own decides itself.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    _library.epd_jax_watch_interrupts()


def _raise(code: int, error: _Error) -> None:
    name = _CODES[code] if 0 <= code < len(_CODES) else "UNKNOWN"
    text = error.message.decode(errors="replace")
    if not text.startswith("[epd:"):
        text = f"[epd:{name}] {text}"
    words = ctypes.create_string_buffer(8192)
    _library.epd_jax_words(code, text.encode(), words, len(words))
    raise EpError(name, words.value.decode(errors="replace"))


def retry(code: str, text: str) -> str:
    """What to do about an error of the code: "call again", "connect again" or "no"."""
    number = _CODES.index(code) if code in _CODES else 0
    return _library.epd_jax_retry(number, text.encode()).decode()


def _checked(function: Callable[..., int], *arguments: Any) -> None:
    error = _Error(struct_size=ctypes.sizeof(_Error))
    code = function(*arguments, ctypes.byref(error))
    if code != 0:
        _raise(code, error)


def connect(socket_path: str) -> str:
    """Opens the process's session with the daemon and returns the path of its socket. EpError if there is none."""
    _checked(
        _library.epd_program_connect, socket_path.encode(), _environment.daemon_path().encode()
    )
    buffer = ctypes.create_string_buffer(4096)
    _library.epd_program_socket_path(buffer, len(buffer))
    return buffer.value.decode()


def join(group: ctypes.Structure) -> None:
    """Joins the groups of all domains held here, see _group_struct; collective; EpError with the cause."""
    _checked(_library.epd_program_join, ctypes.byref(group))


@dataclass(frozen=True)
class Handshake:
    """What one rank can say under a key that all ranks of its domain know, outside of XLA's programs."""

    alias: str
    domain: int
    position: int
    key: str

    def _call(self) -> _Call:
        return _Call(
            struct_size=ctypes.sizeof(_Call),
            alias=self.alias.encode(),
            domain=self.domain,
            position=self.position,
            name=self.key.encode(),
        )

    def wait(self) -> None:
        """Waits until all ranks wait. EpError: the cause, the same on every rank."""
        _checked(_library.epd_program_handshake, ctypes.byref(self._call()))

    def refuse(self, code: str, text: str) -> None:
        """Makes the key's next use fail with ``text`` on every rank, and raises that EpError."""
        call = self._call()
        _checked(_library.epd_program_refuse, ctypes.byref(call), _CODES.index(code), text.encode())


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
    _register(_library, "CUDA", "epd_jax_cuda_", initialize=_library.epd_jax_cuda_initialize)


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


def wait(alias: str) -> None:
    """Waits until the ranks held here are in their groups, joining again after a loss. EpError: a loss, once; or the cause."""
    _checked(_library.epd_program_wait, alias.encode())


def state(alias: str) -> tuple[str, int]:
    """Where this process's ranks are, and the epoch of the last join, 0 before."""
    epoch = ctypes.c_uint64()
    code = _library.epd_program_state(alias.encode(), ctypes.byref(epoch))
    return _STATES[code], epoch.value


def is_named(alias: str) -> bool:
    """Whether a compiled program that lives names the alias."""
    return _library.epd_jax_is_named(alias.encode()) != 0


def finalize(alias: str) -> None:
    """Leaves the alias's groups, if there are any, and the session with the daemon if no other group is left."""
    _library.epd_program_finalize(alias.encode())


@functools.cache
def handle_mem_size(ranks: int, experts: int, max_tokens: int, top_k: int) -> int:
    """Bytes of one rank's routing plan. Needs no daemon."""
    return _library.epd_program_handle_mem_size(ranks, experts, max_tokens, top_k)
