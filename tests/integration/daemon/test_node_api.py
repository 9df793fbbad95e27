"""The gRPC API of a node, as epctl and scripts use it."""

import mmap
import os
import stat

import attach_client as attach
import grpc
import pytest
import wait
from node_calls import NodeApi

from proto.epd.v1 import node_pb2 as pb

_SERVING, _NOT_SERVING = 1, 2


@pytest.fixture
def api(daemon):
    daemon.start()
    daemon.worker_pid()
    with NodeApi(f"unix:{daemon.grpc_socket}") as api:
        yield api


def _code_of(call, **fields) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as raised:
        call(**fields)
    return raised.value.code(), raised.value.details()


def test_status_of_an_idle_node_is_ok_and_names_it(daemon, api):
    status = api.GetStatus()
    assert (
        status.pid == daemon.process.pid and status.health == pb.HEALTH_OK and not status.problems
    )
    assert status.workers[0].pid == daemon.worker_pid() and status.workers[0].backend == "fake"
    assert status.pool_bytes == 64 << 20
    assert (status.min_protocol_version, status.max_protocol_version) == (1, 1)
    assert status.coordinator == "" and status.coordinator_connected and not status.draining


def test_group_sessions_and_ranks_tell_who_holds_what(daemon, api):
    with daemon.client() as a:
        first = a.attach(client_name="python3 train.py", client_version="9.9")
        a.start_join(attach.spec(num_ranks=3), [0, 2], devices=["cpu:0", "cpu:1"])
        forming = wait.until(
            lambda: api.ListGroups(name="g").groups if api.ListGroups().groups else None, "g"
        )
        assert forming[0].state == pb.GROUP_STATE_FORMING
        assert [r.phase for r in forming[0].ranks] == ["arrived", "missing", "arrived"]
        with daemon.client() as b:
            b.attach()
            b.start_join(attach.spec(num_ranks=3), [1])
            a.expect("joined")
            group = api.ListGroups(name="g").groups[0]
            assert group.state == pb.GROUP_STATE_READY and group.epoch == 1
            assert [r.device for r in group.ranks] == ["cpu:0", "", "cpu:1"]
            assert [list(r.experts) for r in group.ranks] == [[0, 1], [2, 3], [4, 5]]
            assert {len(r.unique_id_sha256) for r in group.ranks} == {32}
            sessions = {s.session_id: s for s in api.ListSessions().sessions}
            mine = sessions[first.session_id]
            assert (
                mine.pid == os.getpid()
                and mine.client_name == "python3 train.py"
                and mine.client_version == "9.9"
            )
            assert [r.rank for r in mine.ranks] == [0, 2]
            assert len(api.ListRanks(group="g").ranks) == 3


def test_unknown_group_is_not_found_and_the_known_ones_are_listed(daemon, api):
    api.CreateGroup(spec=attach.spec("known"))
    for call, fields in (
        (api.ListGroups, {"name": "x"}),
        (api.ListRanks, {"group": "x"}),
        (api.DrainGroup, {"name": "x"}),
        (api.CloseGroup, {"name": "x"}),
    ):
        code, details = _code_of(call, **fields)
        assert code == grpc.StatusCode.NOT_FOUND and "'x'" in details and "known" in details


def test_created_group_waits_for_its_ranks_and_outlives_them_until_it_is_closed(daemon, api):
    made = api.CreateGroup(request_id="r1", spec=attach.spec("made", num_ranks=1)).group
    assert made.persistent and made.state == pb.GROUP_STATE_FORMING
    again = api.CreateGroup(request_id="r1", spec=attach.spec("made", num_ranks=1)).group
    assert again.group_id == made.group_id
    code, details = _code_of(
        api.CreateGroup, request_id="r2", spec=attach.spec("made", num_ranks=2)
    )
    assert code == grpc.StatusCode.ALREADY_EXISTS and "num_ranks" in details
    with daemon.client() as client:
        client.attach()
        assert client.join(attach.spec("made", num_ranks=1), [0]).group_id == made.group_id
    wait.until(lambda: api.ListGroups().groups[0].state == pb.GROUP_STATE_FORMING, "it forms again")
    api.CloseGroup(request_id="r3", name="made")
    api.CloseGroup(request_id="r3", name="made")
    assert not api.ListGroups().groups


def test_bad_spec_is_refused_with_the_field(api):
    code, details = _code_of(api.CreateGroup, spec=attach.spec(num_experts=0))
    assert code == grpc.StatusCode.INVALID_ARGUMENT and "num_experts" in details


def test_watch_sends_every_state_up_to_closed(daemon, api):
    api.CreateGroup(spec=attach.spec(num_ranks=1))
    stream = api.WatchGroup(name="g", timeout=20)
    assert next(stream).group.state == pb.GROUP_STATE_FORMING
    with daemon.client() as client:
        client.attach()
        client.join(attach.spec(num_ranks=1), [0])
        seen = []
        for message in stream:
            seen.append(message.group.state)
            if message.group.state == pb.GROUP_STATE_READY:
                api.DrainGroup(name="g")
        assert pb.GROUP_STATE_READY in seen and seen[-1] == pb.GROUP_STATE_CLOSED
        assert not client.expect("group_draining").status.resumable, (
            "an operator's drain is the end"
        )
        assert client.expect("group_ended").group_id


