"""Goal: a message that cannot be taken ends the session or group that it belongs to, and says so; epd and its real
worker go on."""

import contextlib
import mmap
import os
import signal

import attach_client as attach
import cluster_secret
import grpc
import pytest
import running_epd
import wait

from proto.epd.v1 import attach_pb2 as pb
from proto.epd.v1 import cluster_pb2 as cluster

_DATA_LOSS = 15
_RESOURCE_EXHAUSTED = 8


@pytest.fixture
def epd():
    with running_epd.RunningEpd() as running:
        yield running


@contextlib.contextmanager
def _client(epd: running_epd.RunningEpd, **fields: object):
    with attach.Client(epd.socket) as client:
        client.attach(**fields)
        yield client


def _restarts(epd: running_epd.RunningEpd) -> int:
    return epd.api.call("GetStatus").workers[0].num_restarts


def _replace_worker(epd: running_epd.RunningEpd) -> None:
    before = epd.worker_pid()
    os.kill(before, signal.SIGKILL)
    wait.until(lambda: epd.worker_pid() not in (0, before), "another worker runs")


def test_slots_that_a_client_has_written_over_end_its_session_alone(epd):
    with _client(epd) as hostile, _client(epd) as healthy:
        healthy.join(attach.spec("healthy", num_ranks=1), [0])
        slots = mmap.mmap(hostile.fds[0], 0)
        slots[:4096] = b"\xff" * 4096
        _replace_worker(epd)
        goodbye = hostile.expect("goodbye").status
        assert goodbye.code == _DATA_LOSS and "no slots segment" in goodbye.message
        reform = healthy.expect("reform")
        healthy.send(drained=pb.Drained(group_id=reform.group_id, formation=reform.formation))
        healthy.expect("joined")
        assert _restarts(epd) == 1, epd.log()


def test_requests_that_do_not_parse_are_refused_and_do_not_fill_the_log(epd):
    spec = bytes([0x0A, 4]) + b"\xff\xfe\xfd\xfc"  # GroupSpec.name, which is no UTF-8.
    request = bytes([0x0A, len(spec)]) + spec
    before = len(epd.log())
    with grpc.insecure_channel("unix:" + epd.grpc_socket) as channel:
        create = channel.unary_unary("/epd.v1.Node/CreateGroup")
        for _ in range(500):
            with pytest.raises(grpc.RpcError) as refused:
                create(request, timeout=10)
            # gRPC's own word, which never calls epd; other versions of it say INTERNAL.
            assert refused.value.code().name in ("UNIMPLEMENTED", "INTERNAL")
    said = epd.log()[before:]
    assert len(said) < 4096 and said.count("invalid UTF-8") <= 5, said[:8192]
    assert epd.api.call("GetStatus").workers


def test_group_that_does_not_fit_into_a_message_fails_alone_and_names_the_limit(epd):
    with _client(epd) as first, _client(epd) as second, _client(epd) as other:
        for rank, client in enumerate([first, second]):
            client.start_join(attach.spec("wide", num_ranks=3), [rank])
        with _client(epd) as third:
            third.start_join(attach.spec("wide", num_ranks=3), [2])
            for client in (first, second, third):
                client.expect("joined")
        worker = epd.worker_pid()
        reforms = [client.expect("reform") for client in (first, second)]
        drained = pb.Drained(group_id=reforms[0].group_id, formation=reforms[0].formation)
        for number in range(5500):
            drained.counts.add(rank=0, program=number.to_bytes(16, "big"), begun=1 << 60)
        first.send(drained=drained)
        second.send(
            drained=pb.Drained(group_id=reforms[1].group_id, formation=reforms[1].formation)
        )
        with _client(epd) as third:
            third.start_join(attach.spec("wide", num_ranks=3), [2])
            assert first.expect("reform").wait, "all ranks are there again"
            status = first.expect("group_ended").status
            assert status.code == _RESOURCE_EXHAUSTED, status
            assert "kDatagramBytes" in status.message and "counts of programs" in status.message
        other.join(attach.spec("other", num_ranks=1), [0])
        assert epd.worker_pid() == worker, epd.log()


@pytest.fixture
def listening():
    with running_epd.RunningEpd("--listen=127.0.0.1:0") as running:
        line = next(line for line in running.log().splitlines() if 'event="serving"' in line)
        yield running, line.split(" listen=")[1].split()[0]


def test_garbage_of_another_epd_ends_its_stream_alone(listening):
    epd, address = listening
    worker = epd.worker_pid()
    for data in (b"", b"\xff" * 100, b"\x0a\x01\xff", b"\x0a\x03a\nb", b"x" * (16 << 20 | 1)):
        with grpc.insecure_channel(address) as channel:
            sync = channel.stream_stream("/epd.v1.Cluster/Sync")
            proof = cluster_secret.metadata(cluster, channel, "n")
            with pytest.raises(grpc.RpcError):
                list(sync(iter([data]), timeout=20, metadata=proof))
    assert epd.log().count("node's stream ended") >= 2, epd.log()
    report = cluster.NodeReport(node="n" * 201, incarnation=5, max_protocol=2)
    with grpc.insecure_channel(address) as channel:
        sync = channel.stream_stream("/epd.v1.Cluster/Sync")
        proof = cluster_secret.metadata(cluster, channel, "n")
        with pytest.raises(grpc.RpcError) as refused:
            list(sync(iter([report.SerializeToString()]), timeout=20, metadata=proof))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "report.node" in refused.value.details()
    with _client(epd) as client:
        client.join(attach.spec("after", num_ranks=1), [0])
    assert epd.worker_pid() == worker


def test_error_of_a_call_fits_into_its_answer_whatever_the_call_names(epd):
    for name in ("x" * 300_000, "\x1b" * 3000):
        with pytest.raises(grpc.RpcError) as refused:
            epd.api.call("DrainGroup", name=name)
        assert refused.value.code() == grpc.StatusCode.NOT_FOUND, refused.value
        assert len(refused.value.details()) <= 2560 and refused.value.details().isprintable()
