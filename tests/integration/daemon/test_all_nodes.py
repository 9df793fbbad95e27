"""Goal: from any node an operator sees all nodes, who waits for whom, and every rank of a late formation."""

import json
import os
import signal
import subprocess

import attach_client as attach
import epd_process
import pytest
import wait


def _three(tmp_path, coordinator: str, followers: tuple[str, ...] = (), *flags: str):
    """Nodes a, b and c, of which a coordinates; what the test has stopped goes on and ends well after it."""
    daemons = {}
    for name in "abc":
        (tmp_path / name).mkdir()
        where = [coordinator]
        if daemons:
            where = [*followers, f"--coordinator={daemons['a'].listen_address()}"]
        daemons[name] = epd_process.Daemon(tmp_path / name).start(
            f"--node={name}", *where, "--start_grace=0", "--heartbeat=300ms", *flags
        )
        if name != "a":
            daemons[name].wait_for_log("coordinator connected")
    for daemon in daemons.values():
        daemon.worker_pid()
    yield daemons
    for name in "cba":
        process = daemons[name].process
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            assert daemons[name].stop() == 0, daemons[name].log()


_LISTEN = "--listen=127.0.0.1:0"


@pytest.fixture
def trio(tmp_path):
    """a coordinates; b and c follow."""
    yield from _three(tmp_path, _LISTEN)


@pytest.fixture
def real_trio(tmp_path):
    """The same with workers that try ports."""
    yield from _three(tmp_path, _LISTEN, (), f"--worker={epd_process.binary('epd-worker')}")


def _epctl(daemon, *words: str) -> tuple[int, dict]:
    done = subprocess.run(
        [epd_process.binary("epctl"), f"--socket={daemon.socket}", "-o", "json", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "EPD_SOCKET": daemon.socket},
    )
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("asked", ["a", "b"])
def test_every_node_shows_all_nodes(trio, asked):
    code, nodes = _epctl(trio[asked], "status", "--all-nodes")
    assert code == 0, nodes
    assert nodes["coordinator"] == "a"
    assert [node["node"] for node in nodes["nodes"]] == ["a", "b", "c"]
    assert {node["status"]["pid"] for node in nodes["nodes"]} == {
        daemon.process.pid for daemon in trio.values()
    }
    code, versions = _epctl(trio[asked], "version", "--all-nodes")
    assert code == 0 and len({one["status"]["version"] for one in versions["nodes"]}) == 1


def test_a_stopped_and_a_killed_node_are_named_and_do_not_hang_the_answer(trio):
    trio["b"].process.send_signal(signal.SIGSTOP)
    code, nodes = _epctl(trio["c"], "status", "--all-nodes")
    by_name = {node["node"]: node for node in nodes["nodes"]}
    assert code == 7 and by_name["b"].get("status") is None, nodes
    said = by_name["b"]["problem"]["message"]
    assert "did not answer in time" in said or "it is lost" in said, said
    trio["c"].process.kill()
    trio["c"].process.wait()

    def lost() -> bool:
        _, now = _epctl(trio["a"], "status", "--all-nodes")
        problems = {node["node"]: node.get("problem") or {} for node in now["nodes"]}
        return "it is lost" in problems["c"].get("message", "")

    wait.until(lost, "the killed node to be lost")


def _seen_by_doctor(daemon) -> dict[str, dict]:
    return {one["what"]: one for one in _epctl(daemon, "doctor")[1]["daemon"]}


def test_doctor_compares_the_nodes_and_reaches_their_ports_until_one_is_gone(real_trio):
    trio = real_trio
    seen = _seen_by_doctor(trio["b"])
    for what in ("nodes", "versions", "clocks"):
        assert seen[what]["ok"], seen[what]
    ports = {what: one for what, one in seen.items() if what.startswith("port ")}
    owners = {owner for what in ports for owner in ("node a", "node c") if owner in what}
    assert owners == {"node a", "node c"} and all(one["ok"] for one in ports.values()), ports
    trio["a"].process.kill()
    trio["a"].process.wait()
    coordinator = f"port {trio['a'].listen_address()} (the setting coordinator)"

    def missed() -> bool:
        now = _seen_by_doctor(trio["b"])
        return not now["nodes"]["ok"] and now[coordinator]["found"].startswith("refused")

    wait.until(missed, "doctor to miss the coordinator")


