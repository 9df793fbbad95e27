"""Clients attach, join and lose each other, as seen on the attach socket."""

import os
import signal

import attach_client as attach

from proto.epd.v1 import attach_pb2 as pb


def _close(*clients: attach.Client) -> None:
    for client in clients:
        client.close()


def test_two_sessions_join_one_group_and_get_each_others_arenas(daemon):
    daemon.start()
    with daemon.client() as a, daemon.client() as b:
        first, second = a.attach(), b.attach()
        assert first.session_id != second.session_id
        assert first.daemon_pid == daemon.process.pid
        a.start_join(attach.spec(), [0])
        b.start_join(attach.spec(), [1])
        joined = [a.expect("joined"), b.expect("joined")]
        assert joined[0].group_id == joined[1].group_id != 0
        assert [m.session_id for m in joined[0].members] == [first.session_id, second.session_id]
        assert [(x.rank, x.own) for x in joined[0].arenas] == [(0, True), (1, False)]
        assert [(x.rank, x.own) for x in joined[1].arenas] == [(0, False), (1, True)]
        assert len(a.fds) == 4  # slots, eventfd, two arenas
        assert os.fstat(a.fds[2]).st_ino == os.fstat(b.fds[2]).st_ino


def test_a_client_is_told_how_long_its_groups_may_form(daemon):
    """It does not give up a Join before epd does."""
    daemon.start("--form=45m")
    with daemon.client() as client:
        assert client.attach().form.ToTimedelta().total_seconds() == 45 * 60


def test_versions_without_overlap_are_refused_with_both_ranges(daemon):
    daemon.start()
    with daemon.client() as client:
        client.send(attach=pb.Attach(min_version=7, max_version=9))
        status = client.expect("goodbye").status
        assert status.code == 12 and "7..9" in status.message and "upgrade epd" in status.message
        assert client.receive() is None


def test_a_killed_peer_makes_the_group_reform_within_a_second(daemon):
    daemon.start()
    child = os.fork()
    if child == 0:
        client = daemon.client()
        client.attach()
        client.start_join(attach.spec(), [1])
        signal.pause()
    with daemon.client() as survivor:
        survivor.attach()
        survivor.join(attach.spec(), [0])
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        survivor.socket.settimeout(1)
        reform = survivor.expect("reform")
        assert not reform.wait
        assert "rank=1" in reform.cause.message and f"pid={child}" in reform.cause.message
