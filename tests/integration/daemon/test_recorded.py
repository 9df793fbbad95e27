"""Goal: what the first release said, byte for byte, still works: its client and its node with today's epd, today's
client and node with its answers. Only its slots segment, of version 1, is refused, and both versions are named."""

import collections.abc
import concurrent.futures
import contextlib
import fcntl
import os
import queue
import socket
import struct
import subprocess
import sys
import threading

import attach_client as attach
import cluster_secret
import epd_process  # noqa: F401  (makes the protos importable)
import fake_node
import grpc
import hung_rank
import pytest
import recordings
import wait

from proto.epd.v1 import attach_pb2

_RELEASE = "0.1.0"
_SEGMENT_BYTES_AT = 16  # In SlotsHeader, after magic, version and header_bytes.
_AREAS_AT = 320


def _kinds(messages: list[recordings.Message]) -> list[str]:
    return [
        attach_pb2.ServerMessage.FromString(one.data).WhichOneof("body")
        for one in recordings.said(messages, "<")
    ]


def test_a_recorded_client_is_served(daemon):
    daemon.start("--node=a")
    recorded = [recordings.load(f"{_RELEASE}-attach-rank{rank}") for rank in (0, 1)]
    assert _kinds(recorded[0]) == _kinds(recorded[1]) == ["attached", "joined"]
    with daemon.client() as first, daemon.client() as second:
        for client, messages in zip((first, second), recorded, strict=True):
            for message in recordings.said(messages, ">"):
                client.socket.send(message.data)
        for client in (first, second):
            assert client.expect("attached").version == 1
            joined = client.expect("joined")
            assert sorted(arena.rank for arena in joined.arenas) == [0, 1]
            assert [member.rank for member in joined.members] == [0, 1]


def _memory(name: str, num_bytes: int, begin: bytes = b"") -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, num_bytes)
    os.pwrite(fd, begin, 0)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


def _descriptors(message: recordings.Message, header: bytes) -> list[int]:
    """What came along with a recorded answer, made anew."""
    answer = attach_pb2.ServerMessage.FromString(message.data)
    if answer.HasField("attached"):
        (num_bytes,) = struct.unpack_from("<Q", header, _SEGMENT_BYTES_AT)
        fds = [_memory("slots", num_bytes, header), os.eventfd(0, os.EFD_CLOEXEC)]
    else:
        fds = [_memory("arena", arena.bytes) for arena in answer.joined.arenas]
    assert len(fds) == message.num_fds
    return fds


def _as_version_2(header: bytes) -> bytes:
    """A recorded header of version 1 as version 2 lays it out (segment.h)."""
    magic, _, header_bytes, segment_bytes = struct.unpack_from("<QIIQ", header)
    session, incarnation = struct.unpack_from("<QQ", header, 32)
    slots = struct.pack("<QII", header_bytes, 4096, segment_bytes // 4096 - 1)
    eager_buffers = struct.pack("<QII", 0, 256 << 10, 8)
    page = bytearray(len(header))
    numbers = (magic, 2, header_bytes, segment_bytes, session, incarnation, 3, 0)
    struct.pack_into("<QIIQQQII", page, 0, *numbers)
    page[_AREAS_AT : _AREAS_AT + 48] = (
        slots + slots + eager_buffers
    )  # The words stand in the slots.
    return bytes(page)


@contextlib.contextmanager
def _recorded_daemon(folder, make_header) -> collections.abc.Iterator[list[str | None]]:
    """Gives one client the recorded answers; a list of what it asked, whole at the end."""
    recorded = recordings.load(f"{_RELEASE}-attach-rank0")
    (page,) = [message.data for message in recorded if message.direction == "="]
    header = make_header(page)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(folder / "epd.sock"))
    listener.listen(1)
    asked: list[str | None] = []

    def serve() -> None:
        client, _ = listener.accept()
        for message in recordings.said(recorded, "<"):
            data = client.recv(1 << 16)
            if not data:
                return
            asked.append(attach_pb2.ClientMessage.FromString(data).WhichOneof("body"))
            fds = _descriptors(message, header)
            socket.send_fds(client, [message.data], fds)
            for fd in fds:
                os.close(fd)
        client.recv(1)
        client.close()

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    yield asked
    server.join(attach.DEADLINE_S)


def _answer(tmp_path, expected: str, make_header) -> tuple[str, list[str | None]]:
    """What today's client says behind `expected` to the recorded answers, and what it asked."""
    with _recorded_daemon(tmp_path, make_header) as asked:
        with contextlib.closing(hung_rank.HungRank(str(tmp_path / "epd.sock"), 0)) as rank:
            text = rank.expect(expected)
    return text, asked


def test_todays_client_joins_with_recorded_answers(tmp_path):
    _, asked = _answer(tmp_path, "joined", _as_version_2)
    assert asked == ["attach", "join"]


