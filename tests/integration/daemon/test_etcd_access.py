"""Goal: epds use an etcd that wants TLS, certificates or a user's password, name what it refuses, and find in it the groups
that operators made before."""

import json
import os
import signal
import ssl
import subprocess
import time
import urllib.request

import attach_client as attach
import certificates
import epd_process
import etcd_process
import grpc
import pytest
import wait
from node_calls import NodeApi

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


def _allow_reading_alone(authority, address: str) -> None:
    """Takes from epd's role what _let_in_by_password gave it, but for reading."""
    credentials = grpc.ssl_channel_credentials((authority.folder / "ca.pem").read_bytes())
    with grpc.secure_channel(address, credentials) as channel:

        def call(method: str, request: bytes, **options) -> bytes:
            return channel.unary_unary(f"/etcdserverpb.Auth/{method}")(
                request, timeout=10, **options
            )

        answer = call("Authenticate", _string(1, "root") + _string(2, _PASSWORD))
        at = 2 + answer[1]  # Behind the header, field 1: the token, field 2.
        token = answer[at + 2 : at + 2 + answer[at + 1]].decode()
        below_epd = b"\x08\x00" + _string(2, "/epd/") + _string(3, "/epd0")
        request = _string(1, "epd") + bytes([0x12, len(below_epd)]) + below_epd
        call("RoleGrantPermission", request, metadata=(("token", token),))


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


def _number(field: int, value: int) -> bytes:
    """A number's field of a protobuf, below 128 or of a member's id."""
    out = bytes([field << 3])
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def _say_that_there_is_no_space(address: str, on: bool) -> None:
    """Etcd's own alarm, with which it refuses writes until it is disarmed."""
    action, no_space = (1 if on else 2), 1
    with grpc.insecure_channel(address) as channel:
        channel.unary_unary("/etcdserverpb.Maintenance/Alarm")(
            _number(1, action) + _number(3, no_space), timeout=10
        )


def _writes_asked_of(address: str) -> int:
    """How many transactions, grants and puts this etcd has answered."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    counted = [line for line in lines if line.startswith("grpc_server_handled_total{")]
    kinds = ('grpc_method="Txn"', 'grpc_method="Put"', 'grpc_method="LeaseGrant"')
    return sum(int(float(line.split()[-1])) for line in counted if any(k in line for k in kinds))


_CREATE = ("create", "kept", "--ranks=2", "--experts=4", "--max-tokens-per-rank=16")
_CREATE += ("--recv-capacity-per-rank=64", "--hidden=8")


def _refused_create(daemon) -> str:
    """What `epctl create` says within its own five seconds."""
    command = [epd_process.binary("epctl"), "--socket", daemon.socket, *_CREATE]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0 and "overloaded" not in ended.stderr, ended
    return ended.stderr


def _refused_join(daemon) -> str:
    with daemon.client() as client:
        client.attach()
        client.start_join(attach.spec("late", num_ranks=1), [0], deadline={"nanos": 500_000_000})
        return client.expect("join_failed").status.message


def _coordinator(daemon) -> str:
    """As `epctl status` has it."""
    command = [epd_process.binary("epctl"), "--socket", daemon.socket, "status"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return next(one for one in ended.stdout.splitlines() if one.startswith("coordinator:"))


def _problems(daemon) -> str:
    with NodeApi(f"unix:{daemon.grpc_socket}") as api:
        return " ".join(api.GetStatus().problems)


def test_an_etcd_that_takes_no_writes_is_named_and_tried_ever_more_rarely(etcd_of, epd_of):
    etcd = etcd_of()
    first = epd_of("a", etcd, "--start_grace=0")
    first.wait_for_log("leading")
    second = epd_of("b", etcd, "--start_grace=0")
    second.wait_for_log("coordinator connected")
    _say_that_there_is_no_space(etcd.address, on=True)
    said = _refused_create(first)
    assert "database space exceeded" in said and "alarm disarm" in said, said
    first.process.kill()
    first.process.wait()
    wait.until(
        lambda: all(text in _problems(second) for text in ("no coordinator", "space exceeded")),
        "the cause of there being no coordinator",
    )
    assert "no coordinator yet: " in (said := _refused_join(second)), said
    assert "space exceeded" in said and "alarm disarm" in said, said
    assert "none (see the problems below)" in _coordinator(second)
    size, asked = len(second.log()), _writes_asked_of(etcd.address)
    assert "space exceeded" in _refused_create(second)
    time.sleep(6)
    assert _writes_asked_of(etcd.address) - asked < 20
    assert second.log().count("etcd problem") == 1, second.log()
    assert len(second.log()) - size < 2000, second.log()[size:]
    _say_that_there_is_no_space(etcd.address, on=False)
    second.wait_for_log("leading")
    second.wait_for_log("etcd problem is over")
    wait.until(lambda: "etcd" not in _problems(second), "the problem is over")


def _watchers(etcd, authority) -> int:
    """How many watches this etcd serves."""
    trust = ssl.create_default_context(cafile=authority.ca)
    with urllib.request.urlopen(
        f"https://{etcd.address}/metrics", timeout=10, context=trust
    ) as page:
        lines = page.read().decode().splitlines()
    name = "etcd_debugging_mvcc_watcher_total "
    return next(int(float(line.split()[1])) for line in lines if line.startswith(name))


def test_a_user_watches_also_after_its_token_has_ended(etcd_of, epd_of, authority, tmp_path):
    """etcd refuses a watch with no token, or an old one, in a stream that stays open."""
    etcd = etcd_of(*_tls_flags(authority), "--auth-token-ttl=2", tls=True)
    _let_in_by_password(authority, etcd.address)
    (tmp_path / "word").touch(mode=0o600)
    (tmp_path / "word").write_text(_PASSWORD + "\n")
    ca = f"--etcd_ca={_file(authority, 'ca.pem')}"
    user = ["--etcd_user=epd", f"--etcd_password_file={tmp_path / 'word'}"]
    daemon = epd_of("a", etcd, ca, *user, "--start_grace=0")
    daemon.wait_for_log("leading")
    wait.until(lambda: _watchers(etcd, authority) == 1, "etcd serves the watch")
    etcd.kill()  # It forgets tokens and watches.
    etcd.start(*_tls_flags(authority), "--auth-token-ttl=2")
    wait.until(lambda: _watchers(etcd, authority) == 1, "etcd serves the watch again")


def test_a_permission_that_is_withdrawn_is_named_once(etcd_of, epd_of, authority, tmp_path):
    etcd = etcd_of(*_tls_flags(authority), tls=True)
    _let_in_by_password(authority, etcd.address)
    (tmp_path / "word").touch(mode=0o600)
    (tmp_path / "word").write_text(_PASSWORD + "\n")
    ca = f"--etcd_ca={_file(authority, 'ca.pem')}"
    user = ["--etcd_user=epd", f"--etcd_password_file={tmp_path / 'word'}"]
    first = epd_of("a", etcd, ca, *user, "--start_grace=0")
    first.wait_for_log("leading")
    second = epd_of("b", etcd, ca, *user, "--start_grace=0")
    second.wait_for_log("coordinator connected")
    _allow_reading_alone(authority, etcd.address)
    said = _refused_create(first)
    assert "permission denied" in said and "role grant-permission" in said, said
    first.process.kill()
    first.process.wait()
    wait.until(
        lambda: all(text in _problems(second) for text in ("no coordinator", "permission denied")),
        "the cause of there being no coordinator",
    )
    assert "permission denied" in (said := _refused_join(second)), said
    time.sleep(3)
    assert second.log().count("etcd problem") == 1, second.log()


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
