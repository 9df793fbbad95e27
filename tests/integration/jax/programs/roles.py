"""Attention ranks and expert ranks: different programs on different devices, forward and backward across the boundary."""

import functools
import json
import os
import subprocess
import threading

import epd.jax as ep
import harness
import jax
import jax.numpy as jnp
import numpy as np
from jax._src import distributed
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from role_problem import (
    BATCHES,
    CFG,
    HIDDEN,
    SLOTS,
    TOKENS,
    arguments_of,
    data_of,
    expect,
    group_of,
    is_here,
    meshes_of,
    pairs_of,
    put,
    run_and_compare,
    shapes_of,
)
from world import World, fails, raises


def check_every_number_of_attention_and_expert_ranks(world: World):
    """All M, N in 1..4 where the roles are two processes; elsewhere a selection."""
    most = len(jax.devices())
    every = [(m, n) for m in range(1, 5) for n in range(1, 5)]
    some = [pair for pair in [(1, 4), (2, 3), (3, 2), (4, 4)] if sum(pair) <= most]
    for m, n in every if jax.process_count() == 2 and most == 8 else some:
        run_and_compare(world, m, n)


def check_layers_of_one_program(world: World):
    for m, n in [(2, 2), (3, 2)]:
        if m + n <= len(jax.devices()):
            run_and_compare(world, m, n, num_layers=3)
            run_and_compare(world, m, n, num_layers=3, looped=True)


def check_no_attention_rank_waits_for_another(world: World):
    """The first attention rank begins only after the others have ended three steps: if any of their calls waited for it,
    however long or short, this would end in an absent rank. So a delay of 2 s moves nobody's completion.
    """
    store = distributed.global_state.client
    m, n, steps = 3, 2, 3
    if store is None or jax.process_count() < m + n:
        return
    attention, _ = meshes_of(m, n)
    late = attention.devices[0].process_index
    others = {device.process_index for device in attention.devices[1:]}
    with group_of(m, n) as group:
        batches, scales = data_of(m, group, 1, 351)
        run = ep.roles(pairs_of(m, n, 1), group, shapes_of(m, n, group, 1))
        arguments = arguments_of(m, n, group, batches, scales)
        if world.index == late:
            for other in others:
                store.blocking_key_value_get(f"roles/ended/{other}", 60_000)
        started = [run.start(*arguments) for _ in range(steps)]
        for one in started:
            expect(world, m, n, group, batches, scales, one.result())
        if world.index in others:
            store.key_value_set(f"roles/ended/{world.index}", "yes")
    world.barrier("roles waited")


def check_two_micro_batches_are_in_flight_at_once(world: World):
    """The experts answer the first micro-batch only once the second has reached them, and the other way round."""
    if jax.process_count() > 1:
        return
    arrived = [threading.Event() for _ in range(BATCHES)]

    def attend(batch: int, link, tokens):
        idx, weights = jnp.zeros((TOKENS, 2), jnp.int32), jnp.ones((TOKENS, 2))
        name = f"ffn{batch}"
        recv, _, handle, counts, _ = link.dispatch(CFG, idx, tokens, weights, 1, name=name)
        return link.combine(CFG, handle, recv, TOKENS, name=name)

    def serve(batch: int, link):
        def await_both(rows):
            arrived[batch].set()
            assert arrived[1 - batch].wait(30), "the other micro-batch is not in flight"
            return rows

        idx, row, nothing = link.nothing(CFG)
        name = f"ffn{batch}"
        recv, _, handle, counts, _ = link.dispatch(CFG, idx, row, nothing, SLOTS, name=name)
        recv = jax.pure_callback(await_both, recv, recv)
        return link.combine(CFG, handle, recv, 1, name=name)

    attention, experts = meshes_of(1, 1)
    with group_of(1, 1) as group:
        rows = [jax.ShapeDtypeStruct((size, HIDDEN), jnp.float32) for size in (TOKENS, 1)]
        pairs = [
            (mesh, functools.partial(function, batch))
            for batch in range(BATCHES)
            for mesh, function in ((attention, attend), (experts, serve))
        ]
        tokens = np.arange(TOKENS * HIDDEN, dtype=np.float32).reshape(TOKENS, HIDDEN)
        results = ep.roles(pairs, group, rows * BATCHES)((tokens,), (), (2 * tokens,), ())
        world.expect_equal(results[0], 2 * tokens)
        world.expect_equal(results[2], 4 * tokens)


