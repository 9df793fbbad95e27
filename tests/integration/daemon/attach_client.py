"""A client of the attach socket in plain Python: sends messages, keeps what it receives."""

import os
import socket

from proto.epd.v1 import attach_pb2 as pb

_RECEIVE_BYTES = 256 * 1024
_MAX_FDS = 250
DEADLINE_S = 10.0


def spec(name: str = "g", num_ranks: int = 2, **fields: object) -> pb.GroupSpec:
    """A valid spec; `fields` replace its parts."""
    values = {
        "name": name,
        "num_ranks": num_ranks,
        "num_experts": 2 * num_ranks,
        "max_tokens_per_rank": 64,
        "recv_capacity_per_rank": 256,
        "hidden": 16,
        "top_k": 2,
        "max_token_dtype": pb.DTYPE_FLOAT32,
    }
    values.update(fields)
    return pb.GroupSpec(**values)


class Client:
    """One connection. Every wait ends after DEADLINE_S with a TimeoutError."""

    def __init__(self, path: str, uid: int | None = None) -> None:
        """As `uid`, which only root can: the kernel says who connected, not who sends."""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(DEADLINE_S)
        own = os.geteuid()
        os.seteuid(own if uid is None else uid)
        try:
            self.socket.connect(path)
        finally:
            os.seteuid(own)
        self.fds: list[int] = []
        self._next_request = 1

    def close(self) -> None:
        self.socket.close()
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, **body: object) -> None:
        self.socket.send(pb.ClientMessage(**body).SerializeToString())

    def receive(self) -> pb.ServerMessage | None:
        """The next message; None when epd has closed the socket."""
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, _RECEIVE_BYTES, _MAX_FDS)
        except ConnectionResetError:
            return None
        self.fds += fds
        return pb.ServerMessage.FromString(data) if data else None

    def expect(self, kind: str) -> object:
        """The next message, which must be of this kind."""
        message = self.receive()
        got = message and message.WhichOneof("body")
        assert got == kind, f"got {got}: {message}, expected {kind}"
        return getattr(message, kind)

    def attach(self, **fields: object) -> pb.Attached:
        values = {"min_version": 1, "max_version": 1, "features": 1, "client_name": "test"}
        values.update(fields)
        self.send(attach=pb.Attach(**values))
        return self.expect("attached")

    def start_join(self, group: pb.GroupSpec, ranks: list[int], **fields: object) -> int:
        request = self._next_request
        self._next_request += 1
        self.send(join=pb.Join(request_id=request, spec=group, ranks=ranks, **fields))
        return request

    def join(self, group: pb.GroupSpec, ranks: list[int], **fields: object) -> pb.Joined:
        request = self.start_join(group, ranks, **fields)
        joined = self.expect("joined")
        assert joined.request_id == request
        return joined
