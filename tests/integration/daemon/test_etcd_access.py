"""Goal: epds use an etcd that wants TLS, certificates or a user's password, name what it refuses, and find in it the groups
that operators made before."""

import json
import os
import signal
import subprocess

import attach_client as attach
import certificates
import epd_process
import etcd_process
import grpc
import pytest
import wait

pytestmark = pytest.mark.skipif(bool(etcd_process.missing()), reason=etcd_process.missing())

_PASSWORD = "correct horse"


@pytest.fixture
def authority(tmp_path):
    made = certificates.Authority(tmp_path / "ca")
    made.sign("etcd", "127.0.0.1")
    made.sign("node", "127.0.0.1")
    return made


def _file(authority, name: str) -> str:
    return str(authority.folder / name)


@pytest.fixture
def etcd_of(tmp_path):
    started = []

    def start(*flags: str, tls: bool = False) -> etcd_process.Etcd:
        (tmp_path / "etcd").mkdir()
        started.append(etcd_process.Etcd(tmp_path / "etcd", tls=tls))
        return started[0].start(*flags)

    yield start
    for etcd in started:
        etcd.kill()


@pytest.fixture
def epd_of(tmp_path):
    started = []

    def start(name: str, etcd, *flags: str) -> epd_process.Daemon:
        (tmp_path / name).mkdir(exist_ok=True)
        started.append(epd_process.Daemon(tmp_path / name))
        where = f"--rendezvous=etcd://{etcd.address}/test"
        return started[-1].start(f"--node={name}", "--listen=127.0.0.1:0", where, *flags)

    yield start
    for daemon in started:
        daemon.stop()


def _tls_flags(authority) -> list[str]:
    return [
        f"--cert-file={_file(authority, 'etcd.pem')}",
        f"--key-file={_file(authority, 'etcd.key')}",
    ]


def _string(number: int, text: str) -> bytes:
    """A string field of a protobuf."""
    data = text.encode()
    return bytes([number << 3 | 2, len(data)]) + data


def _let_in_by_password(authority, address: str) -> None:
    """Users root and epd; epd may read and write below /epd/ and nothing else."""
    credentials = grpc.ssl_channel_credentials((authority.folder / "ca.pem").read_bytes())
    with grpc.secure_channel(address, credentials) as channel:

        def call(method: str, request: bytes) -> None:
            channel.unary_unary(f"/etcdserverpb.Auth/{method}")(request, timeout=10)

        below_epd = b"\x08\x02" + _string(2, "/epd/") + _string(3, "/epd0")
        for user in ("root", "epd"):
            call("UserAdd", _string(1, user) + _string(2, _PASSWORD))
            call("RoleAdd", _string(1, user))
            call("UserGrantRole", _string(1, user) + _string(2, user))
        call("RoleGrantPermission", _string(1, "epd") + bytes([0x12, len(below_epd)]) + below_epd)
        call("AuthEnable", b"")


def test_etcd_behind_tls_with_certificates_of_both_sides(etcd_of, epd_of, authority):
    wants_ours = ["--client-cert-auth", f"--trusted-ca-file={_file(authority, 'ca.pem')}"]
    etcd = etcd_of(*_tls_flags(authority), *wants_ours, tls=True)
    own = [f"--etcd_ca={_file(authority, 'ca.pem')}"]
    own += [f"--etcd_cert={_file(authority, 'node.pem')}"]
    own += [f"--etcd_key={_file(authority, 'node.key')}"]
    epd_of("a", etcd, *own).wait_for_log("leading")
    epd_of("b", etcd, *own).wait_for_log("coordinator connected")


def test_a_foreign_etcd_and_a_plain_call_are_refused_by_name(etcd_of, epd_of, authority, tmp_path):
    etcd = etcd_of(*_tls_flags(authority), tls=True)
    foreign = certificates.Authority(tmp_path / "foreign", "foreign")
    believes_others = epd_of("a", etcd, f"--etcd_ca={foreign.ca}")
    plain = epd_of("b", etcd)
    for daemon in (believes_others, plain):
        daemon.wait_for_log("etcd problem")
        assert "etcd does not answer" in daemon.log() and etcd.address in daemon.log()
        assert 'event="leading"' not in daemon.log()