def check_payloads_under_one_plan_in_a_nested_jit(world: World):
    """int8 rows with their scales; the link is an argument of a function under jit, as any pytree."""
    attention, experts = meshes_of(1, 1)

    def dequantised(payload):
        return payload["rows"].astype(jnp.float32) * payload["scales"]

    @functools.partial(jax.jit, static_argnums=1)
    def exchange(link, slots, idx, payload, weights):
        received, _, handle, counts, _ = link.dispatch(CFG, idx, payload, weights, slots, name="q")
        size = idx.shape[0]
        return link.combine(CFG, handle, dequantised(received), size, name="q")

    def attend(link, rows, scales):
        idx, weights = jnp.zeros((TOKENS, 2), jnp.int32), jnp.ones((TOKENS, 2))
        return exchange(link, 1, idx, {"rows": rows, "scales": scales}, weights)

    def serve(link):
        idx, rows, weights = link.nothing(CFG, jnp.int8)
        return exchange(
            link, SLOTS, idx, {"rows": rows, "scales": jnp.zeros((1, 1), jnp.float32)}, weights
        )

    with group_of(1, 1) as group:
        shapes = [jax.ShapeDtypeStruct((size, HIDDEN), jnp.float32) for size in (TOKENS, 1)]
        run = ep.roles([(attention, attend), (experts, serve)], group, shapes)
        rows = np.arange(TOKENS * HIDDEN).reshape(TOKENS, HIDDEN).astype(np.int8)
        scales = 2.0 ** np.arange(TOKENS, dtype=np.float32)[:, None]
        results = run((rows, scales) if is_here(attention) else None, ())
        if is_here(attention):
            world.expect_equal(results[0], 2 * rows.astype(np.float32) * scales)
    world.barrier("payloads")


def check_one_device_may_have_both_roles(world: World):
    if jax.process_count() > 1:
        return
    devices = np.array(jax.devices()[:2])
    attention, experts = Mesh(devices, ("attention",)), Mesh(devices[::-1], ("experts",))

    def attend(link, idx, tokens):
        weights = jnp.ones(idx.shape, jnp.float32)
        recv, _, handle, counts, _ = link.dispatch(CFG, idx, tokens, weights, 1, name="ffn")
        return link.combine(CFG, handle, recv, TOKENS, name="ffn")

    def serve(link):
        recv, _, handle, counts, _ = link.dispatch(CFG, *link.nothing(CFG), SLOTS, name="ffn")
        return link.combine(CFG, handle, recv, 1, name="ffn")

    group = ep.RoleGroup(
        "both",
        attention,
        experts,
        num_experts=4,
        max_tokens_per_rank=8,
        recv_capacity_per_rank=SLOTS,
        hidden_dim=HIDDEN,
        max_token_dtype=jnp.float32,
    )
    with group:
        shapes = [jax.ShapeDtypeStruct((2 * size, HIDDEN), jnp.float32) for size in (TOKENS, 1)]
        run = ep.roles([(experts, serve), (attention, attend)], group, shapes[::-1])
        (idx, tokens, _), _ = data_of(2, group, 1, 7)[0][0], None
        attended = run((), (put(idx[:, 0], attention), put(tokens, attention)))[1]
        world.expect_equal(attended, (idx[:, 0] >= 0).sum(1, keepdims=True) * tokens)


