"""Goal: epds of one cluster believe each other's certificates and nobody else's, and say by name what is wrong."""

import os
import pathlib
import shlex
import shutil
import signal
import subprocess

import certificates
import epd_process
import pytest
import wait
from node_calls import NodeApi

from proto.epd.v1 import node_pb2 as pb

_SERVING = 1


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


def _ends(tmp_path, says: str, *flags: str) -> None:
    """An epd with these flags ends at once, and says why."""
    daemon = epd_process.Daemon(tmp_path)
    with pytest.raises(AssertionError, match=says):
        daemon.start(*flags)
    assert daemon.process.wait(10) == 1


@pytest.mark.parametrize(
    ("place", "host"),
    [
        (["--listen=127.0.0.1:0"], "127.0.0.1"),
        (["--listen=127.0.0.9:0", "--advertise=epd-0.epd:7400"], "epd-0.epd"),
        (["--wire_listen=127.0.0.1:0"], "127.0.0.1"),
        (["--coordinator=127.0.0.1:1"], "127.0.0.1"),  # The way there is where rows come in.
    ],
)
def test_an_address_that_the_own_certificate_lacks_is_refused_at_the_start(
    tmp_path, cluster, place, host
):
    says = f"tls_cert .*CN=a2.* is not for '{host}', at which it is called; name that in its subj"
    _ends(tmp_path, says, *place, *cluster.sign("a2", "127.0.0.9"))


def test_a_coordinator_by_a_name_that_its_certificate_lacks_is_refused(start, cluster):
    first = _coordinator(start, cluster)
    port = first.listen_address().rpartition(":")[2]
    second = start("b", f"--coordinator=localhost:{port}", *cluster.sign("b", "127.0.0.1", "::1"))
    _refused(second, "CN=a", "is not for 'localhost'", "subjectAltName")


def test_an_expired_certificate_is_refused_at_the_start(tmp_path, cluster):
    _ends(tmp_path, "CN=old.* has expired .*renew it", *cluster.sign("old", days=-1))


def test_files_that_turn_bad_do_not_serve_and_are_told_until_they_are_good(start, cluster):
    """The old ones go on serving, for new links, too."""
    first = _coordinator(start, cluster)
    port = first.listen_address().rpartition(":")[2]
    second = _follow(start, first, *cluster.sign("b"))
    second.wait_for_log("coordinator connected")

    def without_key() -> None:
        cluster.sign("b")
        (cluster.folder / "b.key").write_text("no key")

    def with_pass_phrase() -> None:
        cluster.sign("b")
        cluster.encrypt("b")

    bad = {
        "b.key' is encrypted and takes a pass phrase": with_pass_phrase,
        "has expired": lambda: cluster.sign("b", days=-1),
        "is not for '127.0.0.1'": lambda: cluster.sign("b", "127.0.0.9"),
        "holds no PEM private key": without_key,
        "tls_cert: cannot read": (cluster.folder / "b.pem").unlink,
    }
    with NodeApi(f"unix:{second.grpc_socket}") as api:
        good = api.GetStatus().certificate
        assert 0 < good.left.seconds <= 24 * 3600 and not good.problem
        for number, (says, spoil) in enumerate(bad.items(), 1):
            spoil()
            second.wait_for_log("certificate needs an operator", number)
            status = api.GetStatus()
            assert says in status.certificate.problem
            assert status.certificate.problem in status.problems
            assert status.certificate.left.seconds > 0
            found = {one.what: one for one in api.GetDoctor().findings}["certificate"]
            assert says in found.found and not found.ok
            assert first.stop(30) == 0
            first.start("--node=a", f"--listen=127.0.0.1:{port}", *cluster.flags("a"))
            second.wait_for_log("coordinator connected", number + 1, seconds=30)
        cluster.sign("b")
        second.wait_for_log("certificate renewed")
        assert not api.GetStatus().certificate.problem


