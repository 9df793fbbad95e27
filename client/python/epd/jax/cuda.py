"""Operations on GPUs. Their handlers register themselves where JAX runs on GPUs; ``enable_cuda`` says why that fails, and what
fails while XLA replays a program is told by ``check``."""

from epd._errors import EpError
from epd.jax import _ffi


def enable_cuda() -> None:
    """Says why operations of this process cannot run on its GPUs, where they cannot. No program has to call it.

    A group whose ranks are on GPUs registers what XLA needs when it is joined, and so does the first program that is compiled
    for a GPU; both raise what this raises. A program that comes compiled from elsewhere
    (``jax.experimental.serialize_executable``) needs a group that is joined, or this call, before it is loaded. Calling it
    again does nothing.

    Start the process with ``CUDA_DEVICE_MAX_CONNECTIONS=32`` (``help(epd.jax.environment)``).

    Raises:
        ValueError: ``EPD_COMMAND_BUFFERS`` is unknown, or ``XLA_FLAGS`` puts loops into command buffers; the text says what to do.
            Loops that ``jax.jit``'s ``compiler_options`` put there are not seen.
        EpError: FAILED_PRECONDITION: there is no CUDA driver, or it lacks stream memory operations; or JAX has started without
            GPUs; the text says which.
    """
    _ffi.enable_cuda()
    if _ffi.jax_has_cuda() is False:
        raise EpError(
            "FAILED_PRECONDITION",
            "[epd:FAILED_PRECONDITION] phase=begin: JAX has no GPU in this process, so its programs do not run on one; install JAX"
            " with CUDA (pip install 'jax[cuda13]'), and let JAX_PLATFORMS be unset or name cuda",
        )


def check(group: str = "") -> None:
    """Raises the first failure of an operation on a GPU since the last time that one was raised.

    XLA replays compiled programs without asking anybody, so an operation that fails there leaves zeros in its outputs, on
    every rank of the group, and the program goes on. The failure is raised by the next call that XLA does make, by
    ``ep_finalize``, or here, whichever is first: call it where the zeros must not be used, such as before a checkpoint. It
    reads a few words of this process's memory, waits for nothing, and knows of what has run by then
    (``jax.block_until_ready`` the step's results first). On CPU operations raise by themselves and this does nothing.

    Args:
        group: the name of a ``Group``, "default" for that of ``ep_bootstrap``; "" means all groups of this process.

    Raises:
        EpError: the cause, the same on every rank. After ABORTED begin again at one step on all ranks.
    """
    _ffi.cuda_check(group)