def test_watch_of_an_unknown_group_is_not_found(api):
    with pytest.raises(grpc.RpcError) as raised:
        next(api.WatchGroup(name="x"))
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND


def test_cancelled_watches_leave_the_daemon_well(daemon, api):
    api.CreateGroup(spec=attach.spec())
    for _ in range(20):
        stream = api.WatchGroup(name="g")
        next(stream)
        stream.cancel()
    api.CloseGroup(name="g")
    assert api.GetStatus().health == pb.HEALTH_OK


def test_drain_of_another_epoch_is_aborted_and_names_both(daemon, api):
    with daemon.client() as client:
        client.attach()
        client.join(attach.spec(num_ranks=1), [0])
        code, details = _code_of(api.DrainGroup, name="g", epoch=7)
        assert code == grpc.StatusCode.ABORTED and "got epoch 7" in details and "1" in details
        closed = api.DrainGroup(request_id="d", name="g", epoch=1).group
        assert closed.state == pb.GROUP_STATE_CLOSED
        assert (
            api.DrainGroup(request_id="d", name="g", epoch=1).group.state == pb.GROUP_STATE_CLOSED
        )


def test_health_follows_the_node_and_its_groups(daemon, api):
    assert api.health() == _SERVING and api.health("epd.v1.Node") == _SERVING
    with pytest.raises(grpc.RpcError) as raised:
        api.health("epd.group/g")
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND
    with daemon.client() as client:
        client.attach()
        client.join(attach.spec(num_ranks=1), [0])
        wait.until(lambda: api.health("epd.group/g") == _SERVING, "the group serves")
    wait.until(lambda: api.health("epd.group/g") == _NOT_SERVING, "the group has ended")


def test_health_of_a_tenant_is_its_own_and_the_node_serves_whatever_its_groups_do(daemon, api):
    whole, half = daemon.client(), daemon.client()
    with whole, half:
        whole.attach()
        whole.join(attach.spec(num_ranks=2, tenant="a"), [0, 1])
        half.attach()
        half.start_join(attach.spec(num_ranks=2, tenant="b"), [0])
        known = ("epd.group/g/a", "epd.group/g/b")
        wait.until(lambda: len(api.ListGroups(name="g").groups) == 2, "both tenants are known")
        assert [api.health(name) for name in known] == [_SERVING, _NOT_SERVING]
        assert api.health("epd.group/g") == _SERVING, "one of its tenants is served"
        assert api.health() == _SERVING


def test_memory_names_the_owner_of_every_byte(daemon, api):
    with daemon.client() as client:
        session = client.attach()
        regions = {(r.kind, tuple(r.session_ids)): r for r in api.GetMemory().regions}
        slots = regions[("slots", (session.session_id,))]
        assert slots.address_bytes == 4096 * 257 and str(os.getpid()) in slots.owner
        assert slots.committed_bytes == 4096, "a slot costs nothing until it is used"
        with mmap.mmap(client.fds[0], 4096 * 257) as segment:
            segment[4096 * 9] = 1  # Its ninth slot.
        regions = {(r.kind, tuple(r.session_ids)): r for r in api.GetMemory().regions}
        slots = regions[("slots", (session.session_id,))]
        assert slots.committed_bytes == slots.in_use_bytes == 2 * 4096, "charged to who used it"
        assert regions[("records", ())].committed_bytes > 0


def test_memory_plan_grows_with_the_group_and_a_bad_spec_is_refused(api):
    small = api.PlanMemory(spec=attach.spec())
    large = api.PlanMemory(spec=attach.spec(hidden=4096))
    assert 0 < small.handle_mem_bytes == large.handle_mem_bytes
    assert large.dispatch_bytes_per_rank - small.dispatch_bytes_per_rank >= 64 * 4 * 4000
    assert large.combine_bytes_per_rank > small.combine_bytes_per_rank
    assert small.slots_bytes_per_session == 4096 + 64 * 256 + 4096 * 256
    wide = api.PlanMemory(spec=attach.spec(hidden=4096), element_bytes=8)
    assert wide.dispatch_bytes_per_rank > 1.9 * large.dispatch_bytes_per_rank
    assert wide.combine_bytes_per_rank == large.combine_bytes_per_rank, "nothing wider is summed"
    code, details = _code_of(api.PlanMemory, spec=attach.spec(), element_bytes=9)
    assert code == grpc.StatusCode.INVALID_ARGUMENT and "element_bytes is 9" in details
    code, details = _code_of(api.PlanMemory, spec=attach.spec(num_ranks=0))
    assert code == grpc.StatusCode.INVALID_ARGUMENT and "num_ranks" in details


def test_doctor_gives_each_problem_a_consequence_and_a_fix(api):
    findings = api.GetDoctor().findings
    assert {"worker", "libnccl", "memory limit", "cores", "open files", "runtime folder"} <= {
        f.what for f in findings
    }
    for finding in findings:
        assert finding.found, finding
        assert finding.ok or (finding.consequence and finding.fix), finding