def test_the_first_releases_segment_is_refused_with_both_versions(tmp_path):
    text, asked = _answer(tmp_path, "refused", bytes)
    assert text.startswith("[epd:UNIMPLEMENTED]")
    assert "is of version 1, this side reads version 2; upgrade the older one" in text
    assert asked == ["attach"]


# The Python package's library, with the words that its users read.
_CONNECT = """
import sys
from epd import _environment, _program
from epd._errors import EpError
path = _environment.library_path("EPD_PROGRAM_LIBRARY", "libepd_program.so")
try:
    _program.Library(path).connect(sys.argv[1])
except EpError as error:
    print(error)
"""


def _of_version(version: int):
    """Makes a recorded header one of that version."""

    def make(header: bytes) -> bytes:
        page = bytearray(_as_version_2(header))
        struct.pack_into("<I", page, 8, version)  # Behind the magic.
        return bytes(page)

    return make


@pytest.mark.parametrize("version", [1, 9], ids=["older daemon", "newer daemon"])
def test_a_package_that_does_not_fit_the_daemon_says_first_what_to_install(tmp_path, version):
    with _recorded_daemon(tmp_path, _of_version(version)):
        command = [sys.executable, "-c", _CONNECT, str(tmp_path / "epd.sock")]
        ended = subprocess.run(command, check=True, text=True, capture_output=True, timeout=60)
    remedy = "[epd:UNIMPLEMENTED] install the same version of epd on both sides: "
    assert ended.stdout.startswith(remedy), ended
    assert f"is of version {version}, this side reads version 2" in ended.stdout


@pytest.fixture
def coordinator(daemon):
    return daemon.start("--node=a", "--listen=127.0.0.1:0", "--start_grace=0")


def _grant(node: fake_node.FakeNode):
    """The first view that says that the node's claim is granted, with the group."""
    for _ in range(20):
        view = node.view()
        if view.groups and view.claims:
            return view
    raise AssertionError("no view with the node's group")


def test_a_recorded_node_is_answered_in_its_own_protocol(coordinator):
    recorded = recordings.said(recordings.load(f"{_RELEASE}-sync"), ">")
    reports = [fake_node.pb.NodeReport.FromString(one.data) for one in recorded]
    first_claim = next(i for i, report in enumerate(reports) if report.claims)
    assert (reports[0].node, reports[0].max_protocol) == ("o", 1)
    with fake_node.FakeNode(coordinator.listen_address(), "o", recorded[0].data) as node:
        assert node.view().node_incarnation == reports[0].incarnation
        for one in recorded[1 : first_claim + 1]:
            node.send(one.data)
        view = _grant(node)
        assert view.report_seq == reports[first_claim].seq
        (group,) = view.groups
        assert [member.rank for member in group.members] == [1]
        assert not group.HasField("member_columns"), "it does not know this field"


def test_a_node_of_today_gets_members_in_columns(coordinator):
    versions = {"min_protocol": 1, "max_protocol": 2}
    with fake_node.FakeNode(coordinator.listen_address(), "n", **versions) as node:
        node.view()
        node.report(claims=[node.claim(attach.spec("g"), 1)])
        (group,) = _grant(node).groups
        assert list(group.member_columns.ranks) == [1] and not group.members
        (at,) = group.member_columns.nodes
        assert group.member_columns.texts[at] == "n"


def test_todays_node_follows_a_recorded_coordinator(daemon):
    recorded = recordings.said(recordings.load(f"{_RELEASE}-sync"), "<")
    said: queue.Queue = queue.Queue()

    def sync(reports, _context):
        """Its views as they were, but for the name and the run of the node that they are for."""
        for report, message in zip(reports, recorded, strict=False):
            said.put(report)
            view = fake_node.pb.ClusterView.FromString(message.data)
            view.node, view.node_incarnation = report.node, report.incarnation
            yield view
        for report in reports:
            said.put(report)
            yield view

    handler = grpc.stream_stream_rpc_method_handler(
        sync,
        request_deserializer=fake_node.pb.NodeReport.FromString,
        response_serializer=fake_node.pb.ClusterView.SerializeToString,
    )
    challenge = grpc.unary_unary_rpc_method_handler(
        lambda request, _: cluster_secret.answer(fake_node.pb, request),
        request_deserializer=fake_node.pb.ChallengeRequest.FromString,
        response_serializer=fake_node.pb.ChallengeResponse.SerializeToString,
    )
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads)
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "epd.v1.Cluster", {"Challenge": challenge, "Sync": handler}
                ),
            )
        )
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        daemon.start("--node=n", f"--coordinator=127.0.0.1:{port}", "--heartbeat=200ms")
        daemon.wait_for_log("coordinator connected")
        coordinator = fake_node.pb.ClusterView.FromString(recorded[0].data).coordinator

        def follows() -> bool:
            return said.get(timeout=attach.DEADLINE_S).coordinator == coordinator

        wait.until(follows, "the node to report that it follows the recorded coordinator")
        assert daemon.stop() == 0, daemon.log()
        server.stop(None).wait()