def check_what_functions_close_over_and_what_others_get(world: World):
    """Closed-over values are constants from tracing on, in the processes of the mesh; others run and see nothing."""
    m, n = 1, 1
    attention, experts = meshes_of(m, n)
    table, there = {"value": 2.0}, jnp.full((1, 1), 3.0)
    traced = []

    def attend(link, idx, tokens):
        traced.append("attend")
        scaled = tokens * table["value"] * there
        weights = jnp.ones(idx.shape, jnp.float32)
        recv, _, handle, counts, _ = link.dispatch(CFG, idx, scaled, weights, 1, name="ffn")
        return {"out": link.combine(CFG, handle, recv, TOKENS, name="ffn")}

    def serve(link):
        traced.append("serve")
        recv, _, handle, counts, _ = link.dispatch(CFG, *link.nothing(CFG), SLOTS, name="ffn")
        return link.combine(CFG, handle, recv, 1, name="ffn")

    with group_of(m, n) as group:
        shapes = [
            {"out": jax.ShapeDtypeStruct((TOKENS, HIDDEN), jnp.float32)},
            jax.ShapeDtypeStruct((1, HIDDEN), jnp.float32),
        ]
        run = ep.roles([(attention, attend), (experts, serve)], group, shapes)
        (idx, tokens, _), *_ = data_of(m, group, 1, 11)[0]
        idx = np.abs(idx[:, 0])
        for _ in range(2):
            attended, served = run(
                (put(idx, attention), tokens) if is_here(attention) else None,
                () if is_here(experts) else None,
            )
            if is_here(attention):
                world.expect_equal(attended["out"], 12 * tokens)
            else:
                assert attended is shapes[0] and "attend" not in traced
            if is_here(experts):
                world.expect_equal(served[0], np.zeros((1, HIDDEN)))
            else:
                assert served == (shapes[1],) and served[0] is shapes[1] and "serve" not in traced
            table["value"] = 5.0  # Too late: it is a constant.
    world.barrier("closed over")


def check_an_error_stays_with_its_token_rank(world: World):
    """An index of no expert on attention rank 0: an error there and on the experts; the others' results are right; the next
    call works."""
    m, n = 2, 2
    if m + n > len(jax.devices()):
        return
    attention, experts = meshes_of(m, n)
    with group_of(m, n) as group:
        batches, scales = data_of(m, group, 1, 77)
        run = ep.roles(pairs_of(m, n, 1), group, shapes_of(m, n, group, 1))
        bad = [(batches[0][0].copy(), *batches[0][1:]), batches[1]]
        bad[0][0][2, 0, 1] = group.config.num_experts
        started = run.start(*arguments_of(m, n, group, bad, scales))
        concerned = is_here(experts) or attention.devices[0].process_index == world.index
        if concerned:
            with fails("INVALID_ARGUMENT", f"roles-{m}-{n}/0", str(group.config.num_experts)):
                started.result()
        else:
            expect(world, m, n, group, batches, scales, started.result())
        world.barrier("failed")
        results = run(*arguments_of(m, n, group, batches, scales))
        expect(world, m, n, group, batches, scales, results)
    world.barrier("error")


def _faulty(fault: list, function, *arguments):
    if fault:
        raise fault.pop()
    return function(*arguments)


