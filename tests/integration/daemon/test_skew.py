"""Goal: nodes of the previous protocol still work, impossible pairs and nodes that do not agree are refused by name."""

import time

import attach_client as attach
import fake_node
import grpc
import pytest

# What an epd of release 0.1.0 sends first and then, recorded: it knows nothing of facts and protocol versions.
_RECORDED_HELLO = bytes.fromhex("0a016f10e724")
_RECORDED_REPORT = bytes.fromhex("0a016f10e724180138634001")


@pytest.fixture
def coordinator(daemon):
    return daemon.start("--node=a", "--listen=127.0.0.1:0", "--start_grace=0")


def test_recorded_messages_of_the_first_release_are_answered(coordinator):
    pb = fake_node.pb
    hello = pb.NodeReport.FromString(_RECORDED_HELLO)
    report = pb.NodeReport.FromString(_RECORDED_REPORT)
    assert (hello.node, hello.incarnation, report.seq, report.worker) == ("o", 4711, 1, 99)
    with fake_node.FakeNode(coordinator.listen_address(), "o", _RECORDED_HELLO) as old:
        assert old.view().report_seq == 0
        old.send(_RECORDED_REPORT)
        assert old.view().report_seq == 1


def test_a_node_of_the_first_release_joins_a_group_and_an_agreeing_one_forms_it(coordinator):
    spec = attach.spec("g", num_ranks=2)
    with fake_node.FakeNode(coordinator.listen_address(), "o") as old:
        old.view()
        old.report(claims=[old.claim(spec, 1)])
        answers = [claim for view in (old.view(), old.view()) for claim in view.claims]
        assert answers and answers[-1].disposition in (1, 2)


@pytest.mark.parametrize(
    ("first", "upgrade"), [(7, "the coordinator's node"), (0, "")], ids=["newer", "same"]
)
def test_an_impossible_pair_is_refused_with_both_versions_and_what_to_upgrade(
    coordinator, first, upgrade
):
    versions = {"min_protocol": first, "max_protocol": first + 1} if first else {}
    with fake_node.FakeNode(coordinator.listen_address(), "n", **versions) as node:
        if not first:
            assert node.view().node == "n"
            return
        with pytest.raises(grpc.RpcError) as refused:
            node.view()
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
        for text in ("speaks cluster protocol 7 to 8", "the coordinator (epd 0.", upgrade):
            assert text in refused.value.details(), refused.value.details()


def test_a_node_whose_clock_is_ten_minutes_off_is_named_before_anything_is_formed(coordinator):
    spec = attach.spec("g", num_ranks=3)
    wrong = int((time.time() - 600) * 1000)
    with (
        fake_node.FakeNode(coordinator.listen_address(), "z") as node,
        coordinator.client() as client,
    ):
        node.view()
        client.attach()
        client.start_join(spec, [0, 1])
        facts = {"exchange": 2, "wall_clock_ms": wrong}
        node.report(claims=[node.claim(spec, 2)], facts=facts, worker_has_nccl=True)
        failed = client.expect("join_failed").status
        assert "the clock of node z is" in failed.message, failed.message
        assert "behind the others" in failed.message
