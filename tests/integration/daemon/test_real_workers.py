"""Goal: two epds with real workers give all ranks of a group one unique id of the installed NCCL, made anew per epoch,
each shows what the other's ranks did last, and a worker that never answers another one is named."""

import contextlib
import fcntl
import os
import pathlib
import re
import signal
import socket
import threading

import attach_client as attach
import fake_node
import grpc
import hung_rank
import pytest
import running_epd
import wait

from proto.epd.v1 import attach_pb2, wire_pb2


def _listen_address(epd: running_epd.RunningEpd) -> str:
    line = next(line for line in epd.log().splitlines() if 'event="serving"' in line)
    return line.split(" listen=")[1].split()[0]


@pytest.fixture
def pair():
    """The coordinator on 127.0.0.1 and a node that follows it on 127.0.0.2, each with its own epd-worker."""
    with contextlib.ExitStack() as stack:
        flags = ["--node=a", "--listen=127.0.0.1:0", "--start_grace=0"]
        first = stack.enter_context(running_epd.RunningEpd(*flags))
        flags = ["--node=b", "--listen=127.0.0.2:0", f"--coordinator={_listen_address(first)}"]
        second = stack.enter_context(running_epd.RunningEpd(*flags))
        wait.until(
            lambda: second.api.call("GetStatus").coordinator_connected, "b is connected to a"
        )
        for epd in (first, second):
            findings = {f.what: f for f in epd.api.call("GetDoctor").findings}
            assert findings["libnccl"].ok, f"{findings['libnccl'].found}; run deploy/setup"
        yield first, second


@pytest.fixture
def clients(pair):
    """One attached client per epd."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(attach.Client(epd.socket)) for epd in pair]
        for client in made:
            client.attach()
        yield made


def _form(clients, name: str) -> list:
    """Ranks 0 and 1 at the first epd, 2 and 3 at the second; returns the two answers."""
    for client, ranks in zip(clients, ([0, 1], [2, 3]), strict=True):
        client.start_join(attach.spec(name, num_ranks=4), ranks)
    return [client.expect("joined") for client in clients]


def _digests(pair, name: str) -> dict[int, bytes]:
    """What each rank's own worker says of the id that it received."""
    digests = {}
    for epd, node in zip(pair, ("a", "b"), strict=True):
        for rank in epd.api.call("ListRanks", group=name).ranks:
            if rank.node == node:
                digests[rank.rank] = rank.unique_id_sha256
    return digests


def _the_one(digests: dict[int, bytes]) -> bytes:
    assert sorted(digests) == [0, 1, 2, 3]
    assert len(set(digests.values())) == 1, digests
    assert len(digests[0]) == 32
    return digests[0]


def test_two_workers_receive_one_id_of_nccl_and_two_groups_have_two(pair, clients):
    _form(clients, "g")
    _form(clients, "h")
    assert _the_one(_digests(pair, "g")) != _the_one(_digests(pair, "h"))


def _read_only(fd: int) -> bool:
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


def test_a_client_of_the_release_before_gets_an_arena_for_each_rank_of_another_node(pair):
    """Ranks 0 and 1 are of two sessions of node a, which share what is made for them; 2 to 4 are of one of node b."""
    slots, landing = 1, 4  # Bits of Attach.features.
    for name, features, num_arenas in (("new", slots | landing, 3), ("old", slots, 5)):
        with contextlib.ExitStack() as stack:
            made = [stack.enter_context(attach.Client(pair[node].socket)) for node in (0, 0, 1)]
            for client, of_client in zip(
                made, (slots | landing, features, slots | landing), strict=True
            ):
                client.attach(features=of_client)
                while client.fds:  # Of its slots.
                    os.close(client.fds.pop())
            for client, ranks in zip(made, ([0], [1], [2, 3, 4]), strict=True):
                client.start_join(attach.spec(name, num_ranks=5), ranks)
            for client in made[:2]:
                joined = client.expect("joined")
                assert len(joined.arenas) == len(client.fds) == num_arenas, joined
                assert [_read_only(fd) for fd in client.fds] == [not a.own for a in joined.arenas]
                of_others = joined.arenas[2:]
                sizes = [os.fstat(fd).st_size for fd in client.fds]
                assert sizes == [arena.bytes for arena in joined.arenas]
                if num_arenas == 3:
                    assert list(of_others[0].landing_ranks) == [2, 3, 4]
                    assert sizes[2] == 3 * sizes[0]
                else:
                    assert [a.rank for a in of_others] == [2, 3, 4]
                    assert all(not a.landing_ranks for a in joined.arenas)
            # What node a's clients do not take is no matter of node b.
            assert [list(a.landing_ranks) for a in made[2].expect("joined").arenas][0] == [0, 1]


def test_a_replaced_worker_brings_a_new_epoch_and_a_new_id_to_both_nodes(pair, clients):
    joined = _form(clients, "g")
    before = _the_one(_digests(pair, "g"))
    os.kill(pair[1].worker_pid(), signal.SIGKILL)
    for client, told in zip(clients, joined, strict=True):
        client.expect("reform")
        client.send(drained=attach_pb2.Drained(group_id=told.group_id, formation=told.formation))
    again = [client.expect("joined") for client in clients]
    assert again[0].epoch == again[1].epoch > joined[0].epoch
    assert _the_one(_digests(pair, "g")) != before