def _fail_while_traced(world: World, m: int, n: int, side: int):
    """Side 0: attention, 1: experts. The function fails in the process of the mesh's first device."""
    meshes, pairs, fault = meshes_of(m, n), pairs_of(m, n, 1), []
    guilty = meshes[side].devices[0].process_index
    pairs[side] = (meshes[side], functools.partial(_faulty, fault, pairs[side][1]))
    with group_of(m, n) as group:
        batches, scales = data_of(m, group, 1, 91)
        run = ep.roles(pairs, group, shapes_of(m, n, group, 1), name="training")
        arguments = arguments_of(m, n, group, batches, scales)
        of_other_type = list(arguments)
        if world.index == guilty:
            of_other_type[side] = jax.tree.map(
                lambda part: part.astype(jnp.bfloat16), arguments[side]
            )

        def expect_failure(given):
            if world.index == guilty:
                fault.append(RuntimeError("planted\nand more"))
                with raises(RuntimeError, "planted\nand more"):
                    run.start(*given)
            elif is_here(meshes[1]) or (side == 1 and is_here(meshes[0])):
                who = f"training of process {guilty}, function {side} (_faulty) for"
                told = ("RuntimeError: planted; that process", f"roles-{m}-{n}/", "rank=")
                with fails("INVALID_ARGUMENT", who, *told):
                    run.start(*given).result()
            else:  # It shares no group with the rank that failed.
                expect(world, m, n, group, batches, scales, run.start(*given).result())

        def expect_results():
            expect(world, m, n, group, batches, scales, run(*arguments))

        expect_failure(arguments)
        expect_failure(arguments)
        expect_results()
        expect_failure(of_other_type)
        expect_results()
    world.barrier(f"tracing failed on side {side}")


def check_a_function_that_fails_while_it_is_traced(world: World):
    """Its process raises what it raised. Who would wait for it is told at once, also before anybody knows the names of its
    exchanges; other token ranks have their results; the next call works.
    """
    if len(jax.devices()) >= 4:
        for side in range(2):
            _fail_while_traced(world, 2, 2, side)


def check_name_and_metadata_are_in_epctl(world: World):
    pairs = [(mesh, lambda link: jnp.zeros(1)) for mesh in meshes_of(1, 1)]
    with group_of(1, 1) as group:
        ep.roles(pairs, group, [None, None], name="decode", metadata={"stage": "ffn", "v": "7"})
        world.barrier("joined")
        if world.index == 0:
            command = [
                harness.binary("epctl"),
                f"--socket={os.environ['EPD_SOCKET']}",
                "-o",
                "json",
            ]
            shown = subprocess.run(
                [*command, "ranks"], capture_output=True, text=True, timeout=60, check=False
            )
            assert shown.returncode == 0, shown.stderr
            text = json.dumps(json.loads(shown.stdout))
            assert text.count('"decode"') == 2, shown.stdout
            assert text.count('"stage=ffn v=7"') == 2, shown.stdout
        world.barrier("looked")


def _expect_refusals_of_roles(group: ep.RoleGroup, attention: Mesh, experts: Mesh):
    nothing = lambda link: None  # noqa: E731
    one = [(attention, nothing)]
    alien = Mesh(np.array(jax.devices()[:1]), ("x",))
    empty = Mesh(np.empty((0,), object), ("x",))
    f32 = jnp.float32
    table = (
        (ValueError, ("pairs is empty",), [], group, [], {}),
        (TypeError, ("group", "RoleGroup", "str"), one, "group", [None], {}),
        (TypeError, ("pairs", "list", "int"), 3, group, [None], {}),
        (TypeError, ("out_shapes", "list", "NoneType"), one, group, None, {}),
        (TypeError, ("pair 0", "(mesh, function)", "3"), [3], group, [None], {}),
        (ValueError, ("pair 0", "no devices"), [(empty, nothing)], group, [None], {}),
        (TypeError, ("pair 0", "Mesh", "int"), [(3, nothing)], group, [None], {}),
        (TypeError, ("pair 0", "callable", "int"), [(attention, 3)], group, [None], {}),
        (ValueError, ("2 entries, expected 1",), one, group, [None, None], {}),
        (ValueError, ("pair 0", "'x': 1", "none of the"), [(alien, nothing)], group, [None], {}),
        (TypeError, ("(the only one)", "out_shapes[0]", "str"), one, group, ["a"], {}),
        (ValueError, ("out_shapes[0]", "[]"), one, group, [jax.ShapeDtypeStruct((), f32)], {}),
        (TypeError, ("name", "int"), one, group, [None], {"name": 3}),
        (ValueError, ("name", "'a b'"), one, group, [None], {"name": "a b"}),
        (ValueError, ("name", "200"), one, group, [None], {"name": "x" * 201}),
        (TypeError, ("metadata", "list"), one, group, [None], {"metadata": ["a"]}),
        (TypeError, ("metadata", "int"), one, group, [None], {"metadata": {"a": 3}}),
        (ValueError, ("metadata", "a=b"), one, group, [None], {"metadata": {"a=b": "c"}}),
        (
            ValueError,
            ("metadata", "256", "263"),
            one,
            group,
            [None],
            {"metadata": {"a": "x" * 130, "b": "y" * 128}},
        ),
    )
    for kind, texts, pairs, given, shapes, more in table:
        with raises(kind, "roles", *texts):
            ep.roles(pairs, given, shapes, **more)
    if len(jax.devices()) >= 3:
        two = Mesh(np.array(jax.devices()[:2]), ("attention",))
        with raises(ValueError, "axis 'attention' has size 2 in mesh 0 and 1 in mesh 1"):
            ep.roles([(two, nothing), (attention, nothing)], group, [None, None])
    many = [(experts, nothing)] * 33
    with raises(ValueError, "33 executions", "at most 32"):
        ep.roles(many, group, [None] * 33)
    if len(jax.devices()) >= 3:
        shape = jax.ShapeDtypeStruct((3, 2), f32)
        with raises(ValueError, "out_shapes[0]", "[3, 2]", "2 ranks"):
            ep.roles([(meshes_of(2, 1)[0], nothing)], group_of(2, 1), [shape])


