"""Operations on GPUs: asked for by ``enable_cuda``; what fails while XLA replays a program is told by ``check``."""

from epd.jax import _ffi


def enable_cuda() -> None:
    """Lets the operations of this process run on its GPUs. To be called before the first program with them is compiled.

    Groups that are made from now on with a mesh of GPUs have their staging on the GPUs (``backend=cuda``, or what
    ``EPD_BACKEND`` says). Calling it again does nothing. A process that does not call it is as it would be without a GPU.

    Start the process with ``CUDA_DEVICE_MAX_CONNECTIONS=32`` (``help(epd.jax.environment)``).

    Raises:
        ValueError: ``EPD_COMMAND_BUFFERS`` is unknown, or ``XLA_FLAGS`` puts loops into command buffers; the text says what to do.
            Loops that ``jax.jit``'s ``compiler_options`` put there are not seen.
        EpError: FAILED_PRECONDITION: there is no CUDA driver, or it lacks stream memory operations; the text says which.
    """
    _ffi.enable_cuda()


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
