"""The API of a node, gRPC's package epd.v1, for programs that create, watch, drain and close groups::

    from epd import cluster

    with cluster.Node(cluster.default_target()) as node:
        print(node.call("GetStatus").version)
        spec = node.message("GroupSpec", name="g", num_ranks=2, num_experts=4, hidden=8, max_tokens_per_rank=16,
                            recv_capacity_per_rank=64, top_k=2, max_token_dtype="DTYPE_BFLOAT16")
        node.call("CreateGroup", spec=spec, request_id="1")

Its messages and methods are those of proto/epd/v1/node.proto, which the package carries as descriptors: there is no generated
code. Needs grpcio and protobuf: ``pip install 'epd[cluster]'``.
"""

from epd import _extras

_extras.require("cluster", "grpc", "google.protobuf")

import collections.abc
import ctypes
import json
import os
import pathlib
import pwd
import re
import socket
import struct
import time
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from epd import _environment
from epd._errors import EpError
from epd._program import CODES, Error

_DESCRIPTORS = pathlib.Path(__file__).with_name("descriptors.binpb")
_PACKAGE = "epd.v1"
_PROBE_SECONDS, _CONNECT_SECONDS = 0.05, 2
_MOST_PATH_BYTES = 4096
CLIENT_CONFIG = pathlib.Path("/etc/epd/client.conf")
# A call of these changes nothing: gRPC makes it again when the connection broke, as when epd was replaced or started anew.
_READS = ("Get", "List", "Plan", "Explain")
_RETRY = {
    "maxAttempts": 4,
    "initialBackoff": "0.05s",
    "maxBackoff": "0.5s",
    "backoffMultiplier": 3,
    "retryableStatusCodes": ["UNAVAILABLE"],
}