def _expect_refusals_of_groups(attention: Mesh):
    for wrong, kind, text in (
        ({"hidden_dim": 0}, ValueError, "hidden_dim is 0"),
        ({"num_experts": 2.5}, TypeError, "num_experts"),
        ({"expert_owner": [0, 0]}, ValueError, "2 entries"),
        ({"expert_owner": [0, 0, 0, 1]}, ValueError, "[1]"),
        ({"expert_owner": None, "max_token_dtype": "no"}, TypeError, "max_token_dtype"),
        ({"max_top_k": 200}, ValueError, "200"),
        ({"job": "a b"}, ValueError, "'a b'"),
    ):
        with raises(kind, "RoleGroup", text):
            group_of(1, 1, **wrong)
    sizes = {
        "num_experts": 3,
        "max_tokens_per_rank": 1,
        "recv_capacity_per_rank": 1,
        "hidden_dim": 1,
    }
    with raises(TypeError, "RoleGroup", "token_mesh", "str"):
        ep.RoleGroup("g", "mesh", attention, **sizes)
    with raises(ValueError, "RoleGroup", "same mesh"):
        ep.RoleGroup("g", attention, attention, **sizes)
    if len(jax.devices()) >= 2:
        two = Mesh(np.array(jax.devices()[:2]), ("experts",))
        with raises(ValueError, "RoleGroup", "num_experts is 3", "2 ranks"):
            ep.RoleGroup("g", attention, two, **sizes)
        one = Mesh(np.array(jax.devices()[:1]), ("experts",))
        with raises(ValueError, "RoleGroup", "axis 'experts' has size 2 in mesh 0 and 1 in mesh 1"):
            ep.RoleGroup("g", two, one, **sizes)


