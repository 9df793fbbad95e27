"""libepd_jax.so: XLA's custom calls and the few functions that bootstrap needs. Importing only registers."""

import contextlib
import ctypes
import functools
import re
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax._src import xla_bridge
from jaxlib import version as jaxlib

from epd import _environment
from epd._errors import EpError
from epd._program import Call, Library

# The version is part of the name: XLA's persistent cache does not look into the library.
PREPARE = "epd1.prepare"
DISPATCH = "epd1.dispatch"
COMBINE = "epd1.combine"
DISPATCH_BWD = "epd1.dispatch_bwd"
COMBINE_BWD = "epd1.combine_bwd"
OPERATIONS = (PREPARE, DISPATCH, COMBINE, DISPATCH_BWD, COMBINE_BWD)
# On CPUs alone.
RAGGED = "epd1.ragged"
DISPATCH_PAYLOAD = "epd1.dispatch_payload"  # On others a DISPATCH for each array.
DONE = "epd1.done"


def start_of(target: str) -> str:
    """The first half of an operation on rows; ``DONE`` is the second one of all."""
    return f"{target}_start"


def name_of_leaf(name: str, number: int) -> str:
    """Of the call of a payload's array that has one of its own, where the operation has the name."""
    return f"{name}.{number}" if name and number else name


STARTS = tuple(start_of(target) for target in (DISPATCH, COMBINE, DISPATCH_BWD, COMBINE_BWD))
HALVES = (*STARTS, DONE)
# All that a program can hold, for jax.export's disabled_checks.
FFI_TARGET_NAMES = (*OPERATIONS, RAGGED, DISPATCH_PAYLOAD, *HALVES)
PLATFORMS_OF_HALVES = PLATFORMS_OF_PAYLOADS = {"cpu"}


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


def _load() -> Library:
    library = Library(_environment.library_path("EPD_JAX_LIBRARY", "jax/libepd_jax.so"))
    text, code, size = ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t
    library.declare(
        jax_end_compile=(None,),
        jax_is_named=(code, text),
        jax_cuda_problem=(size, text, size),
        jax_cuda_check=(code, text, ctypes.c_void_p),
        jax_cuda_finalize=(None, text),
        jax_cuda_calls=(ctypes.c_uint64,),
    )
    return library


def _register(
    library: ctypes.CDLL, platform: str, prefix: str, *more: str, **shared: object
) -> None:
    """The handlers ``<prefix><operation>`` of a platform; ``more`` targets; ``shared``: handlers of other stages, for all."""
    for target in (*OPERATIONS, *more):
        operation = target.split(".")[1]
        instantiate = getattr(
            library, f"epd_jax_{re.sub('_(start|payload)$', '', operation)}_instantiate"
        )
        handlers = {
            "instantiate": jax.ffi.pycapsule(instantiate),
            "execute": jax.ffi.pycapsule(getattr(library, prefix + operation)),
            **{stage: jax.ffi.pycapsule(handler) for stage, handler in shared.items()},
        }
        jax.ffi.register_ffi_target(target, handlers, platform=platform, api_version=1)


_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"


def _enable_cuda_for_exported() -> None:
    """A program that was exported elsewhere brings calls that were lowered there. Why GPUs cannot be used is told by joining."""
    with contextlib.suppress(EpError, ValueError):
        enable_cuda_for(("cuda",))


