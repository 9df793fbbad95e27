"""What the comparison of the ranks' programs costs where nothing is wrong: calls without a name meet by what their program says
(its function's name, its exchanges in their order), and a difference is an error of all ranks. Programs of one source that
differ for their rank's sake, their sizes or their devices' must not be told so."""

import collections
from dataclasses import dataclass

from epd import cluster

_INVALID_ARGUMENT = 3


@dataclass(frozen=True)
class Compared:
    """Operations of a daemon, over all ranks that called them: that met, and that were refused because calls differed."""

    met: int = 0
    refused: int = 0

    def expect(self, what: str, provoked: int = 0) -> None:
        """AssertionError if any were refused but for those that are ``provoked``."""
        assert self.refused == provoked and self.met > 0, (what, self)
        print(f"false alarms of {what}: 0 of {self.met} operations")


def compared(socket: str) -> Compared:
    """By the daemon at the socket, so far."""
    node = cluster.Node("unix:" + cluster.grpc_path(socket))
    try:
        figures = node.call("GetFigures")
    finally:
        node.close()
    by_code: collections.Counter[int] = collections.Counter()
    for worker in figures.workers:
        for kind in worker.kinds:
            by_code.update({one.code: one.num_operations for one in kind.outcomes})
    return Compared(by_code[0], by_code[_INVALID_ARGUMENT])
