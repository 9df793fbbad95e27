"""A node that speaks Cluster.Sync in plain Python, so that a test decides every byte that a coordinator hears."""

import queue

import cluster_secret
import grpc

from proto.epd.v1 import cluster_pb2 as pb


class FakeNode:
    def __init__(
        self, address: str, name: str, recorded: bytes = b"", says: str = "", **first: object
    ) -> None:
        """It proves to be node `name`, and says that it is that or `says`."""
        self.name = name
        self.incarnation = 4711
        self._seq = 0
        self._out: queue.Queue = queue.Queue()
        self._channel = grpc.insecure_channel(address)
        call = self._channel.stream_stream(
            "/epd.v1.Cluster/Sync",
            request_serializer=lambda sent: sent
            if isinstance(sent, bytes)
            else sent.SerializeToString(),
            response_deserializer=pb.ClusterView.FromString,
        )
        proof = cluster_secret.metadata(pb, self._channel, name)
        self._views = call(iter(self._out.get, None), timeout=30, metadata=proof)
        hello = pb.NodeReport(node=says or name, incarnation=self.incarnation, **first)
        self._out.put(recorded or hello)

    def __enter__(self) -> "FakeNode":
        return self

    def __exit__(self, *_: object) -> None:
        self._views.cancel()
        self._out.put(None)

    def view(self) -> pb.ClusterView:
        """The next one; raises grpc.RpcError when the coordinator has refused this node."""
        return next(self._views)

    def send(self, recorded: bytes) -> None:
        self._out.put(recorded)

    def report(self, **fields: object) -> None:
        self._seq += 1
        message = pb.NodeReport(
            node=self.name, incarnation=self.incarnation, seq=self._seq, worker=99, **fields
        )
        self._out.put(message)

    def claim(self, spec, rank: int) -> pb.ClusterClaim:
        claim = pb.ClusterClaim(
            session_id=1,
            request_id=1,
            host="elsewhere",
            pid=1,
            client_name="fake",
            spec=spec,
            ranks=[rank],
            proposed=12345,
            fate=pb.CLAIM_FATE_HELD,
        )
        claim.remaining.FromSeconds(30)
        return claim
