"""Whatever a client sends or does not read, epd answers with a reason and goes on serving the others."""

import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys

import attach_client as attach
import epd_process
import pytest
import wait

from proto.epd.v1 import attach_pb2 as pb

_INVALID_ARGUMENT = 3
_DEADLINE_EXCEEDED = 4
_PERMISSION_DENIED = 7
_RESOURCE_EXHAUSTED = 8


@pytest.fixture
def served(daemon):
    """A daemon that must still serve a healthy client at the end, without having lost a descriptor."""
    daemon.start()
    daemon.worker_pid()
    descriptors = f"/proc/{daemon.process.pid}/fd"
    with daemon.client() as client:
        client.attach()
        client.join(attach.spec("before", num_ranks=1), [0])
    before = len(os.listdir(descriptors))
    yield daemon
    with daemon.client() as client:
        client.attach()
        client.join(attach.spec("after", num_ranks=1), [0])
    wait.until(lambda: len(os.listdir(descriptors)) <= before, "no descriptor is lost")


def _goodbye(client: attach.Client, code: int) -> str:
    status = client.expect("goodbye").status
    assert status.code == code, status
    assert client.receive() is None
    return status.message


def _epctl(daemon: epd_process.Daemon, *words: str) -> dict:
    done = subprocess.run(
        [epd_process.binary("epctl"), f"--socket={daemon.socket}", "-o", "json", *words],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "data",
    [b"\xff" * 100, b"garbage", b"\x0a\x50", b"\x0a\xff\xff\xff\xff\x0f"],
    ids=["ones", "text", "cut off", "long length"],
)
def test_garbage_instead_of_attach_is_answered_and_closed(served, data):
    with served.client() as client:
        client.socket.send(data)
        assert "expected a ClientMessage with `attach`" in _goodbye(client, _INVALID_ARGUMENT)


def test_every_truncation_of_a_join_is_survived(served):
    whole = pb.ClientMessage(
        join=pb.Join(request_id=1, spec=attach.spec(), ranks=[0])
    ).SerializeToString()
    for length in range(1, len(whole)):
        with served.client() as client:
            client.attach()
            client.socket.send(whole[:length])
            message = client.receive()
            kind = message.WhichOneof("body") if message else None
            assert kind in ("goodbye", "join_failed"), (length, message)


def test_garbage_on_an_attached_session_ends_it_with_a_reason(served):
    with served.client() as client:
        client.attach()
        client.socket.send(b"\xff" * 10)
        assert "10 bytes that are no ClientMessage" in _goodbye(client, _INVALID_ARGUMENT)


def test_message_that_is_too_long_ends_the_session(served):
    with served.client() as client:
        client.attach()
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        try:
            client.socket.send(b"x" * (256 * 1024 + 1))
        except OSError:
            pytest.skip("this kernel does not let a client send so much at once")
        assert "longer than 262144 bytes" in _goodbye(client, _INVALID_ARGUMENT)


def test_descriptors_that_nobody_asked_for_are_closed_and_end_the_session(served):
    for count in (1, 200, 253):
        with served.client() as client:
            client.attach()
            socket.send_fds(client.socket, [b"\x1a\x00"], [0] * count)
            assert "descriptors" in _goodbye(client, _INVALID_ARGUMENT)


def test_second_attach_and_a_drained_of_nonsense_end_the_session(served):
    with served.client() as client:
        client.attach()
        client.send(attach=pb.Attach(min_version=1, max_version=1))
        assert "Attach on an attached session" in _goodbye(client, _INVALID_ARGUMENT)
    with served.client() as client:
        client.attach()
        drained = pb.Drained(group_id=1, formation=1)
        drained.counts.add(rank=0, program=b"short", begun=1)
        client.send(drained=drained)
        assert "a program of 5 bytes, expected 16" in _goodbye(client, _INVALID_ARGUMENT)


@pytest.mark.parametrize(
    "name",
    ["x" * 199 + "\u00e9", "x" * 198 + "\u4e16", "x" * 197 + "\U0001f600" * 9, "\x1b[31m\n" * 50],
    ids=["two bytes", "three bytes", "four bytes", "control characters"],
)
def test_client_name_that_is_cut_inside_a_character_leaves_the_worker_alone(served, name):
    worker = served.worker_pid()
    with served.client() as client:
        client.attach(client_name=name, client_version=name)
        client.join(attach.spec("named", num_ranks=1), [0], devices=[name])
        sessions = _epctl(served, "sessions")["sessions"]
        ranks = _epctl(served, "ranks", "named")["ranks"]
        shown = [sessions[-1]["client_name"], ranks[0]["client_name"], ranks[0]["device"]]
        assert all(text and text.isprintable() for text in shown), shown
        assert name.startswith(shown[0]) or "?" in shown[0]
    assert served.worker_pid() == worker, "no worker was started again"


def test_device_name_is_shown_to_its_limit(served):
    with served.client() as client:
        client.attach()
        client.join(attach.spec("two", num_ranks=2), [0, 1], devices=["d" * 64, "d" * 65])
        ranks = _epctl(served, "ranks", "two")["ranks"]
        assert [rank["device"] for rank in ranks] == ["d" * 64, "d" * 64]