def test_a_user_with_a_password_is_let_in_and_a_wrong_one_is_named(
    etcd_of, epd_of, authority, tmp_path
):
    etcd = etcd_of(*_tls_flags(authority), tls=True)
    _let_in_by_password(authority, etcd.address)
    for name, password in (("right", _PASSWORD), ("wrong", "wrong")):
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text(password + "\n")
    ca = f"--etcd_ca={_file(authority, 'ca.pem')}"
    right = epd_of("a", etcd, ca, "--etcd_user=epd", f"--etcd_password_file={tmp_path / 'right'}")
    right.wait_for_log("leading")
    wrong = epd_of("b", etcd, ca, "--etcd_user=epd", f"--etcd_password_file={tmp_path / 'wrong'}")
    wrong.wait_for_log("user 'epd' cannot log in")
    nobody = epd_of("c", etcd, ca)
    nobody.wait_for_log("etcd problem")
    for daemon in (right, wrong, nobody):
        assert _PASSWORD not in daemon.log()
        assert daemon is right or 'event="leading"' not in daemon.log()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--etcd_cert=x"], "etcd_cert and etcd_key: got one of them"),
        (["--etcd_user=x"], "etcd_user and etcd_password_file: got one of them"),
        (["--etcd_user=x", "--etcd_password_file=y"], "etcd_ca: got nothing"),
        (["--etcd_ca=x"], "expected rendezvous=etcd"),
    ],
)
def test_half_of_the_settings_is_an_error(tmp_path, flags, says):
    daemon = epd_process.Daemon(tmp_path)
    with pytest.raises(AssertionError, match=says):
        daemon.start(*flags)
    assert daemon.process.wait(10) in (1, 2)


def _epctl(daemon, *words: str) -> tuple[int, dict]:
    done = subprocess.run(
        [epd_process.binary("epctl"), f"--socket={daemon.socket}", "-o", "json", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
        env={key: value for key, value in os.environ.items() if not key.startswith("EPD_")},
    )
    return done.returncode, json.loads(done.stdout)


def _group(daemon, name: str) -> dict | None:
    groups = _epctl(daemon, "groups")[1].get("groups", [])
    return next((group for group in groups if group["spec"]["name"] == name), None)


_SPEC = ["--ranks=2", "--experts=4", "--max-tokens-per-rank=64", "--recv-capacity-per-rank=256"]
_SPEC += ["--hidden=16", "--top-k=2", "--dtype=float32"]


def test_a_create_is_answered_once_etcd_has_the_group(etcd_of, epd_of):
    etcd = etcd_of()
    daemon = epd_of("a", etcd, "--start_grace=5s")
    daemon.wait_for_log("leading")
    etcd.process.send_signal(signal.SIGSTOP)
    command = [epd_process.binary("epctl"), f"--socket={daemon.socket}", "create", "g", *_SPEC]
    create = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    wait.until(lambda: _group(daemon, "g"), "the group to be made")
    with pytest.raises(subprocess.TimeoutExpired):
        create.wait(0.3)
    etcd.process.send_signal(signal.SIGCONT)
    assert create.wait(20) == 0
    assert etcd.holds("kept/groups/g")


def test_groups_that_operators_made_outlive_the_coordinator(etcd_of, epd_of):
    etcd = etcd_of()
    daemons = []
    for name in "abc":
        daemons.append(epd_of(name, etcd, "--start_grace=5s"))
        daemons[-1].wait_for_log("coordinator connected" if daemons[1:] else "leading")
    for name in ("waits", "serves", "closed"):
        code, answer = _epctl(daemons[1], "create", name, *_SPEC)
        assert code == 0, answer
        assert etcd.holds(f"kept/groups/{name}"), "answered once it is stored"
    spec = attach.spec("serves", num_ranks=2)
    clients = [daemon.client() for daemon in daemons[1:]]
    for rank, client in enumerate(clients):
        client.attach()
        client.start_join(spec, [rank])
    joined = [client.expect("joined") for client in clients]
    assert _epctl(daemons[0], "close", "closed")[0] == 0
    assert not etcd.holds("kept/groups/closed"), "answered once the store has forgotten it"
    before = {name: _group(daemons[0], name) for name in ("waits", "serves")}

    daemons[0].process.kill()
    daemons[0].process.wait()
    wait.until(
        lambda: any('event="leading"' in daemon.log() for daemon in daemons[1:]), "a new leader"
    )
    leader = next(daemon for daemon in daemons[1:] if 'event="leading"' in daemon.log())
    after = wait.until(lambda: _group(leader, "waits"), "the group to be there again")
    assert after["group_id"] == before["waits"]["group_id"] and after["persistent"]
    assert _group(leader, "closed") is None
    serves = wait.until(lambda: _group(leader, "serves"), "the serving group")
    assert serves["persistent"] and serves["state"] == "GROUP_STATE_READY", serves
    assert serves["epoch"] == before["serves"]["epoch"] == str(joined[0].epoch)
    for client in clients:
        client.close()
    wait.until(
        lambda: _group(leader, "serves")["state"] == "GROUP_STATE_FORMING",
        "the emptied group to wait for new ranks",
    )
