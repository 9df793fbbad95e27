"""Sessions of one user that send Joins of large groups as fast as epd takes them; a process of its own.

Called with epd's socket, the user, the number of sessions and what they send. Says "flooding" once all are attached, and ends
with its standard input.
"""

import contextlib
import itertools
import selectors
import socket
import sys

import attach_client as attach

from proto.epd.v1 import attach_pb2 as pb

_RANKS = 1024  # As many as a worker serves.
_EXPERTS = 16 * _RANKS


def _spec(name: str, num_experts: int = 0) -> pb.GroupSpec:
    """With a table of experts' owners, if it has as many."""
    owners = [expert % _RANKS for expert in range(num_experts)]
    experts = num_experts or 2 * _RANKS
    return attach.spec(name, num_ranks=_RANKS, num_experts=experts, expert_owner=owners)


# What each session sends, again and again. None of these groups is ever complete.
KINDS = {
    # Refused after the first: the session has joined it.
    "one group": [_spec("flood", _EXPERTS)],
    # Refused by the last entry of its table.
    "no such rank": [_spec("flood", _EXPERTS)],
    # Refused once each session has joined all, or the user has its share of tables' entries.
    "large tables": [_spec(f"flood-{i}", _EXPERTS) for i in range(32)],
    "many groups": [_spec(f"flood-{i}") for i in range(400)],
}
KINDS["no such rank"][0].expert_owner[-1] = _RANKS


def _messages(kind: str, session: int) -> list[bytes]:
    joins = [
        pb.ClientMessage(join=pb.Join(request_id=i + 1, spec=spec, ranks=[session]))
        for i, spec in enumerate(KINDS[kind])
    ]
    return [join.SerializeToString() for join in joins]


def main(path: str, uid: int, num_sessions: int, kind: str) -> None:
    poll = selectors.DefaultSelector()
    poll.register(sys.stdin, selectors.EVENT_READ)
    messages = [_messages(kind, session) for session in range(num_sessions)]
    for of_session in messages:
        client = attach.Client(path, uid)
        client.attach()
        client.socket.setblocking(False)
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        poll.register(client.socket, both, (client, itertools.cycle(of_session)))
    print("flooding", flush=True)
    while True:
        for key, events in poll.select():
            if key.fileobj is sys.stdin:
                return
            with contextlib.suppress(BlockingIOError):
                while events & selectors.EVENT_READ:
                    key.fileobj.recv(1 << 16, socket.MSG_TRUNC)
            with contextlib.suppress(BlockingIOError):
                while events & selectors.EVENT_WRITE:
                    key.fileobj.send(next(key.data[1]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
