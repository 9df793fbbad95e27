"""Goal: a node that is lost is named in time, a partition heals, and peers that hang or babble hang nobody."""

import contextlib
import os
import signal
import socket
import threading
import time

import attach_client as attach
import epd_process
import namespaces
import pytest
import wait
from node_calls import NodeApi

from proto.epd.v1 import node_pb2 as pb

_HEARTBEAT_S = 0.5
_SERVING, _NOT_SERVING = 1, 2


@pytest.fixture
def start():
    running = []

    def make(folder, name: str, *flags: str, wrap: tuple[str, ...] = ()) -> epd_process.Daemon:
        (folder / name).mkdir()
        daemon = epd_process.Daemon(folder / name)
        running.append(daemon)
        heartbeat = f"--heartbeat={int(_HEARTBEAT_S * 1000)}ms"
        return daemon.start(f"--node={name}", "--start_grace=0", heartbeat, *flags, wrap=wrap)

    yield make
    for daemon in reversed(running):
        if daemon.process.poll() is None:
            daemon.process.send_signal(signal.SIGCONT)
            assert daemon.stop() == 0, daemon.log()


def _form(daemons, group: str):
    clients = [daemon.client() for daemon in daemons]
    for rank, client in enumerate(clients):
        client.attach()
        client.start_join(attach.spec(group, num_ranks=len(clients)), [rank])
    return clients, [client.expect("joined") for client in clients]


@pytest.mark.skipif(bool(namespaces.allowed()), reason=f"no namespaces: {namespaces.allowed()}")
def test_a_cut_node_is_named_in_three_heartbeats_and_comes_back_in_a_new_epoch(tmp_path, start):
    with namespaces.Network(3) as network:
        first = start(tmp_path, "a", f"--listen={network.addresses[0]}:0", wrap=network.inside(0))
        follow = f"--coordinator={first.listen_address()}"
        others = [start(tmp_path, "bc"[i], follow, wrap=network.inside(i + 1)) for i in range(2)]
        clients, joined = _form([first, *others], "g")
        network.cut(2)
        begin = time.monotonic()
        for client in clients[:2]:
            reform = client.expect("reform")
            assert "node c" in reform.cause.message and reform.cause.code == 14, reform
        assert time.monotonic() - begin < 3 * _HEARTBEAT_S + 0.25
        network.heal(2)
        others[1].wait_for_log("coordinator connected", count=2)
        ended = clients[2].receive()  # Its membership was given up.
        assert ended.WhichOneof("body") in ("reform", "group_ended"), ended
        for client, answer in zip(clients[:2], joined, strict=False):
            client.send(drained={"group_id": answer.group_id, "formation": answer.formation})
        back = others[1].client()
        back.attach()
        back.start_join(attach.spec("g", num_ranks=3), [2])
        for client in clients[:2]:
            assert client.expect("reform").wait, "all ranks are there again"
        again = [client.expect("joined") for client in (clients[0], clients[1], back)]
        assert {one.epoch for one in again} == {again[0].epoch}
        assert again[0].epoch > joined[0].epoch
        for client in [*clients, back]:
            client.close()


def test_a_coordinator_that_accepts_and_never_answers_is_named_and_hangs_nobody(tmp_path, start):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        node = start(tmp_path, "b", f"--coordinator={address}")
        with node.client() as client:
            client.attach()
            client.start_join(attach.spec("g", num_ranks=1), [0], deadline={"seconds": 1})
            assert "coordinator" in client.expect("join_failed").status.message
        with NodeApi(f"unix:{node.grpc_socket}") as api:
            assert address in " ".join(api.GetStatus().problems)


def test_a_stopped_coordinator_is_noticed_and_found_again(tmp_path, start):
    first = start(tmp_path, "a", "--listen=127.0.0.1:0")
    second = start(tmp_path, "b", f"--coordinator={first.listen_address()}")
    second.wait_for_log("coordinator connected")
    lost, found = (second.log().count(f"coordinator {what}") for what in ("lost", "connected"))
    first.process.send_signal(signal.SIGSTOP)
    second.wait_for_log("coordinator lost", lost + 1)
    first.process.send_signal(signal.SIGCONT)
    second.wait_for_log("coordinator connected", found + 1)
    clients, _ = _form([first, second], "g")
    for client in clients:
        client.close()


def test_a_node_without_coordinator_and_peers_shows_that_its_group_does_not_serve(tmp_path, start):
    first = start(tmp_path, "a", "--listen=127.0.0.1:0")
    second = start(tmp_path, "b", f"--coordinator={first.listen_address()}")
    clients, _ = _form([first, second], "g")
    with NodeApi(f"unix:{second.grpc_socket}") as api:
        wait.until(lambda: api.health("epd.group/g") == _SERVING, "the group serves")
        first.process.send_signal(signal.SIGSTOP)
        second.wait_for_log("coordinator lost")
        os.kill(second.worker_pid(), signal.SIGUSR1)
        wait.until(lambda: api.health("epd.group/g") == _NOT_SERVING, "it is told", seconds=5)
        (group,) = api.ListGroups(name="g").groups
        assert group.state == pb.GROUP_STATE_DEGRADED
        assert group.last_error.message.endswith("the worker of node a is out of reach")
        assert "ready" not in {rank.phase for rank in group.ranks}
        status = api.GetStatus()
        assert status.health == pb.HEALTH_DEGRADED and status.num_ready_groups == 0
        assert any("group g" in problem for problem in status.problems), status
        assert api.health() == _SERVING, "groups that form without the coordinator's node go on"
    first.process.send_signal(signal.SIGCONT)
    for client in clients:
        client.close()


def test_a_coordinator_that_speaks_garbage_is_refused(tmp_path, start):
    def babble(server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = server.accept()
                with peer, contextlib.suppress(OSError):
                    peer.sendall(os.urandom(4096))

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=babble, args=(server,), daemon=True).start()
        node = start(tmp_path, "b", f"--coordinator=127.0.0.1:{server.getsockname()[1]}")
        node.wait_for_log("coordinator lost")
        assert "coordinator connected" not in node.log()


def test_garbage_and_half_open_connections_do_not_disturb_a_coordinator(tmp_path, start):
    first = start(tmp_path, "a", "--listen=127.0.0.1:0")
    host, _, port = first.listen_address().rpartition(":")
    with contextlib.ExitStack() as held:
        for i in range(50):
            peer = held.enter_context(socket.create_connection((host, int(port))))
            if i % 2:
                peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(512))
        second = start(tmp_path, "b", f"--coordinator={first.listen_address()}")
        second.wait_for_log("coordinator connected")
        clients, _ = _form([first, second], "g")
        for client in clients:
            client.close()
