"""Goal: epctl's JSON fits the published schemas also when every field of every message is set."""

import concurrent.futures
import json

import grpc
import jsonschema
import pytest
import running_epd
from epd import cluster
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor

_MAX_DEPTH = 6
_CALLS = {
    "status": ["status"],
    "groups": ["groups"],
    "top": ["top", "--once"],
    "sessions": ["sessions"],
    "ranks": ["ranks"],
    "memory": ["memory"],
    "doctor": ["doctor"],
    "config": ["config"],
    "drain": ["drain", "g"],
    "close": ["close", "g"],
    "create": ["create", "g", "--ranks=1", "--experts=1", "--max-tokens-per-rank=1"],
    "version": ["version"],
    "why": ["why", "g"],
    "replace": ["replace"],
}
_CALLS["create"] += ["--recv-capacity-per-rank=1", "--hidden=1"]
_CALLS["plan"] = ["plan", *_CALLS["create"][1:]]


def _value(field: FieldDescriptor, depth: int):
    if field.message_type:
        return _filled(field.message_type, depth + 1)
    if field.enum_type:
        return field.enum_type.values[-1].number
    if field.type == FieldDescriptor.TYPE_STRING:
        return 'text "with\nall" \u00e9'
    if field.type == FieldDescriptor.TYPE_BYTES:
        return b"\xff\x00"
    return True if field.type == FieldDescriptor.TYPE_BOOL else 3


def _filled(descriptor: Descriptor, depth: int = 0):
    """A message with every field set, and two of each repeated one."""
    message = message_factory.GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if field.message_type and depth >= _MAX_DEPTH:
            continue
        value = _value(field, depth)
        if field.label == FieldDescriptor.LABEL_REPEATED:
            getattr(message, field.name).extend([value, value])
        elif field.message_type:
            getattr(message, field.name).CopyFrom(value)
        else:
            setattr(message, field.name, value)
    return message


@pytest.fixture
def full_node(tmp_path_factory):
    """The socket of a server that answers every call of the Node service with all fields set."""
    pool = cluster.load_descriptors()
    service = pool.FindServiceByName("epd.v1.Node")

    def handler(method):
        answer = _filled(method.output_type).SerializeToString()
        return grpc.unary_unary_rpc_method_handler(lambda request, context: answer)

    handlers = {m.name: handler(m) for m in service.methods if not m.server_streaming}
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("epd.v1.Node", handlers),)
        )
        folder = tmp_path_factory.mktemp("n")
        server.add_insecure_port(f"unix:{folder}/epd-grpc.sock")
        server.start()
        yield f"{folder}/epd.sock"
        server.stop(None).wait()


@pytest.mark.parametrize("command", sorted(_CALLS))
def test_a_full_answer_fits_the_schema(command, full_node, epctl_of):
    report = epctl_of(full_node).json(*_CALLS[command])
    assert report or command == "close"


def test_a_failure_fits_its_schema(tmp_path, epctl_of):
    """The schema of errors stands beside those of the commands, under its own name."""
    ended = epctl_of(str(tmp_path / "none.sock"))("status", "-o", "json")
    schema = json.loads((running_epd.ROOT / "deploy" / "schema" / "error.json").read_text())
    report = json.loads(ended.stdout)
    jsonschema.validate(report, schema, cls=jsonschema.Draft202012Validator)
    assert report["exit_code"] == ended.returncode == 3
