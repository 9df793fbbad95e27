"""client/program by ctypes: epd_program.h, which is the same in the libraries of all frameworks."""

import atexit
import ctypes
import functools
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from epd import _environment
from epd._errors import EpError

CODES = (
    "OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED RESOURCE_EXHAUSTED"
    " FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS UNAUTHENTICATED"
).split()
_STATES = ("left", "ready", "lost", "joining")  # EPD_PROGRAM_*.
_OPERATIONS = ("prepare", "dispatch", "combine", "dispatch_backward", "combine_backward")


class Error(ctypes.Structure):
    """epd_error."""

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


class Begun(ctypes.Structure):
    """epd_program_begun."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("join", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
    ]


class Call(ctypes.Structure):
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
        ("begun", ctypes.POINTER(Begun)),
        ("scope", ctypes.c_char_p),
        ("pending", ctypes.c_void_p),
        ("wait_ns", ctypes.c_int64),
    ]


# Fields of epd_program_interpreter that are functions of CPython.
_PYTHON_CALLS = {
    "ensure": "PyGILState_Ensure",
    "release": "PyGILState_Release",
    "check_signals": "PyErr_CheckSignals",
    "fetch": "PyErr_Fetch",
    "restore": "PyErr_Restore",
    "add_pending_call": "Py_AddPendingCall",
    "set_none": "PyErr_SetNone",
}
ENDS_WAIT = ctypes.PYFUNCTYPE(ctypes.c_int)

# epd_program_describe: of an alias and its number of ranks.
DESCRIBE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_int64, ctypes.POINTER(Error))

_num_interrupts = ctypes.c_uint64()
_interpreters: list[Any] = []  # Functions that C code calls must not be collected.
# What an interpreter says of a SIGINT, see epd_program.h.
_ENDS, _ENDS_AND_RAISES = 1, 2


class Interpreter(ctypes.Structure):
    """epd_program_interpreter, with this process's CPython."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        *((name, ctypes.c_void_p) for name in (*_PYTHON_CALLS, "keyboard_interrupt")),
        ("ends_wait", ENDS_WAIT),
        ("num_interrupts", ctypes.POINTER(ctypes.c_uint64)),
    )


