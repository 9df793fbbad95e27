"""Two epds that meet through --coordinator: one group over both, one unique id for all ranks."""

import attach_client as attach
import epd_process
import pytest
from node_calls import NodeApi


@pytest.fixture
def pair(tmp_path):
    """The coordinator on 127.0.0.1 and a node that follows it, which listens on 127.0.0.2."""
    daemons = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        daemons.append(epd_process.Daemon(tmp_path / name))
    first, second = daemons
    first.start("--node=a", "--listen=127.0.0.1:0", "--start_grace=0")
    address = first.listen_address()
    second.start("--node=b", "--listen=127.0.0.2:0", f"--coordinator={address}")
    second.wait_for_log("coordinator connected")
    yield first, second
    statuses = [daemon.stop() for daemon in (second, first)]
    assert statuses == [0, 0], first.log() + second.log()


def _form(first, second, name: str):
    """Ranks 0 and 1 on the first epd, 2 and 3 on the second; returns clients and digests by rank."""
    clients = [first.client(), second.client()]
    for client in clients:
        client.attach()
    spec = attach.spec(name, num_ranks=4)
    clients[0].start_join(spec, [0, 1])
    clients[1].start_join(spec, [2, 3])
    joined = [client.expect("joined") for client in clients]
    assert joined[0].group_id == joined[1].group_id
    assert [m.node for m in joined[0].members] == ["a", "a", "b", "b"]
    assert [a.rank for a in joined[0].arenas] == [0, 1], "only local ranks have an arena here"
    return clients, _digests(first, second, name)


def _digests(first, second, name: str) -> dict[int, bytes]:
    digests = {}
    for daemon, node in ((first, "a"), (second, "b")):
        with NodeApi(f"unix:{daemon.grpc_socket}") as api:
            for rank in api.ListRanks(group=name).ranks:
                if rank.node == node:
                    digests[rank.rank] = rank.unique_id_sha256
    return digests


def test_all_ranks_of_two_epds_receive_one_unique_id_and_formations_differ(pair):
    clients, digests = _form(*pair, "g")
    assert sorted(digests) == [0, 1, 2, 3]
    assert len(set(digests.values())) == 1 and all(len(d) == 32 for d in digests.values())
    more, others = _form(*pair, "h")
    assert len(set(others.values())) == 1 and set(others.values()) != set(digests.values())
    for client in clients + more:
        client.close()


def test_unique_ids_never_reach_a_log(pair):
    clients, digests = _form(*pair, "g")
    for daemon in pair:
        assert digests[0].hex() not in daemon.log()
    for client in clients:
        client.close()


def test_coordinator_sees_ranks_of_other_nodes_and_a_lost_one_degrades_the_group(pair):
    first, second = pair
    clients, _ = _form(first, second, "g")
    clients[1].close()
    reform = clients[0].expect("reform")
    assert "rank=2" in reform.cause.message and "rank=3" in reform.cause.message
    with NodeApi(f"unix:{first.grpc_socket}") as api:
        phases = {rank.rank: rank.phase for rank in api.ListRanks(group="g").ranks}
        assert phases[2] in ("dead", "missing") and phases[3] in ("dead", "missing")
    clients[0].close()


def test_a_second_node_of_the_same_name_is_refused_and_says_so(pair, tmp_path):
    first, _ = pair
    (tmp_path / "c").mkdir()
    third = epd_process.Daemon(tmp_path / "c").start(
        "--node=b", f"--coordinator={first.listen_address()}"
    )
    third.wait_for_log("another living epd is the node 'b'")
    with NodeApi(f"unix:{third.grpc_socket}") as api:
        status = api.GetStatus()
        assert not status.coordinator_connected
        assert any("no connection to the coordinator" in problem for problem in status.problems)
    assert third.stop() == 0


def test_node_without_its_coordinator_says_so_and_comes_back_with_it(pair):
    first, second = pair
    port = first.listen_address().rpartition(":")[2]
    assert first.stop() == 0
    second.wait_for_log("coordinator lost")
    first.start("--node=a", f"--listen=127.0.0.1:{port}", "--start_grace=0")
    second.wait_for_log("coordinator connected", count=2)
    clients, digests = _form(first, second, "again")
    assert len(set(digests.values())) == 1
    for client in clients:
        client.close()