def _follow_compilations(library: ctypes.CDLL) -> None:
    """Tells the library where one compilation ends and the next begins: ordinals of calls count from there."""
    if tuple(int(part) for part in jax.__version__.split(".")[:2]) < (0, 11):
        library.epd_jax_follow_compiles_process_wide()

    def on_duration(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del duration_secs, kwargs
        if event.startswith("/jax/core/compile/"):
            library.epd_jax_end_compile()
        if event == _LOWERED:
            _enable_cuda_for_exported()

    jax.monitoring.register_event_duration_secs_listener(on_duration)


_program = _load()
_library = _program.c
_check_runtime(_library)
_register(_library, "cpu", "epd_jax_", RAGGED, DISPATCH_PAYLOAD, *STARTS)
jax.ffi.register_ffi_target(
    DONE, jax.ffi.pycapsule(_library.epd_jax_done), platform="cpu", api_version=1
)
_follow_compilations(_library)

connect, join, finalize = _program.connect, _program.join, _program.finalize
join_again, wait_ready, state = _program.join_again, _program.wait_ready, _program.state
handle_mem_size = functools.cache(_program.handle_mem_size)


@dataclass(frozen=True)
class Handshake:
    """What one rank can say under a key that all ranks of its domain know, outside of XLA's programs."""

    alias: str
    domain: int
    position: int
    key: str

    def _call(self) -> Call:
        return Call(
            struct_size=ctypes.sizeof(Call),
            alias=self.alias.encode(),
            domain=self.domain,
            position=self.position,
            name=self.key.encode(),
        )

    def wait(self) -> None:
        """Waits until all ranks wait. EpError: the cause, the same on every rank."""
        _program.checked(_library.epd_program_handshake, ctypes.byref(self._call()))

    def refuse(self, code: str, text: str) -> None:
        """Makes the key's next use fail with ``text`` on every rank, and raises that EpError."""
        _program.refuse(self._call(), code, text)


def describe_with(prefix: str, describe: Any) -> None:
    """``describe``, a DESCRIBE that is kept, says what aliases with the prefix mean when a call needs one."""
    _library.epd_program_describe_with(prefix.encode(), describe)


_cuda_lock = threading.Lock()
_cuda_is_enabled = False


def enable_cuda() -> None:
    """Registers the handlers for GPUs, once. EpError FAILED_PRECONDITION with the reason where the driver is not there."""
    with _cuda_lock:
        if not _cuda_is_enabled:
            _enable_cuda()


def _enable_cuda() -> None:
    global _cuda_is_enabled
    prefix = "epd_jax_cuda_" if _environment.command_buffers() else "epd_jax_cuda_called_"
    buffer = ctypes.create_string_buffer(4096)
    if _library.epd_jax_cuda_problem(buffer, len(buffer)) != 0:
        reason = buffer.value.decode(errors="replace")
        raise EpError(
            "FAILED_PRECONDITION",
            f"[epd:FAILED_PRECONDITION] phase=begin: this process cannot use GPUs: {reason}; epctl doctor says what to do",
        )
    _register(_library, "CUDA", prefix, initialize=_library.epd_jax_cuda_initialize)
    _cuda_is_enabled = True


def jax_has_cuda() -> bool | None:
    """Whether JAX runs on GPUs here; None: it has not looked yet, and asking would keep jax.distributed from starting."""
    if not xla_bridge.backends_are_initialized():
        return None
    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


def enable_cuda_for(platforms: Collection[str]) -> None:
    """``enable_cuda`` where a program is for GPUs and this process has some: it may also be lowered for other machines."""
    if "cuda" in platforms and not _cuda_is_enabled and jax_has_cuda():
        enable_cuda()


def cuda_enabled() -> bool:
    """Whether enable_cuda() has succeeded."""
    return _cuda_is_enabled


def cuda_check(alias: str) -> None:
    """EpError with the first failure on a GPU since the last call; "": in any group."""
    if cuda_enabled():
        _program.checked(_library.epd_jax_cuda_check, alias.encode())


def cuda_calls() -> int:
    """How often XLA has called an operation's handler for GPUs; it replays command buffers without."""
    return _library.epd_jax_cuda_calls()


def cuda_finalize(alias: str) -> None:
    """Gives up what GPUs hold of the alias's groups."""
    if cuda_enabled():
        _library.epd_jax_cuda_finalize(alias.encode())


def is_named(alias: str) -> bool:
    """Whether a compiled program that lives names the alias."""
    return _library.epd_jax_is_named(alias.encode()) != 0
