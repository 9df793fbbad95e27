"""What the clients read of their environment, in one place; ``epd.jax.environment`` tells users."""

import os
import re
import sys
from pathlib import Path

from epd import _programs

# Who moves the rows, by what EPD_EXECUTOR says: epd_executor of the C library.
_EXECUTORS = {"": 0, "worker": 1, "client": 2}

_MOST_KEPT_MIB = 2047  # As mallopt takes it, in an int of bytes.

# Whose commands become bodies of conditional nodes in XLA's command buffers.
_WITH_BODIES = {"CONDITIONAL", "WHILE"}

_COMMAND_BUFFER_FLAGS = re.compile(
    r"""(?:^|\s)--xla_gpu_enable_command_buffer=(?:"((?:\\.|[^"\\])*)"|'([^']*)'|(\S*))"""
)

# What may move rows on GPUs, the default first: those of proto/epd/v1/backends.h that are on a device, as a check sees to.
_GPU_BACKENDS = ("cuda", "nccl_ep")


def milliseconds(name: str) -> int:
    """A number of seconds in the variable, in milliseconds; 0: unset. ValueError if it is no number."""
    text = os.environ.get(name, "")
    if not text:
        return 0
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.001 <= seconds <= 1e9:
        raise ValueError(
            f"{name}={text!r} is not a number of seconds; give 0.001 or more, or unset it"
        )
    return round(seconds * 1000)


def keep_freed_mebibytes() -> int:
    """How much freed memory a process keeps whose ranks are on CPUs. ValueError if it is no number."""
    text = os.environ.get("EPD_KEEP_FREED_MIB", "") or "256"
    if not text.isdecimal() or int(text) > _MOST_KEPT_MIB:
        raise ValueError(
            f"EPD_KEEP_FREED_MIB={text!r} is not a number of MiB; give 0 to {_MOST_KEPT_MIB}, or unset it"
        )
    return int(text)


def reconnect_milliseconds() -> int:
    """As epd_program_group takes it: 0 is the forming deadline, -1 not at all. ValueError if it is no number."""
    text = os.environ.get("EPD_RECONNECT_TIMEOUT", "")
    return -1 if text.strip("0.") == "" and text else milliseconds("EPD_RECONNECT_TIMEOUT")


def executor(needed: str | None = None) -> int:
    """Who moves the rows, as the C library's epd_executor: ``needed``, or as asked. ValueError for an unknown name."""
    text = needed or os.environ.get("EPD_EXECUTOR", "")
    if text not in _EXECUTORS:
        raise ValueError(f"EPD_EXECUTOR={text!r} is unknown; give client or worker, or unset it")
    return _EXECUTORS[text]


def gpu_backend() -> str:
    """What moves rows on GPUs; ValueError for an unknown name."""
    text = os.environ.get("EPD_BACKEND", "") or _GPU_BACKENDS[0]
    if text not in _GPU_BACKENDS:
        known = " or ".join(_GPU_BACKENDS)
        raise ValueError(f"EPD_BACKEND={text!r} is unknown; give {known}, or unset it")
    return text


def _xla_flags() -> str:
    """Flags as XLA reads them: the variable's, or of the file that it names where it does not begin with a dash."""
    text = os.environ.get("XLA_FLAGS", "")
    if not text or text.lstrip().startswith("-"):
        return text
    try:
        return Path(text).read_text(errors="replace")
    except OSError:
        return ""  # XLA ends the process for it, and says why.


def _bodies_in_command_buffers() -> list[str]:
    """Those of _WITH_BODIES that XLA is told to put there. Each flag counts: a list replaces what flags before it said, and one of
    kinds behind + or - changes it."""
    kinds: set[str] = set()
    for quotes in _COMMAND_BUFFER_FLAGS.findall(_xla_flags()):
        value = "".join(quotes)
        changes = [kind for kind in (one.strip().upper() for one in value.split(",")) if kind]
        if not value or (changes and changes[0][0] not in "+-"):
            kinds.clear()
        for kind in changes:
            if kind.startswith("-"):
                kinds.discard(kind[1:])
            else:
                kinds.add(kind.removeprefix("+"))
    return sorted(kinds & _WITH_BODIES)


def command_buffers() -> bool:
    """Whether XLA may take operations on GPUs into its command buffers; ValueError for an unknown word, or where it may not."""
    text = os.environ.get("EPD_COMMAND_BUFFERS", "") or "on"
    if text not in ("on", "off"):
        raise ValueError(f"EPD_COMMAND_BUFFERS={text!r} is unknown; give on or off, or unset it")
    bodies = _bodies_in_command_buffers()
    if text == "on" and bodies:
        raise ValueError(
            f"XLA_FLAGS puts {' and '.join(bodies)} into command buffers, and CUDA takes no stream memory operations, with"
            " which operations wait, into the bodies of conditional nodes; take it out of --xla_gpu_enable_command_buffer,"
            " or set EPD_COMMAND_BUFFERS=off"
        )
    return text == "on"


# Of the daemon that the machine's administrator looks after.
NODE_SOCKET = "/run/epd/epd.sock"


def socket_path() -> str:
    """The socket asked for, or "": the C library looks for one."""
    return os.environ.get("EPD_SOCKET", "")


def names_job() -> bool:
    """Whether the user names the job, by EPD_JOB."""
    return bool(os.environ.get("EPD_JOB"))


def instance() -> str:
    """The run of the job as the user names it, or ""."""
    return re.sub(r"[^!-.0-~]", "_", os.environ.get("EPD_INSTANCE", ""))[:120]


def daemon_path() -> str:
    """The ``epd`` to start where none runs: the one that came with this package, else this environment's; "": the C library
    looks beside itself."""
    if os.environ.get("EPD_PROGRAM"):
        return ""  # The C library reads it.
    beside = _programs.path("epd") or Path(sys.prefix) / "bin" / "epd"
    return str(beside) if os.access(beside, os.X_OK) else ""


def library_path(variable: str, path: str) -> Path:
    """Where a library is: the variable says so, else at ``path`` in this package."""
    return Path(os.environ.get(variable) or Path(__file__).parent / path)
