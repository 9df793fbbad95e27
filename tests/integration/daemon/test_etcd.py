"""Goal: with etcd any epd may die, also the coordinator: another one takes over in time and nothing is granted twice."""

import datetime
import signal
import time

import attach_client as attach
import election_history
import epd_process
import etcd_process
import pytest
import wait
from epctl_process import Epctl
from node_calls import NodeApi

pytestmark = pytest.mark.skipif(bool(etcd_process.missing()), reason=etcd_process.missing())


@pytest.fixture
def etcd(tmp_path):
    (tmp_path / "etcd").mkdir()
    made = etcd_process.Etcd(tmp_path / "etcd")
    yield made
    made.kill()


@pytest.fixture
def cluster(tmp_path, etcd):
    """Three epds, a, b and c, that know nothing but etcd's address; a leads."""
    etcd.start()
    daemons = {}
    for name in "abc":
        daemons[name] = _start(tmp_path, name, etcd)
        daemons[name].wait_for_log("leading" if name == "a" else "coordinator connected")
    yield daemons
    for daemon in daemons.values():
        if daemon.process.poll() is None:
            daemon.process.send_signal(signal.SIGCONT)
            daemon.stop()


def _start(folder, name: str, etcd, *flags: str) -> epd_process.Daemon:
    (folder / name).mkdir(exist_ok=True)
    daemon = epd_process.Daemon(folder / name)
    return daemon.start(
        f"--node={name}",
        "--listen=127.0.0.1:0",
        "--start_grace=5s",
        f"--rendezvous=etcd://{etcd.address}/test",
        *flags,
    )


def _form(daemons, group: str, **fields):
    clients = [daemon.client() for daemon in daemons]
    spec = attach.spec(group, num_ranks=len(clients))
    for rank, client in enumerate(clients):
        client.attach()
        client.start_join(spec, [rank], **fields)
    return clients, [client.expect("joined") for client in clients]


def _wait_for_leader(daemons, count: int = 1, seconds: float = 10) -> float:
    """Seconds until `count` leaderships are logged by `daemons` and a leader is connected to."""
    begin = time.monotonic()
    wait.until(
        lambda: sum(one.log().count('event="leading"') for one in daemons) >= count,
        "a new leader",
        seconds,
    )
    return time.monotonic() - begin


def _check(daemons, dead=None, lost_data: bool = False) -> list:
    history = election_history.reigns({name: one.log() for name, one in daemons.items()})
    election_history.check(history, dead or {}, lost_data)
    return history


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _receives_nothing(client, seconds: float) -> None:
    client.socket.settimeout(seconds)
    try:
        pytest.fail(f"expected no message, got {client.receive()}")
    except TimeoutError:
        client.socket.settimeout(attach.DEADLINE_S)


def _lease(daemon) -> tuple[bool, str, int, float]:
    """Whether it coordinates, and what it says of the coordinator: node, term, seconds left of its own lease."""
    with NodeApi(f"unix:{daemon.grpc_socket}") as api:
        status = api.GetStatus()
    lease = status.lease
    return status.coordinates, lease.holder, lease.term, lease.left.ToTimedelta().total_seconds()


def test_every_node_tells_who_leads_since_which_term_and_how_long_its_own_lease_lasts(
    cluster, etcd
):
    def told(names: str) -> dict[str, tuple[bool, str, int, float]]:
        return {name: _lease(cluster[name]) for name in names}

    first = wait.until(
        lambda: all(one[1] == "a" for one in told("abc").values()) and told("abc"),
        "all nodes to know that a leads",
    )
    assert [name for name in "abc" if first[name][0]] == ["a"]
    (term,) = {one[2] for one in first.values()}
    assert term > 0 and all(0 < one[3] <= 2.5 for one in first.values()), first
    cluster["a"].process.kill()
    cluster["a"].process.wait()
    later = wait.until(
        lambda: {one[1] for one in told("bc").values()} in ({"b"}, {"c"}) and told("bc"),
        "another node to lead",
    )
    assert sum(one[0] for one in later.values()) == 1, later
    assert {one[2] > term for one in later.values()} == {True}, (term, later)
    etcd.kill()
    wait.until(
        lambda: all(one[3] == 0 for one in told("bc").values()), "leases that cannot be renewed"
    )


def test_killed_coordinator_is_replaced_within_2_s_and_running_groups_go_on(cluster):
    clients, joined = _form([cluster["b"], cluster["c"]], "lives")
    cluster["a"].process.kill()
    killed = _now()
    cluster["a"].process.wait()
    others = [cluster["b"], cluster["c"]]
    _wait_for_leader(others, seconds=10)
    (reign,) = [one for one in _check(cluster, {"a": killed}) if one.node != "a"]
    assert (reign.begin - killed).total_seconds() < 2, reign
    more, later = _form(others, "new")
    assert (_now() - killed).total_seconds() < 5
    assert later[0].epoch > reign.floor, "epochs of a new leader lie above its predecessor's"
    for client in clients:
        _receives_nothing(client, 0.2)
    with NodeApi(f"unix:{cluster['b'].grpc_socket}") as api:
        group = api.ListGroups(name="lives").groups[0]
        assert group.epoch == joined[0].epoch and group.formation == joined[0].formation
    for client in clients + more:
        client.close()


