"""An OpenTelemetry collector, as far as it takes traces over gRPC: what epd's otlp_endpoint names."""

import importlib.util
import pathlib
import subprocess
import tempfile
import threading
from concurrent import futures
from types import ModuleType

import grpc

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"


def _messages() -> ModuleType:
    with tempfile.TemporaryDirectory() as folder:
        source = "proto/otlp/trace_service.proto"
        command = ["protoc", "--proto_path=.", f"--python_out={folder}", source]
        subprocess.run(command, cwd=_ROOT, check=True)
        made = pathlib.Path(folder) / "proto" / "otlp" / "trace_service_pb2.py"
        spec = importlib.util.spec_from_file_location("trace_service_pb2", made)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


class Collector:
    """Listens from when it is made; use it as a context manager."""

    def __init__(self):
        self._messages = _messages()
        self._lock = threading.Lock()
        self._requests: list = []
        handler = grpc.unary_unary_rpc_method_handler(
            self._export,
            request_deserializer=self._messages.ExportTraceServiceRequest.FromString,
            response_serializer=self._messages.ExportTraceServiceResponse.SerializeToString,
        )
        service = grpc.method_handlers_generic_handler(_SERVICE, {"Export": handler})
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((service,))
        port = self._server.add_insecure_port("127.0.0.1:0")
        self.endpoint = f"http://127.0.0.1:{port}"
        self._server.start()

    def __enter__(self):
        return self

    def __exit__(self, *unused: object) -> None:
        self._server.stop(None).wait()

    def _export(self, request, context):
        with self._lock:
            self._requests.append(request)
        return self._messages.ExportTraceServiceResponse()

    def spans(self) -> list[tuple[str, object]]:
        """All so far, each with its node's name."""
        with self._lock:
            requests = list(self._requests)
        found = []
        for request in requests:
            for resource in request.resource_spans:
                names = {a.key: a.value.string_value for a in resource.resource.attributes}
                for scope in resource.scope_spans:
                    found += [(names["host.name"], span) for span in scope.spans]
        return found
