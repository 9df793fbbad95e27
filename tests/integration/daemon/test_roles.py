"""Goal: who may do what over gRPC: whoever reaches a port may look at most, operators and nodes are who they prove to be."""

import os
import pathlib
import shutil
import subprocess

import attach_client as attach
import certificates
import cluster_secret
import epd_process
import fake_node
import grpc
import node_calls
import pytest

from proto.epd.v1 import cluster_pb2, node_pb2

_OPERATE = ("CreateGroup", "DrainGroup", "CloseGroup", "GetTrace", "ExamineNodes", "Replace")
_METHODS = [
    (service, method)
    for pb, service in ((node_pb2, "Node"), (cluster_pb2, "Cluster"))
    for method in pb.DESCRIPTOR.services_by_name[service].methods
]


# An empty one would be carried out.
_REQUESTS = {"Replace": node_pb2.ReplaceRequest(program="none").SerializeToString()}


def _code(channel, service: str, method, metadata=()) -> grpc.StatusCode:
    """What a call with an empty request, or an empty stream, comes to; see _REQUESTS."""
    kind = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, True): channel.stream_stream,
    }[method.client_streaming, method.server_streaming]
    call = kind(f"/epd.v1.{service}/{method.name}")
    try:
        sent = iter([b""]) if method.client_streaming else _REQUESTS.get(method.name, b"")
        answer = call(sent, timeout=10, metadata=metadata)
        if method.server_streaming:
            next(answer, None)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def _denied(channel, metadata=()) -> set[str]:
    return {
        method.name
        for service, method in _METHODS
        if _code(channel, service, method, metadata) == grpc.StatusCode.PERMISSION_DENIED
    }


def _tls(cluster, name: str, address: str) -> grpc.Channel:
    """A channel that presents the certificate of that name."""
    cluster.sign(name)
    read = [
        (cluster.folder / file).read_bytes() for file in ("ca.pem", f"{name}.key", f"{name}.pem")
    ]
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(*read))


@pytest.fixture
def plain(daemon) -> epd_process.Daemon:
    return daemon.start("--node=a", "--listen=127.0.0.1:0", "--start_grace=0")


def test_whoever_reaches_a_port_without_tls_may_look_and_do_nothing(plain):
    with grpc.insecure_channel(plain.listen_address()) as channel:
        assert _denied(channel) == {*_OPERATE, "Sync", "AskNodes"}
    plain.wait_for_log("peer refused")


def test_the_unix_socket_is_the_operators_and_no_nodes(plain):
    with grpc.insecure_channel(f"unix:{plain.grpc_socket}") as channel:
        assert _denied(channel) == {"Sync", "AskNodes"}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_another_user_who_was_let_in_to_the_unix_socket_may_look():
    with epd_process.open_folder() as folder:
        epctl = shutil.copy(epd_process.binary("epctl"), folder)
        daemon = epd_process.Daemon(folder).start()
        pathlib.Path(daemon.grpc_socket).chmod(0o666)

        def run(*words: str) -> subprocess.CompletedProcess:
            command = [epctl, f"--socket={daemon.socket}", *words]
            return subprocess.run(command, user=65534, check=False, capture_output=True, text=True)

        try:
            assert run("groups").returncode == 0
            denied = run("close", "g")
            assert denied.returncode == 5 and "uid 65534 may only look" in denied.stderr
        finally:
            assert daemon.stop() == 0


def test_a_node_that_knows_the_secret_is_let_in_as_itself_alone(plain):
    with grpc.insecure_channel(plain.listen_address()) as channel:
        proof = cluster_secret.metadata(cluster_pb2, channel, "n")
        assert _denied(channel, proof) == set(_OPERATE)
        with grpc.insecure_channel(
            plain.listen_address(), [("grpc.use_local_subchannel_pool", 1)]
        ) as other:
            stolen = _denied(other, proof)
            assert stolen == {*_OPERATE, "Sync", "AskNodes"}, "it is good for one connection"
    with fake_node.FakeNode(plain.listen_address(), "n") as node:
        assert node.view().node == "n"
    with (
        fake_node.FakeNode(plain.listen_address(), "n", says="m") as node,
        pytest.raises(grpc.RpcError) as refused,
    ):
        node.view()
    assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert "node 'n' has proved who it is, and says that it is 'm'" in refused.value.details()


def test_an_epd_with_another_secret_or_none_does_not_follow(plain, tmp_path):
    (tmp_path / "b").mkdir()
    follower = epd_process.Daemon(tmp_path / "b")
    wrong = tmp_path / "wrong"
    wrong.touch(mode=0o600)
    wrong.write_text("another secret, as long")
    where = f"--coordinator={plain.listen_address()}"
    follower.start("--node=b", where, f"--cluster_secret={wrong}")
    follower.wait_for_log("does not know this cluster's secret")
    assert follower.stop() == 0
    with pytest.raises(
        AssertionError, match="set tls_ca, tls_cert and tls_key, or, without TLS, c"
    ):
        follower.start("--node=b", where, "--cluster_secret=")
    wrong.chmod(0o644)
    with pytest.raises(AssertionError, match=f"cluster_secret: '{wrong}' .* mode 0644, expected"):
        follower.start("--node=b", where, f"--cluster_secret={wrong}")


@pytest.fixture
def encrypted(daemon, tmp_path):
    cluster = certificates.Authority(tmp_path / "ca")
    flags = [*cluster.sign("a")[:3], "--operators=alice,ops-*", "--nodes=n1,a"]
    return daemon.start("--node=a", "--listen=127.0.0.1:0", "--start_grace=0", *flags), cluster


def test_with_tls_a_certificates_name_says_what_its_owner_may(encrypted):
    epd, cluster = encrypted
    nodes = {"Sync", "AskNodes"}
    for name, denied in {
        "bob": nodes | set(_OPERATE),
        "alice": nodes | {"Replace"},  # Only on the node itself.
        "ops-7": nodes | {"Replace"},
        "n1": set(_OPERATE),
    }.items():
        with _tls(cluster, name, epd.listen_address()) as channel:
            assert _denied(channel) == denied, name


def test_a_node_is_the_one_of_its_certificate(encrypted, tmp_path):
    epd, cluster = encrypted
    for name, says in {"n1": "coordinator connected", "n2": "its certificate is for n1"}.items():
        (tmp_path / name).mkdir()
        node = epd_process.Daemon(tmp_path / name)
        where = f"--coordinator={epd.listen_address()}"
        node.start(f"--node={name}", where, *cluster.sign("n1"))
        node.wait_for_log(says)
        assert node.stop() == 0


def test_a_key_that_others_may_read_is_refused_by_name(daemon, tmp_path):
    cluster = certificates.Authority(tmp_path / "ca")
    flags = cluster.sign("a")
    (cluster.folder / "a.key").chmod(0o644)
    with pytest.raises(
        AssertionError, match="tls_key: .*a.key' .* mode 0644, expected .* mode 0600"
    ):
        daemon.start("--node=a", "--listen=127.0.0.1:0", *flags)


def test_an_order_over_tcp_without_tls_leaves_the_group_alone(plain):
    with plain.client() as client, node_calls.NodeApi(plain.listen_address()) as api:
        client.attach()
        client.join(attach.spec("g", num_ranks=1), [0])
        with pytest.raises(grpc.RpcError) as refused:
            api.CloseGroup(name="g")
        assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
        assert "call on the node's Unix socket" in refused.value.details()
        assert api.ListGroups(name="g").groups[0].state == node_pb2.GROUP_STATE_READY
