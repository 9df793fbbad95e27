"""The error of epd's operations, whatever the framework."""


class EpError(RuntimeError):
    """A failed operation of epd.

    ``code``: UNAVAILABLE (a rank, a worker or the daemon is gone), DEADLINE_EXCEEDED (a rank is late), ABORTED (stale
    plan), RESOURCE_EXHAUSTED (receive capacity, staging), INVALID_ARGUMENT, FAILED_PRECONDITION,
    PERMISSION_DENIED, UNIMPLEMENTED, DATA_LOSS, INTERNAL. Names of gRPC's and Abseil's status codes.
    """

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code

    @property
    def retry(self) -> str:
        """What may help: "call again", that is, repeat the step on all ranks; "connect again", ``group.connect()`` or
        ``ep_bootstrap``; "no", for something must be changed first. The text begins with the same."""
        from epd import _program  # Which raises EpErrors itself.

        return _program.retry(self.code, str(self))