def test_ids_do_not_reach_the_logs(pair, clients):
    _form(clients, "g")
    digest = _the_one(_digests(pair, "g"))
    for epd in pair:
        assert digest.hex() not in epd.log()


def test_the_last_operations_of_ranks_are_seen_from_another_node(pair):
    with contextlib.ExitStack() as stack:
        ranks = [hung_rank.HungRank(pair[1].socket, rank) for rank in (0, 1)]
        for rank in ranks:
            stack.callback(rank.close)
        for rank in ranks:
            rank.expect("joined")
        for rank in ranks:
            rank.begin("whole")
        for rank in ranks:
            assert rank.result("whole")[0] == 0
        ranks[1].begin("half")

        def waits():
            why = pair[0].api.call("ExplainGroup", name="hung")
            return why if why.culprit else None

        why = wait.until(waits, "the open operation to be old enough to be seen from node a")
        assert why.culprit == "rank 0" and "name=whole" in why.evidence, why
        past = {one.rank: one for one in why.past}
        assert {one.node for one in past.values()} == {"b"}
        assert [one.phase for one in past[0].operations] == ["done"]
        assert [one.phase for one in past[1].operations] == ["announce", "done"]


def _serve(node: fake_node.FakeNode, spec, wire_address: str) -> None:
    """Does what is asked of the node that holds rank 1, until its stream ends."""
    pb = fake_node.pb
    claim = node.claim(spec, 1)
    work = []
    while True:
        node.report(claims=[claim], work=work, wire_address=wire_address, facts={"exchange": 2})
        try:
            view = node.view()
        except (StopIteration, fake_node.grpc.RpcError):
            return
        work = []
        for group in view.groups:
            claim.granted_by, claim.group_id = view.coordinator, group.group_id
            work.append(
                pb.ClusterWork(
                    group_id=group.communicator_id,
                    init_epoch=group.epoch,
                    phase=pb.TENANT_PHASE_NONE,
                )
            )
            if group.started:
                work.append(
                    pb.ClusterWork(
                        group_id=group.group_id,
                        formation=group.formation,
                        phase=pb.TENANT_PHASE_READY,
                        communicator=group.communicator_id,
                    )
                )


def test_a_worker_that_accepts_streams_and_never_answers_is_named_and_hangs_nobody():
    spec = attach.spec("g", num_ranks=2)
    with contextlib.ExitStack() as stack:
        mute = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = mute.getsockname()[1]
        # It reports only what is new, which must do for all of the test.
        flags = ["--node=a", "--listen=127.0.0.1:0", "--start_grace=0", "--heartbeat=10s"]
        epd = stack.enter_context(running_epd.RunningEpd(*flags))
        node = stack.enter_context(fake_node.FakeNode(_listen_address(epd), "m"))
        client = stack.enter_context(attach.Client(epd.socket))
        client.attach()
        client.start_join(spec, [0])
        serving = threading.Thread(target=_serve, args=(node, spec, f"127.0.0.1:{port},{port}"))
        serving.start()
        stack.callback(serving.join)
        stack.callback(node.__exit__)
        client.expect("joined")
        cause = client.expect("reform").cause
        assert cause.code == 14, cause
        assert f"the stream to node m cpu at 127.0.0.1:{port} is lost" in cause.message, cause
        assert "rank=1" in cause.message, cause
        assert epd.api.call("GetStatus").workers[0].pid == epd.worker_pid() != 0


def _wire_version() -> int:
    """Of the protocol between workers, as this source speaks it."""
    frame = pathlib.Path(__file__).resolve().parents[3] / "daemon/worker/peer_streams/frame.h"
    return int(re.search(r"kWireVersion = (\d+);", frame.read_text())[1])


def _ports(pid: int) -> list[int]:
    """At which the process listens."""
    folder = f"/proc/{pid}/fd"
    inodes = {os.readlink(f"{folder}/{fd}")[8:-1] for fd in os.listdir(folder)}
    rows = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/{pid}/net/{name}")]
    return [int(row[1][-4:], 16) for row in rows if row[3] == "0A" and row[9] in inodes]


def test_a_stranger_at_a_workers_port_is_refused_and_logged(pair, clients):
    """It knows the workers' numbers, and nothing that a formation has told them."""
    _form(clients, "g")
    first, second = (epd.api.call("GetStatus").workers[0] for epd in pair)
    hello = wire_pb2.WireHello(version=_wire_version(), node="b", stream_kind=1, nonce=bytes(32))
    setattr(hello, "from", second.worker_incarnation)
    hello.to = first.worker_incarnation
    proof = b"\x01\0\0\0" + wire_pb2.WireHello(proof=bytes(32)).SerializeToString()
    message = b"\x02\0\0\0" + wire_pb2.WireMessage(step=1).SerializeToString()
    for port in _ports(first.pid):
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.stream_stream("/epd.v1.Wire/Stream")
            said = (("epd-hello-bin", hello.SerializeToString()),)
            for buffer, code in (
                (message, grpc.StatusCode.INVALID_ARGUMENT),
                (proof, grpc.StatusCode.UNAUTHENTICATED),
            ):
                with pytest.raises(grpc.RpcError) as refused:
                    next(call(iter([buffer]), timeout=10, metadata=said))
                assert refused.value.code() == code, refused.value
    wait.until(lambda: "does not know what a formation tells" in pair[0].log(), "a line in the log")
