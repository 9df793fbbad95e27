"""Goal: a backend that is asked for by name and is not there is refused with the reason, and never replaced by another."""

import attach_client as attach
import pytest
import running_epd

_FAILED_PRECONDITION = 9


@pytest.fixture(scope="module")
def epd():
    with running_epd.RunningEpd() as running:
        yield running


@pytest.mark.parametrize("backend", ["cuda", "nccl_ep"])
def test_a_backend_that_is_not_there_is_refused_by_its_name(epd, backend):
    with attach.Client(epd.socket) as client:
        client.attach()
        spec = attach.spec(
            f"g-{backend}",
            num_ranks=1,
            num_experts=4,
            max_token_dtype=attach.pb.DTYPE_BFLOAT16,
            backend=backend,
        )
        client.start_join(spec, [0])
        failed = client.expect("join_failed")
    assert failed.status.code == _FAILED_PRECONDITION, failed
    assert (
        f"backend={backend}" in failed.status.message
        or f"backend {backend}" in failed.status.message
    )
    assert "epctl doctor" in failed.status.message


@pytest.mark.parametrize("backend", ["auto", "cpu"])
def test_what_is_there_serves_and_the_node_says_which_one_it_is(epd, backend):
    with attach.Client(epd.socket) as client:
        client.attach()
        client.join(attach.spec(f"g-{backend}", num_ranks=1, backend=backend), [0])
        assert epd.api.call("GetStatus").workers[0].backend == "cpu"