@pytest.fixture
def listening(tmp_path):
    """a coordinates; b and c follow, and take calls themselves."""
    yield from _three(tmp_path, _LISTEN, (_LISTEN,))


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])
def test_all_nodes_and_why_need_no_coordinator(listening, how):
    spec = attach.spec("g", num_ranks=3)
    clients = [listening[name].client() for name in "abc"]
    for rank, client in enumerate(clients):
        client.attach()
        client.start_join(spec, [rank])
    for client in clients:
        client.expect("joined")
    listening["a"].process.send_signal(how)

    def all_nodes() -> dict:
        nodes = _epctl(listening["b"], "status", "--all-nodes")[1]
        return {one["node"]: one for one in nodes.get("nodes", [])}

    for lost in (False, True):  # Before the node has noticed, and after.
        if lost:
            listening["b"].wait_for_log("coordinator lost")
        nodes = all_nodes()
        assert sorted(nodes) == ["a", "b", "c"], nodes
        assert nodes["b"]["status"]["pid"] == listening["b"].process.pid
        assert nodes["c"]["status"]["pid"] == listening["c"].process.pid
        assert "no answer" in nodes["a"]["problem"]["message"], nodes["a"]
        why = _epctl(listening["b"], "why", "g")[1]
        assert {rank["rank"] for rank in why["group"]["ranks"]} == {0, 1, 2}, why
        assert any(text.startswith("node a: no answer") for text in why["unanswered"]), why
    for client in clients:
        client.close()


def _arrived(daemon, group: str) -> list[int]:
    ranks = _epctl(daemon, "why", group)[1].get("group", {}).get("ranks", [])
    return [one["rank"] for one in ranks if one["phase"] == "arrived"]


def test_a_late_formation_names_every_rank_on_every_node(trio):
    # Long enough for a busy machine to see three clients come and one die.
    deadline = {"seconds": 6}
    spec = attach.spec("late", num_ranks=6)
    clients = [trio[name].client() for name in "abc"]
    for rank, client in enumerate(clients):
        client.attach(client_name=f"job {rank}", client_version=f"9.{rank}")
        client.start_join(spec, [rank], deadline=deadline)
    wait.until(
        lambda: _arrived(trio["a"], "late") == [0, 1, 2], "the coordinator to know three ranks"
    )
    clients[2].close()  # Rank 2 dies while the group forms.
    failed = [client.expect("join_failed").status for client in clients[:2]]
    assert failed[0].message == failed[1].message
    for text in ("missing: ranks 2-5", "client=job 0 version=9.0", "dead: rank=2", "last_seen="):
        assert text in failed[0].message, failed[0].message
    whys = [_epctl(trio[name], "why", "late")[1] for name in "ab"]
    for why in whys:
        late = why["last_late"]
        assert [one["rank"] for one in late["arrived"]] == [0, 1]
        assert [one["rank"] for one in late["missing"]] == [2, 3, 4, 5]
        (dead,) = late["dead"]
        assert (dead["client_name"], dead["client_version"]) == ("job 2", "9.2")
        assert all(one["pid"] == os.getpid() and one["host"] for one in late["arrived"])
    for client in clients[:2]:
        client.close()


def test_why_names_a_dead_rank_of_a_group_that_cannot_go_on(trio):
    spec = attach.spec("g", num_ranks=3)
    clients = [trio[name].client() for name in "abc"]
    for rank, client in enumerate(clients):
        client.attach()
        client.start_join(spec, [rank])
    for client in clients:
        client.expect("joined")
    _, well = _epctl(trio["b"], "why", "g")
    assert well["culprit"] == "" and "no open operation" in well["evidence"]
    clients[1].close()
    clients[0].expect("reform")
    code, why = _epctl(trio["c"], "why", "g")
    assert code == 0 and why["culprit"] == "rank 1", why
    assert "node b" in why["evidence"] and f"pid {os.getpid()}" in why["evidence"]
    for client in (clients[0], clients[2]):
        client.close()


def test_why_of_an_unknown_group_is_an_error_that_lists_the_known_ones(trio):
    code, error = _epctl(trio["b"], "why", "nothing")
    assert code != 0 and "there is no group 'nothing'" in error["error"]