def load_descriptors() -> descriptor_pool.DescriptorPool:
    """A pool with the messages and services of epd.v1."""
    files = descriptor_pb2.FileDescriptorSet.FromString(_DESCRIPTORS.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:  # protoc lists imports before their users.
        pool.Add(file)
    return pool


def _find_socket(asked: str = "") -> str:
    """As epd_find_socket of the C library has it, which knows where a daemon is looked for. EpError: as there."""
    library = ctypes.CDLL(str(_environment.library_path("EPD_CLIENT_LIBRARY", "libepd_client.so")))
    path = ctypes.create_string_buffer(_MOST_PATH_BYTES)
    error = Error(struct_size=ctypes.sizeof(Error))
    code = library.epd_find_socket(
        os.fsencode(asked) or None, path, ctypes.c_size_t(len(path)), ctypes.byref(error)
    )
    if code != 0:
        raise EpError(CODES[code], error.message.decode(errors="replace"))
    return os.fsdecode(path.value)


def default_target() -> str:
    """The gRPC socket of EPD_SOCKET, else of the node's daemon, else of this user's private one: where programs look that join groups.

    Raises:
        EpError: none can be there, as where XDG_RUNTIME_DIR is another user's folder.
    """
    return "unix:" + grpc_path(_find_socket())


def wait_for_socket(path: str, timeout: float) -> bool:
    """True once somebody listens on a Unix socket. A gRPC channel that failed once waits for seconds instead."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(path)
                return True
            except OSError:
                time.sleep(0.01)
    return False


def grpc_path(attach_path: str) -> str:
    """The gRPC socket beside an attach socket: /run/epd/epd.sock -> /run/epd/epd-grpc.sock. One that is a gRPC socket stays."""
    if attach_path.endswith("-grpc.sock"):
        return attach_path
    stem = attach_path.removesuffix(".sock")
    return f"{stem}-grpc{attach_path[len(stem) :]}"


def _trusted_uids(config: pathlib.Path) -> set[int]:
    """Whose daemon is believed, as the C library has it (client/c/trusted_server.h)."""
    uids = {os.geteuid(), 0}
    if os.environ.get("EPD_SERVER_UID"):
        uids.add(int(os.environ["EPD_SERVER_UID"]))
    if not config.exists():
        return uids
    facts = config.stat()
    if facts.st_uid != 0 or facts.st_mode & 0o022:
        raise PermissionError(f"{config} must be root's and writable by nobody else")
    for line in config.read_text().splitlines():
        name, _, user = (word.strip() for word in line.partition("#")[0].partition("="))
        if name == "server_user":
            uids.add(int(user) if user.isdigit() else pwd.getpwnam(user).pw_uid)
    return uids


def check_server(path: str, config: pathlib.Path = CLIENT_CONFIG) -> None:
    """Raises PermissionError if somebody else than this user, root or whom they named listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return  # The first call says so.
        size = struct.calcsize("3i")
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, _ = struct.unpack("3i", credentials)
    expected = _trusted_uids(config)
    if uid not in expected:
        raise PermissionError(
            f"{path}: uid {uid} (pid {pid}) listens there, expected one of {sorted(expected)}; nothing was sent"
        )


def _check_key(path: pathlib.Path, pem: bytes) -> None:
    """Raises ValueError for a private key that takes a pass phrase: gRPC would say no more than that nobody answers."""
    found = re.search(rb"-----BEGIN ([A-Z0-9 ]*)PRIVATE KEY-----(.*?)(-----END|\Z)", pem, re.DOTALL)
    if found is None:
        raise ValueError(f"tls: {path} holds no PEM private key")
    old_form = b"Proc-Type:" in found[2] and b"ENCRYPTED" in found[2]
    if b"ENCRYPTED" in found[1] or old_form:
        raise ValueError(
            f"tls: {path} is encrypted and takes a pass phrase, which nobody enters here; write the key without one, "
            f"and give that file: (umask 077; openssl pkey -in {path} -out NEW.key)"
        )


class NoDaemonError(grpc.RpcError):  # type: ignore[misc]
    """Nobody listens at the target. An UNAVAILABLE whose text begins with what to do, or with why nobody ever can."""

    def __init__(self, remedy: str, looked_at: str):
        self._details = f"{remedy}: no epd answers; looked at {looked_at}"
        super().__init__(f"[epd:UNAVAILABLE] {self._details}")

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return self._details


def _check_there(target: str) -> None:
    """Raises NoDaemonError if nobody listens at "unix:PATH" or "HOST:PORT". Of other targets gRPC says so."""
    path = target.removeprefix("unix:")
    if path != target:
        if not wait_for_socket(path, _PROBE_SECONDS):
            try:
                _find_socket(path)
            except EpError as error:  # None can come there.
                raise NoDaemonError(str(error), path) from None
            stem = path.removesuffix("-grpc.sock")
            attach_path = stem + ".sock" if stem != path else path
            raise NoDaemonError(
                f"start one there with 'epd --socket={attach_path}', or set EPD_SOCKET to that of a daemon that runs",
                path,
            )
    elif address := re.fullmatch(r"\[?([^/\[\]]+)\]?:(\d{1,5})", target):
        try:
            socket.create_connection((address[1], int(address[2])), _CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise NoDaemonError(
                f"start one there with 'epd --listen={target}', or give the 'listen' that 'epctl config' of a running one shows",
                f"{target}: {error}",
            ) from None


class Node:
    """One node's epd. `target` is a gRPC target: "unix:PATH" or "HOST:PORT".

    `tls`: files with the cluster's authority, and the caller's certificate and key, for a daemon whose links are TLS."""

    def __init__(self, target: str, timeout: float = 10.0, tls: tuple[str, str, str] | None = None):
        self._pool = load_descriptors()
        self._service = self._pool.FindServiceByName(f"{_PACKAGE}.Node")
        self._target, self._timeout = target, timeout
        options = [
            ("grpc.enable_http_proxy", 0),
            ("grpc.max_receive_message_length", -1),
            ("grpc.service_config", self._retries()),
        ]
        if target.startswith("unix:"):
            check_server(target.removeprefix("unix:"))
        if tls is None:
            self._channel = grpc.insecure_channel(target, options)
        else:
            ca, cert, key = (pathlib.Path(file).read_bytes() for file in tls)
            _check_key(pathlib.Path(tls[2]), key)
            credentials = grpc.ssl_channel_credentials(ca, key, cert)
            self._channel = grpc.secure_channel(target, credentials, options)

    def __enter__(self) -> "Node":
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def message(self, name: str, /, **fields: object) -> Message:
        """A new message of package epd.v1; fields are set by name, messages may be dicts."""
        return self._class(self._pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))(**fields)

    def enum_name(self, enum: str, number: int) -> str:
        return self._pool.FindEnumTypeByName(f"{_PACKAGE}.{enum}").values_by_number[number].name

    def call(self, method: str, /, timeout: float | None = None, **fields: object) -> Message:
        """Calls a unary method, one that only reads again where the connection broke; raises grpc.RpcError, of which one is
        NoDaemonError."""
        request, callable_ = self._prepare(method, fields)
        try:
            return callable_(request, timeout=timeout or self._timeout)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                _check_there(self._target)
            raise

    def stream(
        self, method: str, /, timeout: float | None = None, **fields: object
    ) -> collections.abc.Iterator[Message]:
        """Calls a method with a stream of answers; `cancel()` of the result ends it. Raises grpc.RpcError, of which one is
        NoDaemonError."""
        request, callable_ = self._prepare(method, fields)
        _check_there(self._target)
        return callable_(request, timeout=timeout)

    def _retries(self) -> str:
        """gRPC's service configuration."""
        service = self._service.full_name
        names = [name for name in self._service.methods_by_name if name.startswith(_READS)]
        methods = [{"service": service, "method": name} for name in names]
        return json.dumps({"methodConfig": [{"name": methods, "retryPolicy": _RETRY}]})

    def _prepare(self, name: str, fields: dict[str, object]) -> tuple[Message, Any]:
        method = self._service.methods_by_name[name]
        kind = "unary_stream" if method.server_streaming else "unary_unary"
        callable_ = getattr(self._channel, kind)(
            f"/{_PACKAGE}.Node/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=self._class(method.output_type).FromString,
        )
        return self._class(method.input_type)(**fields), callable_

    @staticmethod
    def _class(descriptor: Any) -> type[Message]:
        return message_factory.GetMessageClass(descriptor)
