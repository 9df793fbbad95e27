"""Calls of epd.v1.Node and grpc.health.v1 without generated stubs."""

import grpc

from proto.epd.v1 import node_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["Node"]


def _class(descriptor) -> type:
    return getattr(pb, descriptor.name)


class NodeApi:
    """api.GetStatus(field=value, ...) calls the RPC of that name; `timeout` in seconds."""

    def __init__(self, target: str) -> None:
        self.channel = grpc.insecure_channel(target)

    def close(self) -> None:
        self.channel.close()

    def __enter__(self) -> "NodeApi":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str):
        method = _SERVICE.methods_by_name[name]
        make = self.channel.unary_stream if name == "WatchGroup" else self.channel.unary_unary
        call = make(
            f"/epd.v1.Node/{name}",
            request_serializer=_class(method.input_type).SerializeToString,
            response_deserializer=_class(method.output_type).FromString,
        )
        request_class = _class(method.input_type)
        return lambda timeout=10, **fields: call(request_class(**fields), timeout=timeout)

    def health(self, service: str = "", timeout: float = 10) -> int:
        """1: SERVING, 2: NOT_SERVING; raises NOT_FOUND for a service that it does not know."""
        call = self.channel.unary_unary("/grpc.health.v1.Health/Check")
        name = service.encode()
        answer = call(b"\x0a" + bytes([len(name)]) + name if name else b"", timeout=timeout)
        return answer[1] if answer else 0