def test_a_coordinator_whose_program_is_replaced_gives_the_lead_away_and_no_group_hears_of_it(
    cluster,
):
    clients, joined = _form(list(cluster.values()), "lives")
    asked = _now()
    said = Epctl(str(cluster["a"].socket))("replace")
    assert said.returncode == 0, said.stderr
    _wait_for_leader(cluster.values(), count=2)
    _check(cluster, {"a": asked})
    more, later = _form(list(cluster.values()), "new")
    assert later[0].epoch > joined[0].epoch
    for client in [*clients, *more]:
        _receives_nothing(client, 0.2)


def test_stopped_coordinator_is_replaced_by_its_lease_and_follows_when_it_wakes(cluster):
    cluster["a"].process.send_signal(signal.SIGSTOP)
    stopped = _now()
    others = [cluster["b"], cluster["c"]]
    _wait_for_leader(others, seconds=10)
    (reign,) = [one for one in _check(cluster, {"a": stopped}) if one.node != "a"]
    assert (reign.begin - stopped).total_seconds() < 5, reign
    cluster["a"].process.send_signal(signal.SIGCONT)
    cluster["a"].wait_for_log("stepped down")
    cluster["a"].wait_for_log("coordinator connected")
    clients, joined = _form(cluster.values(), "all")
    assert len({one.epoch for one in joined}) == 1 and joined[0].epoch > reign.floor
    for client in clients:
        client.close()


def test_etcd_down_at_the_start_is_named_and_waited_for(tmp_path, etcd):
    etcd.start()
    etcd.kill()
    daemon = _start(tmp_path, "a", etcd)
    daemon.wait_for_log("etcd problem")
    with NodeApi(f"unix:{daemon.grpc_socket}") as api:

        def named() -> bool:
            problems = " ".join(api.GetStatus().problems)
            wanted = ("etcd does not answer", etcd.address, "no coordinator")
            return all(text in problems for text in wanted)

        wait.until(named, "etcd and the missing coordinator to be named")
    with daemon.client() as client:
        client.attach()
        deadline = {"nanos": 500_000_000}
        client.start_join(attach.spec("early", num_ranks=1), [0], deadline=deadline)
        failed = client.expect("join_failed").status
        assert "coordinator" in failed.message, failed
        assert "etcd does not answer" in failed.message, failed
        assert etcd.address in failed.message, failed
    etcd.start()
    daemon.wait_for_log("leading", seconds=30)
    clients, _ = _form([daemon], "late")
    clients[0].close()
    assert daemon.stop() == 0


def test_etcd_down_later_stops_forming_and_nothing_else(cluster, etcd):
    clients, joined = _form([cluster["b"], cluster["c"]], "lives")
    etcd.kill()
    cluster["a"].wait_for_log("stepped down")
    assert "its lease was not renewed in time" in cluster["a"].log()
    with NodeApi(f"unix:{cluster['a'].grpc_socket}") as api:
        assert "etcd does not answer" in " ".join(api.GetStatus().problems)
    for name in "ab":  # Who coordinated, and who followed: nobody is needed to ask all.
        with NodeApi(f"unix:{cluster[name].grpc_socket}") as api:
            answered = {one.node: one.HasField("status") for one in api.ListNodes().nodes}
        assert answered == {"a": True, "b": True, "c": True}, (name, answered)
    for client in clients:
        _receives_nothing(client, 0.2)
    etcd.start()
    _wait_for_leader(cluster.values(), count=2, seconds=15)
    more, later = _form([cluster["b"], cluster["c"]], "new")
    assert later[0].epoch > joined[0].epoch
    _check(cluster)
    for client in clients:
        _receives_nothing(client, 0.2)
    for client in clients + more:
        client.close()


def test_etcd_that_has_lost_its_data_is_named_and_epochs_go_on_growing(cluster, etcd):
    clients, joined = _form([cluster["b"], cluster["c"]], "lives")
    etcd.kill()
    etcd.lose_data()
    etcd.start()
    _wait_for_leader(cluster.values(), count=2, seconds=15)
    assert any("etcd has lost its data" in one.log() for one in cluster.values())
    more, later = _form([cluster["b"], cluster["c"]], "new")
    assert later[0].epoch > joined[0].epoch
    # etcd forgot the lease of who led, who may go on until it is over.
    wait.until(
        lambda: any("stepped down" in one.log() for one in cluster.values()), "a step down", 10
    )
    _check(cluster, lost_data=True)
    for client in clients + more:
        client.close()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--rendezvous=etcd://nowhere"], r"expected etcd://host:port"),
        (["--rendezvous=http://127.0.0.1:1"], r"expected etcd://host:port"),
        (
            ["--rendezvous=etcd://127.0.0.1:1", "--coordinator=127.0.0.1:2"],
            "expected at most one of them",
        ),
    ],
)
def test_bad_rendezvous_is_an_error(tmp_path, flags, says):
    daemon = epd_process.Daemon(tmp_path)
    with pytest.raises(AssertionError, match=says):
        daemon.start(*flags)
    assert daemon.process.wait(10) in (1, 2)
