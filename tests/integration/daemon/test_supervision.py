"""What clients and operators see when the worker dies, hangs or never starts."""

import contextlib
import mmap
import os
import resource
import signal
import struct
import time

import attach_client as attach
import epd_process
import wait
from node_calls import NodeApi

from proto.epd.v1 import attach_pb2
from proto.epd.v1 import node_pb2 as pb

_HEADER_BYTES = 4096
_SLOT_BYTES = 4096
_REPLY_MESSAGE_OFFSET = 64 + 904 + 6 * 8
_ARMED = 1
_UNAVAILABLE = 14
_RESOURCE_EXHAUSTED = 8
_SERVING, _NOT_SERVING = 1, 2


class Slots:
    """The client's view of its slots segment."""

    def __init__(self, client: attach.Client) -> None:
        self._map = mmap.mmap(client.fds[0], 0)

    def arm(self, slot: int) -> None:
        struct.pack_into("<Q", self._map, _HEADER_BYTES + slot * _SLOT_BYTES, _ARMED)

    def word(self, slot: int) -> tuple[int, int]:
        """(ready, done)."""
        return struct.unpack_from("<II", self._map, _HEADER_BYTES + slot * _SLOT_BYTES)

    def message(self, slot: int) -> str:
        start = _HEADER_BYTES + slot * _SLOT_BYTES + _REPLY_MESSAGE_OFFSET
        return self._map[start : start + 2560].split(b"\0")[0].decode()

    def ended(self) -> int:
        return struct.unpack_from("<I", self._map, 64)[0]


def _api(daemon) -> NodeApi:
    return NodeApi(f"unix:{daemon.grpc_socket}")


def _worker(daemon) -> pb.Worker:
    with _api(daemon) as api:
        return api.GetStatus().workers[0]


def test_killed_worker_gives_a_new_epoch_once_the_clients_have_drained(daemon):
    daemon.start()
    with daemon.client() as client:
        client.attach()
        joined = client.join(attach.spec(num_ranks=1), [0])
        os.kill(daemon.worker_pid(), signal.SIGKILL)
        reform = client.expect("reform")
        assert reform.wait and reform.formation == joined.formation
        assert "worker" in reform.cause.message
        drained = attach_pb2.Drained(group_id=joined.group_id, formation=joined.formation)
        client.send(drained=drained)
        again = client.expect("joined")
        assert again.request_id == 0 and again.group_id == joined.group_id
        assert again.epoch == joined.epoch + 1 and again.formation > joined.formation
        assert os.fstat(client.fds[-1]).st_ino != os.fstat(client.fds[2]).st_ino, "new arenas"


def test_open_uses_end_with_unavailable_when_the_worker_is_dead_and_stay_so_until_it_is_back(
    daemon,
):
    daemon.start("--worker_backoff_min=2s")
    with daemon.client() as client:
        client.attach()
        slots = Slots(client)
        worker = daemon.worker_pid()
        slots.arm(7)
        os.kill(worker, signal.SIGKILL)
        wait.until(lambda: slots.word(7) == (0, 1 + _UNAVAILABLE), "the use ends", seconds=1)
        assert "phase=" in slots.message(7)
        assert f" is gone: pid {worker} ended: killed by signal 9" in slots.message(7)
        slots.arm(8)
        wait.until(lambda: slots.word(8) == (0, 1 + _UNAVAILABLE), "a later use ends", seconds=1)


def test_a_stopped_worker_of_an_epd_that_was_killed_goes_on_and_ends(daemon):
    daemon.start(f"--worker={epd_process.binary('epd-worker')}")
    worker = daemon.worker_pid()
    os.kill(worker, signal.SIGSTOP)
    daemon.process.kill()
    daemon.process.wait()
    wait.until(lambda: not os.path.exists(f"/proc/{worker}"), "the stopped worker's end", 10)


def test_a_worker_that_was_stopped_and_goes_on_is_the_same_one(daemon):
    daemon.start(f"--worker={epd_process.binary('epd-worker')}", "--worker_heartbeat=100ms")
    worker = daemon.worker_pid()
    os.kill(worker, signal.SIGSTOP)
    daemon.wait_for_log("worker does not answer")
    os.kill(worker, signal.SIGCONT)
    daemon.wait_for_log("worker answers again")
    with daemon.client() as client:
        client.attach()
        client.join(attach.spec(num_ranks=1), [0])
    assert _worker(daemon).pid == worker


def test_a_worker_without_descriptors_refuses_what_needs_them_and_lives(daemon):
    daemon.start(f"--worker={epd_process.binary('epd-worker')}")
    pid = daemon.worker_pid()
    with daemon.client() as client:  # Its own start is over then.
        client.attach()
        client.join(attach.spec(num_ranks=1), [0])
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    first_free = max(int(name) for name in os.listdir(f"/proc/{pid}/fd")) + 1
    refusals = []
    for room in range(9):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (first_free + room, limits[1]))
        with daemon.client() as client:
            client.attach()
            with contextlib.suppress(BrokenPipeError):  # Refused already.
                client.start_join(attach.spec(num_ranks=1), [0])
            answer = client.receive()
            body = answer.WhichOneof("body")
            if body != "joined":
                status = getattr(answer, body).status
                assert status.code == _RESOURCE_EXHAUSTED, status
                words = ("LimitNOFILE", "Too many open files")
                assert any(word in status.message for word in words), status
                refusals.append(body)
    assert refusals, "the limit was never reached"
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    with daemon.client() as client:
        client.attach()
        client.join(attach.spec(num_ranks=1), [0])
    assert _worker(daemon).pid == pid


