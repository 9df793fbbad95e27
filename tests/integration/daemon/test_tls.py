"""Goal: epds of one cluster believe each other's certificates and nobody else's, and say by name what is wrong."""

import pathlib
import shutil

import certificates
import epd_process
import pytest
import wait
from node_calls import NodeApi


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> certificates.Authority:
    return certificates.Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def start(tmp_path):
    """start(name, *flags) -> a running epd; all are stopped at the end and must end well."""
    running = []

    def make(name: str, *flags: str) -> epd_process.Daemon:
        (tmp_path / name).mkdir()
        daemon = epd_process.Daemon(tmp_path / name)
        running.append(daemon.start(f"--node={name}", "--start_grace=0", *flags))
        return daemon

    yield make
    for daemon in reversed(running):
        assert daemon.stop() == 0, daemon.log()


def _coordinator(start, cluster) -> epd_process.Daemon:
    return start("a", "--listen=127.0.0.1:0", *cluster.sign("a", "127.0.0.1"))


def _follow(start, coordinator, *flags: str) -> epd_process.Daemon:
    return start("b", f"--coordinator={coordinator.listen_address()}", *flags)


def test_nodes_of_one_authority_form_a_cluster(start, cluster):
    first = _coordinator(start, cluster)
    second = _follow(start, first, *cluster.sign("b"))
    second.wait_for_log("coordinator connected")


def _refused(daemon: epd_process.Daemon, *words: str) -> None:
    """The daemon's log says that a peer is refused, with all `words` on the line."""
    daemon.wait_for_log("peer refused")
    line = next(line for line in daemon.log().splitlines() if "peer refused" in line)
    assert all(word in line for word in words), line


def test_a_certificate_of_another_cluster_is_refused_by_name(start, cluster, tmp_path):
    first = _coordinator(start, cluster)
    foreign = certificates.Authority(tmp_path / "other", "other")
    flags = foreign.sign("b")
    flags[0] = f"--tls_ca={_both(tmp_path, foreign, cluster)}"
    second = _follow(start, first, *flags)
    _refused(first, "CN=b", "foreign: not signed by tls_ca")
    with NodeApi(f"unix:{second.grpc_socket}") as api:
        status = api.GetStatus()
        assert not status.coordinator_connected
        assert any("no connection to the coordinator" in problem for problem in status.problems)


def _both(folder: pathlib.Path, *authorities: certificates.Authority) -> pathlib.Path:
    """A node that trusts both, so that only the other side can refuse."""
    bundle = folder / "both.pem"
    bundle.write_text("".join(one.ca.read_text() for one in authorities))
    return bundle


def test_a_coordinator_of_another_cluster_is_refused_by_the_node(start, cluster, tmp_path):
    first = _coordinator(start, cluster)
    foreign = certificates.Authority(tmp_path / "other", "other")
    second = _follow(start, first, *foreign.sign("b"))
    _refused(second, "CN=a", "foreign: not signed by tls_ca")
    second.wait_for_log("coordinator lost")


def test_a_coordinator_at_an_address_that_its_certificate_lacks_is_refused(start, cluster):
    first = start("a", "--listen=127.0.0.1:0", *cluster.sign("a2", "127.0.0.9"))
    second = _follow(start, first, *cluster.sign("b"))
    _refused(second, "CN=a2", "is not for '127.0.0.1'", "subjectAltName")


def test_an_expired_certificate_is_refused_at_the_start_and_by_peers(start, cluster, tmp_path):
    first = _coordinator(start, cluster)
    (tmp_path / "own").mkdir()
    own = epd_process.Daemon(tmp_path / "own")
    with pytest.raises(AssertionError, match="CN=old.* has expired .*renew it"):
        own.start(*cluster.sign("old", days=-1))
    assert own.process.wait(10) == 1
    # One that expires while epd runs: the files are replaced behind its back.
    second = _follow(start, first, *cluster.sign("b"))
    second.wait_for_log("coordinator connected")
    cluster.sign("b", days=-1)
    port = first.listen_address().rpartition(":")[2]

    def connections() -> int:
        return second.log().count("coordinator connected")

    def refused() -> bool:
        """Whether it shows the expired one when it connects anew; it reads its files once a second."""
        before = connections()
        assert first.stop(30) == 0
        first.start("--node=a", f"--listen=127.0.0.1:{port}", *cluster.flags("a"))
        wait.until(
            lambda: "peer refused" in first.log() or connections() > before,
            "the second node to try again",
            30,
        )
        return "peer refused" in first.log()

    wait.until(refused, "the expired certificate to be read", 60)
    _refused(first, "CN=b", "has expired", "renew it")
    connected = connections()
    cluster.sign("b")
    second.wait_for_log("coordinator connected", connected + 1, seconds=30)


def test_a_plain_peer_is_refused_in_both_directions(start, cluster):
    first = _coordinator(start, cluster)
    second = _follow(start, first)
    second.wait_for_log("coordinator lost")
    third = start("c", "--listen=127.0.0.1:0")
    fourth = start("d", f"--coordinator={third.listen_address()}", *cluster.sign("d"))
    fourth.wait_for_log("coordinator lost")
    assert "coordinator connected" not in second.log() + fourth.log()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--tls_ca=/x"], "expected all three or none"),
        (["--tls_ca=/x", "--tls_cert=/x", "--tls_key=/x"], "tls_ca: cannot read '/x'"),
        (["--listen=0.0.0.0:0"], "without TLS only loopback and private addresses"),
    ],
)
def test_bad_tls_settings_end_epd_with_the_reason(tmp_path, flags, says):
    daemon = epd_process.Daemon(tmp_path)
    with pytest.raises(AssertionError, match=says):
        daemon.start(*flags)
    assert daemon.process.wait(10) == 1


def test_the_key_of_another_certificate_is_an_error(tmp_path, cluster):
    cluster.sign("a3")
    cluster.sign("b3")
    shutil.copy(cluster.folder / "b3.key", cluster.folder / "a3.key")
    daemon = epd_process.Daemon(tmp_path)
    with pytest.raises(AssertionError, match="is not the private key of tls_cert"):
        daemon.start(*cluster.flags("a3"))
    assert daemon.process.wait(10) == 1