def test_configuration_has_the_origin_of_every_value(daemon, api):
    settings = {s.name: s for s in api.GetConfig().settings}
    assert settings["socket"].origin == "flag" and settings["socket"].value == daemon.socket
    assert settings["absent"].origin == "default" and settings["absent"].value == "10m"
    assert all(s.help for s in settings.values())


def test_every_order_is_one_line_of_the_log_that_says_who_gave_it(daemon, api):
    spec = attach.spec(num_ranks=1)
    api.CreateGroup(request_id="c1", spec=spec)
    api.DrainGroup(request_id="d1", name="g")
    code, _ = _code_of(api.CloseGroup, request_id="x1", name="g")
    assert code == grpc.StatusCode.NOT_FOUND
    lines = [line for line in daemon.log().splitlines() if 'event="order"' in line]
    by = f'by="uid={os.getuid()} pid={os.getpid()}"'
    assert len(lines) == 3 and all(by in line and " info " in line for line in lines), lines
    for line, what in zip(lines, ("create OK", "drain OK", "close NOT_FOUND"), strict=True):
        order, result = what.split()
        assert (
            f"order={order} group=g" in line
            and f"request_id={order[0] if order != 'close' else 'x'}1" in line
        )
        assert f"result={result}" in line


def test_who_takes_a_rank_is_in_the_log_which_stays_short_and_without_warnings(daemon, api):
    def come_and_go(leaves: bool) -> None:
        with daemon.client() as client:
            session = client.attach().session_id
            joined = client.join(attach.spec(num_ranks=1), [0])
            who = f"session={session} request=1 pid={os.getpid()} uid={os.getuid()}"
            assert who in daemon.log()
            if leaves:
                client.send(leave={"request_id": 2, "group_id": joined.group_id})
                client.expect("left")
        daemon.wait_for_log(f'event="session ended" session={session} ')

    come_and_go(leaves=True)
    before = len(daemon.log())
    for _ in range(10):
        come_and_go(leaves=True)
    assert (len(daemon.log()) - before) / 10 < 250, daemon.log()[before:]
    come_and_go(leaves=False)
    daemon.client().close()  # Only looks whether somebody listens.
    assert " warning " not in daemon.log()


def test_reflection_lists_the_services(api):
    call = api.channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    )
    answer = next(call(iter([b"\x3a\x01*"]), timeout=10))
    assert b"epd.v1.Node" in answer and b"grpc.health.v1.Health" in answer


def test_grpc_socket_is_closed_to_other_users(daemon, api):
    assert stat.S_IMODE(os.stat(daemon.grpc_socket).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(daemon.socket).st_mode) == 0o666


def _join_tenant(daemon, tenant: str):
    client = daemon.client()
    client.attach()
    spec = attach.spec(num_ranks=1, tenant=tenant)
    return client, client.join(spec, [0], program=f"of {tenant}", metadata="for people")


def test_tenants_of_a_group_are_listed_drained_and_closed_apart(daemon, api):
    a, joined_a = _join_tenant(daemon, "a")
    b, joined_b = _join_tenant(daemon, "b")
    with a, b:
        groups = {g.spec.tenant: g for g in api.ListGroups(name="g").groups}
        assert groups["a"].group_id == joined_a.group_id != joined_b.group_id
        assert groups["a"].communicator_id == groups["b"].communicator_id != 0
        assert groups["a"].epoch == groups["b"].epoch == 1
        ranks = {r.tenant: r for r in api.ListRanks(group="g").ranks}
        assert ranks["a"].program == "of a" and ranks["b"].metadata == "for people"
        code, details = _code_of(api.DrainGroup, name="g", tenant="c")
        assert code == grpc.StatusCode.NOT_FOUND and '"c"' in details
        assert api.health("epd.group/g/a") == api.health("epd.group/g") == _SERVING
        watch = api.WatchGroup(name="g", tenant="b", timeout=20)
        assert next(watch).group.group_id == joined_b.group_id
        drained = api.DrainGroup(name="g", tenant="a").group
        assert drained.state == pb.GROUP_STATE_CLOSED
        assert a.expect("group_draining").group_id == joined_a.group_id
        assert a.expect("group_ended").group_id == joined_a.group_id
        left = api.ListGroups(name="g").groups
        assert [g.spec.tenant for g in left] == ["b"] and left[0].state == pb.GROUP_STATE_READY
        api.CloseGroup(name="g", tenant="b")
        assert b.expect("group_ended").group_id == joined_b.group_id
        assert [m.group.state for m in watch][-1] == pb.GROUP_STATE_CLOSED


def test_too_much_metadata_is_refused_with_both_numbers(daemon, api):
    with daemon.client() as client:
        client.attach()
        client.start_join(attach.spec(num_ranks=1), [0], metadata="x" * 257)
        failed = client.expect("join_failed").status
        assert failed.code == 3 and "got 257 bytes, expected at most 256" in failed.message