def _expect_refusals_of_order(run_of):
    """Exchanges that do not follow from each other, or from which nothing follows."""
    tokens = np.zeros((TOKENS, HIDDEN), np.float32)
    rows = jax.ShapeDtypeStruct(tokens.shape, jnp.float32)

    def exchange(link, x, name, out=None):
        idx, weights = jnp.zeros((TOKENS, 2), jnp.int32), jnp.ones((TOKENS, 2))
        recv, _, handle, counts, _ = link.dispatch(CFG, idx, x, weights, 1, name=name)
        recv = recv if out is None else out
        return link.combine(CFG, handle, recv, TOKENS, name=name)

    def side_by_side(link, x):
        return exchange(link, x, "a") + exchange(link, x, "b")

    def combine_without_what_was_received(link, x):
        return exchange(link, x, "a", out=jnp.zeros((1, 1, HIDDEN), jnp.float32))

    def unused(link, x):
        exchange(link, x, "a")
        return x

    def rounds_side_by_side(link, x):
        return jax.lax.scan(lambda c, _: (c, exchange(link, x, "a")), x, length=2)[1].sum(0)

    order = ("function 0", "does not follow from", "a pair of its own")
    with raises(ValueError, *order, "ep_prepare of the name 'b'", "ep_combine of the name 'a'"):
        run_of(side_by_side, rows)((tokens,))
    with raises(ValueError, "function 0", "ep_dispatch of the name 'a'", "would not exist"):
        run_of(combine_without_what_was_received, rows)((tokens,))
    with raises(ValueError, "function 0", "ep_prepare of the name 'a'", "would not exist"):
        run_of(unused, rows)((tokens,))
    with raises(ValueError, *order, "ep_prepare of the name 'a'", "ep_combine of the name 'a'"):
        run_of(rounds_side_by_side, rows)((tokens,))


def _expect_refusals_of_calls(group: ep.RoleGroup, attention: Mesh):
    """While tracing, on the attention rank: nothing runs."""
    shape = jax.ShapeDtypeStruct((1, 2), jnp.float32)
    tokens = np.zeros((1, 2), np.float32)

    def run_of(function, shapes=shape):
        return ep.roles([(attention, function)], group, [shapes])

    with raises(ValueError, "arguments for 2 pairs, expected 1"):
        run_of(lambda link, x: x)((tokens,), ())
    with raises(TypeError, "function 0", "tuple", "ndarray"):
        run_of(lambda link, x: x)(tokens)
    with raises(
        ValueError, "output (the only one) of function 0 is float32[1, 3]", "float32[1, 2]"
    ):
        run_of(lambda link, x: x)((np.zeros((1, 3), np.float32),))
    with raises(ValueError, "function 0 returns", "out_shapes[0]"):
        run_of(lambda link, x: (x, x))((tokens,))
    with raises(ValueError, "Group.prepare", "name is missing"):
        run_of(lambda link, x: link.prepare(CFG, jnp.zeros((1, 2), jnp.int32))[1])((tokens,))
    with raises(TypeError, "RoleLink.nothing", "int"):
        run_of(lambda link, x: link.nothing(3)[1])((tokens,))
    with raises(ValueError, "RoleLink.nothing", "[1, 2]", f"[1, {HIDDEN}]"):
        run_of(lambda link, x: link.nothing(CFG, after=x)[1])((tokens,))
    local = jax.local_devices()
    if len(local) >= 4:
        beside = NamedSharding(Mesh(np.array(local[2:4]), ("x",)), PartitionSpec())
        with raises(ValueError, "argument [0] of function 0", "other devices"):
            run_of(lambda link, x: x)((jax.device_put(tokens, beside),))

    _expect_refusals_of_order(run_of)

    def named(link, x):
        return link.prepare(CFG, jnp.zeros((1, 2), jnp.int32), name="same")[1].astype(x.dtype) + x

    with raises(ValueError, "functions 0 and 1", "prepare", "'same'"):
        ep.roles([(attention, named)] * 2, group, [shape] * 2)((tokens,), (tokens,))


def check_what_cannot_be_is_refused(world: World):
    """Each error names argument, got and wanted, on every process; afterwards the group works."""
    attention, experts = meshes_of(1, 1)
    with group_of(1, 1) as group:
        _expect_refusals_of_roles(group, attention, experts)
        _expect_refusals_of_groups(attention)
        # Joins: collective.
        ep.roles([(attention, lambda link: None)], group, [None])
        if is_here(attention):
            _expect_refusals_of_calls(group, attention)
        run = ep.roles([(attention, lambda link, x: x)], group, [None])
        group.finalize()
        with raises(RuntimeError, "roles-1-1", "finalized"):
            run(())
    world.barrier("roles errors")
    run_and_compare(world, 1, 1)
