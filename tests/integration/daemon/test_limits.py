"""Several users on one node: each has its own share, and none has anything of another."""

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator

import attach_client as attach
import epd_process
import grpc
import pytest
import wait
from node_calls import NodeApi

from proto.epd.v1 import attach_pb2 as pb

_PERMISSION_DENIED = 7
_RESOURCE_EXHAUSTED = 8

_PAGE_BYTES = 4096
_ALICE = 61001
_BOB = 61002

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")


@pytest.fixture
def shared(open_daemon):
    """An epd for Alice and Bob; started by the test."""
    start = open_daemon.start
    open_daemon.start = lambda *flags, **more: start(
        f"--attach_uids={_ALICE},{_BOB}", *flags, **more
    )
    return open_daemon


def _epctl(daemon: epd_process.Daemon, *words: str, json_output: bool = True):
    done = subprocess.run(
        [
            epd_process.binary("epctl"),
            f"--socket={daemon.socket}",
            *(["-o", "json"] if json_output else []),
            *words,
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return json.loads(done.stdout) if json_output else done.stdout


def _refused(client: attach.Client, code: int = _RESOURCE_EXHAUSTED) -> str:
    """Why Attach is answered with Goodbye."""
    client.send(attach=pb.Attach(min_version=1, max_version=1))
    status = client.expect("goodbye").status
    assert status.code == code, status
    return status.message


def _join_refused(client: attach.Client, group: pb.GroupSpec, ranks: list[int]) -> pb.Status:
    client.start_join(group, ranks)
    return client.expect("join_failed").status


def _is_let_in(client: attach.Client) -> bool:
    client.send(attach=pb.Attach(min_version=1, max_version=1))
    return client.receive().WhichOneof("body") == "attached"


@contextlib.contextmanager
def _clients(shared) -> Iterator[Callable[[int], attach.Client]]:
    """Makes clients of a uid, and closes them in the end."""
    with contextlib.ExitStack() as open_clients:
        yield lambda uid: open_clients.enter_context(shared.client(uid))


def test_sessions_of_one_user_leave_room_for_another(shared):
    shared.start("--max_sessions_per_uid=2")
    with _clients(shared) as client:
        client(_ALICE).attach()
        client(_ALICE).attach()
        why = _refused(client(_ALICE))
        assert f"uid {_ALICE} has 2 sessions" in why and f"pid {os.getpid()} has 2" in why
        assert "max_sessions_per_uid" in why
        client(_BOB).attach()


def test_op_slots_of_one_user_are_bounded_by_themselves(shared):
    shared.start("--max_slots_per_uid=600")
    with _clients(shared) as client:
        client(_ALICE).attach()
        client(_ALICE).attach()
        why = _refused(client(_ALICE))
        assert f"uid {_ALICE} has 512 op slots" in why and "asks for 256 more" in why
        assert "one uid may have 600 (max_slots_per_uid)" in why
        client(_BOB).attach()
        users = {user["uid"]: user["quotas"] for user in _epctl(shared, "sessions")["users"]}
        use = {quota["setting"]: (int(quota["used"]), int(quota["max"])) for quota in users[_ALICE]}
        assert use["max_slots_per_uid"] == (512, 600)


def test_a_segment_that_is_kept_is_empty_when_it_does_not_count_any_more(shared):
    shared.start("--max_slots_per_uid=256")
    with _clients(shared) as client:
        first = client(_ALICE)
        first.attach(features=3)  # It takes as many as are given.
        used = 100 * _PAGE_BYTES
        os.pwrite(first.fds[0], b"x" * used, os.fstat(first.fds[0]).st_size - used)
        assert os.fstat(first.fds[0]).st_blocks * 512 > used
        first.socket.close()  # The descriptors stay.
        assert "has 256 op slots" in _refused(client(_ALICE)), (
            "while a thread may still read its answer"
        )
        wait.until(lambda: os.fstat(first.fds[0]).st_blocks * 512 < used // 4, "the pages to go")
        wait.until(lambda: _is_let_in(client(_ALICE)), "epd to know it")


def test_groups_and_ranks_of_one_user_leave_room_for_another(shared):
    shared.start("--max_groups_per_uid=2", "--max_ranks_per_uid=3")
    with (
        shared.client(_ALICE) as first,
        shared.client(_ALICE) as second,
        shared.client(_BOB) as bob,
    ):
        for client in (first, second, bob):
            client.attach()
        first.join(attach.spec("a", num_ranks=2), [0, 1])
        second.join(attach.spec("b", num_ranks=1), [0])
        ranks = _join_refused(second, attach.spec("a", num_ranks=1, tenant="t"), [0])
        assert ranks.code == _RESOURCE_EXHAUSTED and "max_ranks_per_uid" in ranks.message
        groups = _join_refused(first, attach.spec("c", num_ranks=1), [0])
        assert groups.code == _RESOURCE_EXHAUSTED and "max_groups_per_uid" in groups.message
        bob.join(attach.spec("c", num_ranks=3), [0, 1, 2])


def test_joins_that_are_sent_at_once_do_not_pass_a_limit_together(shared):
    shared.start("--max_groups_per_uid=2")
    with shared.client(_ALICE) as client:
        client.attach()
        for name in "abcdef":
            client.start_join(attach.spec(name, num_ranks=1), [0])
        answers = [client.receive().WhichOneof("body") for _ in range(6)]
        assert sorted(answers) == ["join_failed"] * 4 + ["joined"] * 2


def test_connections_that_say_nothing_leave_room_for_another_user(shared):
    shared.start("--max_unattached_per_uid=2", "--attach_deadline=1s")
    with shared.client(_ALICE) as silent, shared.client(_ALICE), shared.client(_ALICE) as third:
        assert "max_unattached_per_uid" in third.expect("goodbye").status.message
        with shared.client(_BOB) as bob:
            bob.attach()
        assert "no Attach within 1s (attach_deadline)" in silent.expect("goodbye").status.message


def test_messages_that_nobody_reads_end_the_session_at_the_limit(shared):
    shared.start("--max_queued_bytes=256KiB")
    with shared.client(_ALICE) as deaf:
        deaf.attach()
        deaf.socket.setblocking(True)
        leave = pb.ClientMessage(leave=pb.Leave(request_id=1, group_id=1)).SerializeToString()
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(100_000):
                deaf.socket.send(leave)
        shared.wait_for_log("the peer does not read")


def test_tenant_of_one_user_takes_no_rank_of_another(shared):
    shared.start()
    with shared.client(_ALICE) as alice, shared.client(_BOB) as bob:
        alice.attach()
        bob.attach()
        alice.start_join(attach.spec("moe", num_ranks=2), [0])
        refused = None
        while refused is None:  # Alice's Join may not have been heard yet.
            bob.start_join(attach.spec("moe", num_ranks=2), [0])
            answer = bob.receive()
            if answer.WhichOneof("body") == "join_failed":
                refused = answer.join_failed.status
        assert refused.code == _PERMISSION_DENIED, refused
        assert f"of uid {_ALICE}" in refused.message and f"of uid {_BOB}" in refused.message
        assert not bob.fds[2:], "nothing but its own slots"
        bob.join(attach.spec("moe", num_ranks=2, tenant="bobs"), [0, 1])


def test_only_listed_users_and_groups_attach(open_daemon):
    open_daemon.start(f"--attach_uids={_ALICE}", "--attach_gids=0")
    with open_daemon.client(_ALICE) as alice, open_daemon.client(_BOB) as bobs_group_is_root:
        alice.attach()
        bobs_group_is_root.attach()
    assert open_daemon.stop() == 0
    open_daemon.start(f"--attach_uids={_ALICE}")
    with open_daemon.client(_BOB) as bob:
        status = bob.expect("goodbye").status
        assert status.code == _PERMISSION_DENIED
        assert f"uid {_BOB}" in status.message and f"attach_uids={_ALICE}" in status.message


def test_watchers_have_a_limit_that_names_the_holder_and_comes_back(daemon):
    daemon.start("--max_watchers=1")
    with NodeApi(f"unix:{daemon.grpc_socket}") as api:
        api.CreateGroup(spec=attach.spec())
        first = api.WatchGroup(name="g")
        next(first)
        with pytest.raises(grpc.RpcError) as refused:
            next(api.WatchGroup(name="g"))
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "(max_watchers), 1 of them by uid=0 pid=" in refused.value.details()
        first.cancel()

        def watches() -> bool:
            with contextlib.suppress(grpc.RpcError):
                return bool(next(api.WatchGroup(name="g")))
            return False

        wait.until(watches, "the cancelled stream's place is free")


def test_use_stands_against_the_limits(shared):
    shared.start("--max_ranks_per_uid=7", "--max_staging_per_uid=32MiB")
    with shared.client(_ALICE) as alice, shared.client(_BOB) as bob:
        alice.attach()
        bob.attach()
        alice.join(attach.spec("moe", num_ranks=2), [0, 1])
        listed = _epctl(shared, "sessions")
        users = {user["uid"]: user["quotas"] for user in listed["users"]}
        assert sorted(users) == [_ALICE, _BOB]
        use = {quota["setting"]: (int(quota["used"]), int(quota["max"])) for quota in users[_ALICE]}
        assert use["max_sessions_per_uid"] == (1, 512)
        assert use["max_groups_per_uid"] == (1, 512)
        assert use["max_ranks_per_uid"] == (2, 7)
        assert use["max_staging_per_uid"] == (0, 32 << 20)
        text = _epctl(shared, "sessions", json_output=False)
        assert "2/7" in text and "0 B/32.0 MiB" in text and "0/256" in text
        memory = _epctl(shared, "memory")
        assert [(t["group"], t["uid"]) for t in memory.get("tenants", [])] in (
            [],
            [("moe", _ALICE)],
        )