def _epctl(daemon: epd_process.Daemon, *words: str) -> subprocess.CompletedProcess:
    command = [epd_process.binary("epctl"), "--socket", daemon.socket, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_a_certificates_end_is_in_status_and_health_30_days_before(start, cluster):
    """Of one for 100 days: 31 days before its end nothing is said; 29 days before all say it, until it is renewed."""
    daemon = start("a", "--listen=127.0.0.1:0", *cluster.sign_for("a", since=69, left=31))
    with NodeApi(f"unix:{daemon.grpc_socket}") as api:

        def look() -> tuple[int, str]:
            status = api.GetStatus()
            assert not status.certificate.problem or status.certificate.problem in status.problems
            return status.health, status.certificate.problem

        wait.until(lambda: look() == (pb.HEALTH_OK, ""), "all is well 31 days before")
        quiet = _epctl(daemon, "status")
        assert "certificate" in quiet.stdout and "ends in 30d" in quiet.stdout, quiet.stdout
        assert "problem" not in quiet.stdout

        cluster.sign_for("a", since=71, left=29)
        wait.until(lambda: look()[0] == pb.HEALTH_DEGRADED, "it is told 29 days before")
        ends = api.GetStatus().certificate
        assert "tls_cert ends on " in ends.problem and "renew it" in ends.problem
        assert 28 * 86400 < ends.left.seconds < 29 * 86400
        told = _epctl(daemon, "status")
        assert f"problem: {ends.problem.partition(', in ')[0]}" in told.stdout, told.stdout
        assert "degraded" in told.stdout.lower() and "ends in 28d" in told.stdout, told.stdout
        found = {one.what: one for one in api.GetDoctor().findings}["certificate"]
        assert not found.ok and "tls_cert ends on " in found.found
        assert api.health() == api.health("epd.v1.Node") == _SERVING, "it serves until then"

        cluster.sign_for("a", since=1, left=99)
        wait.until(lambda: look() == (pb.HEALTH_OK, ""), "it was renewed")


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
        (["--listen=0.0.0.0:0", "--insecure=no"], "without TLS only loopback addresses are taken"),
        (["--listen=10.0.0.1:0", "--insecure=no"], "without TLS only loopback addresses are taken"),
        (["--listen=a.name:0", "--insecure=no"], "without TLS only loopback addresses are taken"),
    ],
)
def test_bad_tls_settings_end_epd_with_the_reason(tmp_path, flags, says):
    _ends(tmp_path, says, *flags)


def _under_a_terminal(command: list[str]) -> str:
    """What a command says that has a terminal, at which nobody answers. It must end by itself."""
    typed = subprocess.Popen(
        ["script", "-qec", shlex.join(command), "/dev/null"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        return typed.communicate(timeout=15)[0]
    except subprocess.TimeoutExpired:
        os.killpg(typed.pid, signal.SIGKILL)
        raise


@pytest.mark.parametrize("traditional", [False, True])
def test_a_key_with_a_pass_phrase_is_refused_at_once_with_the_remedy(
    tmp_path, cluster, traditional
):
    """Of links, of metrics and of etcd; the remedy makes a key that serves."""
    cluster.sign("locked")
    cluster.encrypt("locked", traditional)
    key = cluster.folder / "locked.key"
    cert = cluster.folder / "locked.pem"
    uses = {
        "tls_key": cluster.flags("locked"),
        "metrics_key": [
            "--metrics_listen=127.0.0.1:0",
            f"--metrics_cert={cert}",
            f"--metrics_key={key}",
        ],
        "etcd_key": [
            "--rendezvous=etcd://127.0.0.1:1/x",
            f"--etcd_ca={cluster.ca}",
            f"--etcd_cert={cert}",
            f"--etcd_key={key}",
        ],
    }
    for setting, flags in uses.items():
        command = epd_process.Daemon(tmp_path).command(*flags)
        said = _under_a_terminal(command)
        assert f"{setting}: '{key}' is encrypted" in said, said
        assert "Enter PEM" not in said, said
        assert f"(umask 077; openssl pkey -in '{key}' -out NEW.key)" in said, said
    remedy = ["openssl", "pkey", "-in", key, "-out", "plain.key", "-passin", "pass:secret"]
    subprocess.run(remedy, cwd=cluster.folder, check=True, umask=0o077)
    (cluster.folder / "plain.key").replace(key)
    daemon = epd_process.Daemon(tmp_path).start(*cluster.flags("locked"))
    assert daemon.stop() == 0


def test_a_key_that_got_a_pass_phrase_leaves_epd_replaceable_and_stoppable(start, cluster):
    daemon = start("a", "--listen=127.0.0.1:0", *cluster.sign("a"))
    cluster.encrypt("a")
    daemon.wait_for_log("certificate needs an operator")
    replaced = _epctl(daemon, "replace")
    assert replaced.returncode == 0, replaced.stderr
    daemon.wait_for_log("certificate needs an operator", 2)
    with NodeApi(f"unix:{daemon.grpc_socket}") as api:
        status = api.GetStatus()
        assert "is encrypted" in status.certificate.problem and status.certificate.left.seconds > 0


def test_the_key_of_another_certificate_is_an_error(tmp_path, cluster):
    cluster.sign("a3")
    cluster.sign("b3")
    shutil.copy(cluster.folder / "b3.key", cluster.folder / "a3.key")
    _ends(tmp_path, "is not the private key of tls_cert", *cluster.flags("a3"))