def test_worker_death_is_told_with_its_signal_and_a_restart(daemon):
    daemon.start()
    os.kill(daemon.worker_pid(), signal.SIGKILL)
    daemon.wait_for_log("worker ready", count=2)
    worker = _worker(daemon)
    assert worker.state == pb.WORKER_STATE_RUNNING and worker.num_restarts == 1
    assert worker.last_exit == "killed by signal 9 (Killed)"


def test_stopped_worker_leaves_status_quick_and_marked_stale(daemon):
    daemon.start("--worker_heartbeat=100ms")
    worker = daemon.worker_pid()
    os.kill(worker, signal.SIGSTOP)
    with _api(daemon) as api:
        wait.until(lambda: api.GetStatus().worker_snapshot_stale, "figures are stale")
        for call in (api.GetStatus, api.ListGroups, api.ListSessions, api.ListRanks, api.GetMemory):
            start = time.monotonic()
            call(timeout=1)
            assert time.monotonic() - start < 1
        status = api.GetStatus()
        assert status.health == pb.HEALTH_DEGRADED
        assert any(f"pid {worker}" in problem for problem in status.problems)
    os.kill(worker, signal.SIGCONT)


def test_a_stopped_worker_turns_the_node_and_its_groups_not_serving_until_it_answers(daemon):
    daemon.start("--worker_heartbeat=100ms")
    services = ("", "epd.v1.Node", "epd.group/g")

    def all_are(api, status: int) -> bool:
        return all(api.health(service) == status for service in services)

    with _api(daemon) as api, daemon.client() as client:
        client.attach()
        client.join(attach.spec(num_ranks=1), [0])
        wait.until(lambda: all_are(api, _SERVING), "all is well")
        os.kill(daemon.worker_pid(), signal.SIGSTOP)
        wait.until(lambda: all_are(api, _NOT_SERVING), "the worker's silence shows", seconds=5)
        assert api.GetStatus().health == pb.HEALTH_UNHEALTHY
        os.kill(daemon.worker_pid(), signal.SIGCONT)
        wait.until(lambda: all_are(api, _SERVING), "all is well again", seconds=5)


def test_worker_that_answers_nothing_is_killed_and_replaced(daemon):
    # Long enough for a worker that waits for a core, or it would be killed before it is stopped.
    daemon.start("--worker_heartbeat=100ms", "--worker_stuck=4s")
    first = daemon.worker_pid()
    os.kill(first, signal.SIGSTOP)
    daemon.wait_for_log("worker ready", count=2, seconds=30)
    (ended,) = [line for line in daemon.log().splitlines() if f"worker_pid={first} how=" in line]
    assert "by epd: it did not answer for 4s (worker_stuck)" in ended
    assert _worker(daemon).pid not in (0, first)


def test_worker_that_dies_at_its_start_is_tried_ever_more_rarely_and_makes_the_node_unhealthy(
    daemon,
):
    daemon.start("--worker_backoff_min=20ms", "--worker_backoff_max=80ms", quirks="dies_at_start")
    daemon.wait_for_log('event="worker ended"', count=5)
    lines = [line for line in daemon.log().splitlines() if "worker ended" in line]
    waits = [line.split("next_start=")[1] for line in lines[:4]]
    assert waits == ["20ms", "40ms", "80ms", "80ms"]
    with _api(daemon) as api:
        status = api.GetStatus()
        assert status.health != pb.HEALTH_OK
        assert any("exited with status 3" in problem for problem in status.problems)
        findings = {f.what: f for f in api.GetDoctor().findings}
        assert not findings["worker"].ok and findings["worker"].fix


def test_missing_worker_binary_is_named_and_the_daemon_stays_reachable(daemon):
    daemon.start("--worker=/does/not/exist")
    daemon.wait_for_log("cannot run '/does/not/exist'")
    with daemon.client() as client:
        client.attach()
    assert "set --worker" in _worker(daemon).last_exit


def test_ended_session_is_marked_in_its_slots(daemon):
    daemon.start()
    with daemon.client() as client:
        client.attach()
        slots = Slots(client)
        assert slots.ended() == 0
        client.socket.close()
        wait.until(lambda: slots.ended() == 1, "the session is marked as ended", seconds=1)


def test_worker_inherits_nothing_but_its_socket(daemon):
    daemon.start("--listen=127.0.0.1:0")
    with daemon.client() as client:
        client.attach()
        os.kill(daemon.worker_pid(), signal.SIGKILL)
        daemon.wait_for_log("worker ready", count=2)
        folder = f"/proc/{daemon.worker_pid()}/fd"
        links = {fd: os.readlink(f"{folder}/{fd}") for fd in os.listdir(folder)}
        inherited = {fd for fd, link in links.items() if "epd.sock" in link or "pidfd" in link}
        sockets = {fd for fd, link in links.items() if link.startswith("socket:")}
        assert not inherited and sockets == {"3"}, links


def test_operator_commands_reach_a_node_without_nccl(daemon):
    daemon.start(quirks="no_nccl")
    daemon.worker_pid()
    with daemon.client() as client, _api(daemon) as api:
        client.attach()
        client.join(attach.spec(num_ranks=1), [0])
        group = api.ListGroups().groups[0]
        assert group.unique_id_note.startswith("none") and not group.ranks[0].unique_id_sha256
        findings = {f.what: f for f in api.GetDoctor().findings}
        assert not findings["libnccl"].ok
        assert "no libnccl.so.2 for a fake" in findings["libnccl"].found
