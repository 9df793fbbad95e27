"""Goal: the bytes of a unique id cross a network encrypted or not at all; a packet capture is the judge."""

import attach_client as attach
import certificates
import epd_process
import namespaces
import pytest
import wait
from node_calls import NodeApi

# The fake worker's ids begin with this ("marked_id").
_MARK = b"epd-test-unique-id"

pytestmark = pytest.mark.skipif(
    bool(namespaces.allowed()), reason=f"needs network namespaces: {namespaces.allowed()}"
)


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    with namespaces.Network(2) as made:
        made.frames = tmp_path_factory.mktemp("capture") / "frames"
        made.capture(1, made.frames)
        yield made


def _form(network, folder, group: str, flags: list[list[str]], end) -> str:
    """Forms a group of two ranks on two nodes; returns what the node API says of its unique id."""
    daemons = []
    for i, name in enumerate("ab"):
        (folder / name).mkdir()
        daemons.append(epd_process.Daemon(folder / name))
        address = f"{network.addresses[0]}:0"
        place = f"--listen={address}" if i == 0 else f"--coordinator={daemons[0].listen_address()}"
        wrap = network.inside(i)
        daemons[i].start(
            f"--node={name}", "--start_grace=0", place, *flags[i], quirks="marked_id", wrap=wrap
        )
        end.append(daemons[i])
    spec = attach.spec(group, num_ranks=2)
    clients = [daemon.client() for daemon in daemons]
    for rank, client in enumerate(clients):
        client.attach()
        client.start_join(spec, [rank])
    for client in clients:
        client.expect("joined")
    with NodeApi(f"unix:{daemons[1].grpc_socket}") as api:
        known = api.ListGroups(name=group).groups[0]
    for client in clients:
        client.close()
    digests = {rank.unique_id_sha256 for rank in known.ranks if rank.node == "b"}
    return known.unique_id_note or f"digests: {len(digests - {b''})}"


@pytest.fixture
def end():
    daemons = []
    yield daemons
    for daemon in reversed(daemons):
        assert daemon.stop() == 0, daemon.log()


def test_capture_sees_an_id_that_is_allowed_to_travel_unencrypted(network, tmp_path, end):
    flags = ["--plain_unique_ids=allow"]
    assert _form(network, tmp_path, "open", [flags, flags], end) == "digests: 1"
    wait.until(lambda: _MARK in network.frames.read_bytes(), "the id in the capture")


def test_no_id_travels_on_a_plain_link_and_the_group_says_why(network, tmp_path, end):
    before = len(network.frames.read_bytes())
    note = _form(network, tmp_path, "plain", [[], []], end)
    assert "unique ids do not travel unencrypted" in note, note
    frames = network.frames.read_bytes()[before:]
    assert b"plain" in frames, "the capture saw the link"
    assert _MARK not in frames


def test_an_id_travels_under_tls_and_none_of_its_bytes_are_seen(network, tmp_path, end):
    before = len(network.frames.read_bytes())
    cluster = certificates.Authority(tmp_path / "ca")
    flags = [cluster.sign(name, network.addresses[i]) for i, name in enumerate("ab")]
    assert _form(network, tmp_path, "secret", flags, end) == "digests: 1"
    frames = network.frames.read_bytes()[before:]
    assert len(frames) > 4000, "the capture saw the link"
    assert _MARK not in frames and _MARK[:8] not in frames and b"secret" not in frames
    assert all(_MARK.decode() not in daemon.log() for daemon in end)
