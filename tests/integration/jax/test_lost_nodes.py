"""Goal: a node or a worker that is lost under a training has one name, on every rank of every node, and the training goes on.

EPD_LOSSES: how many in a row (default 2)."""

import os
import re
import signal

import pytest
from nodes import Nodes, running_nodes
from trainings import Training, start_again

_LOSSES = int(os.environ.get("EPD_LOSSES", "2"))
# What ranks of the lost node's own may hear: from its worker, or from the client's watchdog.
_OWN_NODE = r"this node's worker is gone: its epd \(pid \d+\) has ended|the session with the daemon on node n{node} .* has ended"


def _heard(said: str, number: int) -> str:
    return re.search(rf"^loss {number} (.*)$", said, re.MULTILINE)[1]


def _lose_epd(nodes: Nodes, node: int) -> None:
    nodes.daemons[node].kill()


def _lose_worker(nodes: Nodes, node: int) -> None:
    os.kill(nodes.daemons[node].worker_pid(), signal.SIGKILL)


@pytest.mark.parametrize("node", [0, 1], ids=["coordinator", "other"])
@pytest.mark.parametrize("lose", [_lose_epd, _lose_worker], ids=["epd", "worker"])
def test_what_is_lost_has_one_name_on_every_rank(lose, node: int):
    """A rank on the node that loses something, and one on each of two others."""
    with running_nodes(3) as nodes, Training("survives.py", nodes.daemons, _LOSSES) as training:
        for number in range(_LOSSES):
            training.reach(number)
            lose(nodes, node)
            if lose is _lose_epd:
                start_again(nodes.daemons[node])
        training.expect_finish()
        for number in range(1, _LOSSES + 1):
            for rank, said in enumerate(training.said()):
                heard = _heard(said, number)
                assert heard.startswith("UNAVAILABLE "), (rank, heard)
                name = rf"the worker of node n{node} cpu host=[^ ,]+(, which serves rank={node},)? is gone"
                if rank == node and lose is _lose_epd:
                    name += "|" + _OWN_NODE.format(node=node)
                assert re.search(name, heard), (rank, heard)