def _ends_wait() -> int:
    """What SIGINT does to a wait, once the program's handlers have run: nothing, if one of them is the program's own."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        return _ENDS
    # asyncio.run's counts, and cancels a task that waits here: it would be heard when the wait is over.
    runner = getattr(sys.modules.get("asyncio.runners"), "Runner", None)
    of_asyncio = isinstance(handler, functools.partial) and (
        type(getattr(handler.func, "__self__", None)) is runner
    )
    return _ENDS_AND_RAISES if of_asyncio else 0


def _follow_interrupts(library: ctypes.CDLL) -> None:
    """Has waits of the library see Ctrl-C, whichever handler the program has by then."""
    python = ctypes.pythonapi
    calls = (ctypes.cast(getattr(python, of), ctypes.c_void_p) for of in _PYTHON_CALLS.values())
    interrupt = ctypes.c_void_p(id(KeyboardInterrupt))
    interpreter = Interpreter(
        ctypes.sizeof(Interpreter),
        *calls,
        interrupt,
        ENDS_WAIT(_ends_wait),
        ctypes.pointer(_num_interrupts),
    )
    library.epd_program_set_interpreter(ctypes.byref(interpreter))
    _interpreters.append(interpreter)
    atexit.register(library.epd_program_set_interpreter, None)


_libraries: list["Library"] = []
# What a call may fail with, which is too large to be made anew for each.
_PER_THREAD = threading.local()


def retry(code: str, text: str) -> str:
    """What to do about an error of the code: "call again", "connect again" or "no"."""
    number = CODES.index(code) if code in CODES else 0
    return _libraries[0].c.epd_program_retry(number, text.encode()).decode() if _libraries else "no"


def job_of_environment() -> str:
    """The job that this process belongs to: EPD_JOB, else the words of its scheduler and launcher; "": nobody says."""
    if not _libraries:
        return ""
    buffer = ctypes.create_string_buffer(256)
    _libraries[0].c.epd_program_job_of_environment(buffer, len(buffer))
    return buffer.value.decode()


def identity(given: str | None, nonce: str, *, store: str) -> tuple[str, str]:
    """The job's name ("": nobody knows it), and the run of it; processes meet where both are equal.

    Args:
        given: the name that the caller gives, or None.
        nonce: what the processes' key-value store agreed on; "" without one. It is always a part of what is returned.
        store: whose store it is, for the name.
    """
    run = _environment.instance() or nonce
    if given is not None or _environment.names_job():
        return given if given is not None else job_of_environment(), run
    words = [job_of_environment() or store if nonce else job_of_environment(), nonce]
    return "-".join(word for word in words if word), run


# Processes that have no store in common cannot tell each other which daemon they see.
_ALONE = (
    "if they run: this process is with the private epd at {path}, and one in another container, or with another runtime folder, has"
    " one of its own, where it waits for this rank; share the folder, or give all one epd and its socket as EPD_SOCKET"
)


class Library:
    """A library that offers epd_program.h. ImportError, saying what to do, if it cannot be loaded."""

    def __init__(self, path: Path):
        try:
            self.c = ctypes.CDLL(str(path))  # Calls release the GIL.
        except OSError as error:
            raise ImportError(
                f"cannot load {path}: {error}; run deploy/setup, which builds and installs it"
            ) from error
        problem, text, size = ctypes.POINTER(Error), ctypes.c_char_p, ctypes.c_size_t
        call, code, number = ctypes.POINTER(Call), ctypes.c_int, ctypes.c_uint32
        operation = (code, call, ctypes.c_void_p, problem)
        self.declare(
            program_job_of_environment=(size, text, size),
            program_set_interpreter=(None, ctypes.POINTER(Interpreter)),
            program_connect=(code, text, text, problem),
            program_socket_path=(size, text, size),
            program_join=(code, ctypes.c_void_p, problem),
            program_handshake=(code, call, problem),
            program_refuse=(code, call, ctypes.c_int32, text, problem),
            program_describe_with=(None, text, DESCRIBE),
            program_wait=(code, text, problem),
            program_state=(code, text, ctypes.POINTER(ctypes.c_uint64)),
            program_finalize=(None, text),
            program_handle_mem_size=(size, number, number, number, number),
            program_words=(size, code, text, text, size),
            program_retry=(text, code, text),
            **{f"program_{name}": operation for name in _OPERATIONS},
        )
        _libraries.append(self)
        _follow_interrupts(self.c)

    def declare(self, **signatures: tuple[Any, ...]) -> None:
        """Of functions, without the prefix: the result's type, then the arguments'."""
        for name, (result, *arguments) in signatures.items():
            function = getattr(self.c, f"epd_{name}")
            function.restype, function.argtypes = result, arguments

    def checked(self, function: Callable[..., int], *arguments: Any) -> None:
        """Calls a function that takes an epd_error last; EpError if it fails."""
        error: Error | None = getattr(_PER_THREAD, "error", None)
        if error is None:
            error = _PER_THREAD.error = Error(struct_size=ctypes.sizeof(Error))
        code = function(*arguments, ctypes.byref(error))
        if code == 0:
            return
        name = CODES[code] if 0 <= code < len(CODES) else "UNKNOWN"
        text = error.message.decode(errors="replace")
        if not text.startswith("[epd:"):
            text = f"[epd:{name}] {text}"
        words = ctypes.create_string_buffer(8192)
        self.c.epd_program_words(code, text.encode(), words, len(words))
        raise EpError(name, words.value.decode(errors="replace"))

    def connect(self, socket_path: str) -> str:
        """Opens the process's session with the daemon and returns the path of its socket. EpError if there is none."""
        daemon = _environment.daemon_path().encode()
        self.checked(self.c.epd_program_connect, socket_path.encode(), daemon)
        return self._socket_path()

    def _socket_path(self) -> str:
        """Of the daemon that this process has a session with; "" without one."""
        buffer = ctypes.create_string_buffer(4096)
        self.c.epd_program_socket_path(buffer, len(buffer))
        return buffer.value.decode()

    def join(self, group: ctypes.Structure) -> None:
        """Joins the groups of all domains held here, see _group_struct; collective; EpError with the cause."""
        try:
            self.checked(self.c.epd_program_join, ctypes.byref(group))
        except EpError as error:
            path = self._socket_path()
            is_private = path not in ("", _environment.NODE_SOCKET, _environment.socket_path())
            if error.code != "DEADLINE_EXCEEDED" or not is_private:
                raise
            raise EpError(error.code, f"{error}; {_ALONE.format(path=path)}") from None

    def wait(self, alias: str) -> None:
        """Waits until the ranks held here are in their groups, joining again after a loss. EpError: a loss, once; or the cause."""
        self.checked(self.c.epd_program_wait, alias.encode())

    def join_again(self, alias: str) -> None:
        """Returns once the ranks held here are in their groups, also where the session was lost since the last call."""
        try:
            self.wait(alias)
        except EpError:
            self.wait(alias)  # A loss is reported once.

    def wait_ready(self, alias: str, seconds: float | None) -> None:
        """As ``join_again``, for at most so long: then EpError DEADLINE_EXCEEDED, while a thread goes on."""
        if seconds is None or self.state(alias)[0] == "ready":
            self.join_again(alias)
            return
        failure: list[EpError] = []

        def work() -> None:
            try:
                self.join_again(alias)
            except EpError as error:
                failure.append(error)

        thread = threading.Thread(target=work, daemon=True, name=f"epd joins {alias}")
        thread.start()
        thread.join(seconds)
        if failure:
            raise failure[0]
        if thread.is_alive():
            state, epoch = self.state(alias)
            raise EpError(
                "DEADLINE_EXCEEDED",
                f"[epd:DEADLINE_EXCEEDED] group={alias} epoch={epoch} phase=join: call again once the ranks that are missing"
                f" are there (epctl why {alias} names them): not ready after {seconds:g} s, state {state}",
            )

    def state(self, alias: str) -> tuple[str, int]:
        """Where this process's ranks are, and the epoch of the last join, 0 before."""
        epoch = ctypes.c_uint64()
        code = self.c.epd_program_state(alias.encode(), ctypes.byref(epoch))
        return _STATES[code], epoch.value

    def finalize(self, alias: str) -> None:
        """Leaves the alias's groups, if there are any, and the session with the daemon if no other group is left."""
        self.c.epd_program_finalize(alias.encode())

    def handle_mem_size(self, ranks: int, experts: int, max_tokens: int, top_k: int) -> int:
        """Bytes of one rank's routing plan. Needs no daemon."""
        return self.c.epd_program_handle_mem_size(ranks, experts, max_tokens, top_k)

    def refuse(self, call: Call, code: str, text: str) -> None:
        """Takes the call's place with an error, which all ranks hear; raises that EpError."""
        self.checked(
            self.c.epd_program_refuse, ctypes.byref(call), CODES.index(code), text.encode()
        )