def test_drained_and_leave_of_unknown_groups_do_no_harm(served):
    with served.client() as client:
        client.attach()
        client.send(drained=pb.Drained(group_id=12345, formation=99))
        client.send(leave=pb.Leave(request_id=5, group_id=12345))
        assert client.expect("left").request_id == 5


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": ""}, "name"),
        ({"name": "with space"}, "name"),
        ({"num_ranks": 0}, "num_ranks"),
        ({"num_ranks": 1 << 30}, "num_ranks"),
        ({"num_experts": 0}, "num_experts"),
        ({"max_token_dtype": 0}, "dtype"),
        ({"max_token_dtype": 77}, "max_token_dtype"),
        ({"executor": 9}, "executor"),
        ({"hidden": 0}, "hidden"),
        ({"backend": "quantum"}, "backend"),
    ],
)
def test_bad_spec_is_answered_with_the_field(served, fields, says):
    with served.client() as client:
        client.attach()
        client.start_join(attach.spec(**fields), [0])
        status = client.expect("join_failed").status
        assert status.code == _INVALID_ARGUMENT and says in status.message


@pytest.mark.parametrize("ranks", [[], [2], [0, 0], [4294967295]])
def test_bad_ranks_are_answered(served, ranks):
    with served.client() as client:
        client.attach()
        client.start_join(attach.spec(), ranks)
        assert client.expect("join_failed").status.code == _INVALID_ARGUMENT


def test_client_that_never_reads_is_ended_and_blocks_nobody(served):
    with served.client() as deaf, served.client() as other:
        deaf.attach()
        other.attach()
        deaf.socket.setblocking(True)
        leave = pb.ClientMessage(leave=pb.Leave(request_id=1, group_id=1)).SerializeToString()
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(100_000):
                deaf.socket.send(leave)
        served.wait_for_log("the peer does not read")
        other.join(attach.spec("other", num_ranks=1), [0])


def test_connection_that_never_attaches_costs_no_session_and_is_ended(served):
    with served.client() as silent, served.client() as other:
        other.attach()
        silent.socket.settimeout(20)
        assert "no Attach within 10s" in _goodbye(silent, _DEADLINE_EXCEEDED)


def test_session_ends_with_its_process_although_a_child_keeps_the_socket(served):
    script = (
        "import os, sys, time; sys.path[:0] = sys.argv[2:]; import attach_client as attach\n"
        "client = attach.Client(sys.argv[1]); client.attach()\n"
        "client.join(attach.spec('held', num_ranks=1), [0])\n"
        "child = os.fork()\n"
        "if child == 0: os.close(1); os.close(2); time.sleep(60)\n"
        "print(child, flush=True)\n"
        "os._exit(0)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, served.socket, *epd_process.import_paths()],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=20,
    )
    child = int(ended.stdout)
    try:
        served.wait_for_log("the client's process has ended")
        with served.client() as client:
            client.attach()
            client.join(attach.spec("held", num_ranks=1), [0])
    finally:
        os.kill(child, signal.SIGKILL)


def test_sessions_have_a_limit_that_is_named(daemon):
    daemon.start("--max_sessions=1")
    with daemon.client() as first, daemon.client() as second:
        first.attach()
        second.send(attach=pb.Attach(min_version=1, max_version=1))
        assert "max_sessions" in _goodbye(second, _RESOURCE_EXHAUSTED)


def test_groups_have_a_limit_that_is_named(daemon):
    daemon.start("--max_groups=1")
    with daemon.client() as client:
        client.attach()
        client.join(attach.spec("one", num_ranks=1), [0])
        client.start_join(attach.spec("two", num_ranks=1), [0])
        status = client.expect("join_failed").status
        assert status.code == _RESOURCE_EXHAUSTED and "max_groups" in status.message


def test_full_memory_quota_is_told_and_the_next_client_is_served(served):
    pid = served.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with served.client() as client:
            client.send(attach=pb.Attach(min_version=1, max_version=1))
            message = _goodbye(client, _RESOURCE_EXHAUSTED)
            assert "cannot make the segment" in message and "raise the memory" in message
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


def test_running_out_of_descriptors_is_told_and_passes(served):
    pid = served.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
    clients = []
    try:
        # Connections that say nothing fill what is free below the limit, until one is refused.
        for _ in range(50):
            clients.append(served.client())
            if select.select([clients[-1].socket], [], [], 0.2)[0]:
                break
        assert "epd has no descriptors left" in _goodbye(clients[-1], _RESOURCE_EXHAUSTED)
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        for client in clients:
            client.close()


def test_epd_rests_when_it_cannot_even_refuse(served):
    pid = served.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with served.client() as client:
            client.socket.settimeout(1)
            with pytest.raises(TimeoutError):
                client.receive()
            tries = served.log().count("no descriptors left for a client")
            assert 1 <= tries < 50, "it tries again now and then, and does not spin"
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
            client.socket.settimeout(attach.DEADLINE_S)
            client.attach()
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_another_user_is_told_that_this_daemon_is_not_theirs(open_daemon):
    open_daemon.start()
    script = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(10); s.connect(sys.argv[1])\n"
        "sys.stdout.buffer.write(s.recv(65536))\n"
    )
    command = [
        "setpriv",
        "--reuid=65534",
        "--clear-groups",
        "/usr/bin/python3",
        "-c",
        script,
        open_daemon.socket,
    ]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=20).stdout
    status = pb.ServerMessage.FromString(answer).goodbye.status
    assert status.code == _PERMISSION_DENIED
    assert "uid 65534" in status.message and "expected uid 0" in status.message
    assert open_daemon.stop() == 0
