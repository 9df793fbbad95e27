"""Every environment variable that the client reads, in one place.

========================  ================================================================================
``EPD_SOCKET``            path of the daemon's attach socket; default: the node's ``/run/epd/epd.sock``, else this
                          user's private one
``EPD_AUTOSTART``         ``0``: never start a private daemon when none is found
``EPD_DAEMON``            the ``epd`` to start; default: the one installed with this package, else the one on PATH
``EPD_JOB``               name of the job; processes of one job find each other; default: the scheduler's job id, else a nonce that
                          JAX's distributed key-value store shares
``EPD_TENANT``            which of several jobs that share one group this is: jobs of the same ``EPD_JOB`` and other
                          tenants share the groups' ranks and memory, and exchange nothing; read by the C library
``EPD_EXECUTOR``          who moves the rows, ``client`` or ``worker`` (the daemon's); default: the daemon's choice
``EPD_BACKEND``           what moves the rows of groups on GPUs, ``cuda`` (default) or ``nccl_ep``; groups on CPUs have
                          no choice
``EPD_WARN_AFTER``        seconds until a living but absent rank is named in the daemon's log; default 20
``EPD_ABSENT_TIMEOUT``    ... and until that fails the operation; default 600
``EPD_UNDECIDED_TIMEOUT`` seconds from the admission of an operation to its outcome; default 30
``EPD_FORM_TIMEOUT``      seconds for all ranks to come to ``ep_bootstrap``; default 300
``EPD_JAX_LIBRARY``       path of another ``libepd_jax.so``, for work on epd itself
========================  ================================================================================

Ranks of a group must agree on the executor, the backend and the four times.

XLA has a deadline of its own: in a process with several CPU devices it ends the process 40 seconds
after one of its own collectives began to wait for a device that is held up. To let a rank be absent
for longer there, set ``XLA_FLAGS=--xla_cpu_collective_call_terminate_timeout_seconds=700``.
"""

import os
import sys
from pathlib import Path

# Variables in which schedulers hand out an id that all processes of a job share.
_SCHEDULER_JOB_VARIABLES = (
    ("SLURM_JOB_ID", "slurm"),
    ("PBS_JOBID", "pbs"),
    ("LSB_JOBID", "lsf"),
    ("FLUX_JOB_ID", "flux"),
    ("COBALT_JOBID", "cobalt"),
    ("OMPI_MCA_ess_base_jobid", "mpi"),
)

# Who moves the rows, by what EPD_EXECUTOR says: epd_executor of the C library.
_EXECUTORS = {"": 0, "worker": 1, "client": 2}

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


def executor() -> int:
    """Who moves the rows, as the C library's epd_executor; ValueError for an unknown name."""
    text = os.environ.get("EPD_EXECUTOR", "")
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


def socket_path() -> str:
    """The socket asked for, or "": the C library looks for one."""
    return os.environ.get("EPD_SOCKET", "")


def job() -> str:
    """The job's name as the user or the scheduler gives it, or ""."""
    if text := os.environ.get("EPD_JOB", ""):
        return text
    for name, scheduler in _SCHEDULER_JOB_VARIABLES:
        if text := os.environ.get(name, ""):
            return f"{scheduler}-{text}"
    return ""


def daemon_path() -> str:
    """The ``epd`` to start where none runs, or "": the C library looks beside itself and on PATH."""
    if os.environ.get("EPD_DAEMON"):
        return ""  # The C library reads it.
    beside = Path(sys.prefix) / "bin" / "epd"
    return str(beside) if os.access(beside, os.X_OK) else ""


def library_path() -> Path:
    """Where libepd_jax.so is."""
    return Path(os.environ.get("EPD_JAX_LIBRARY") or Path(__file__).parent / "libepd_jax.so")
