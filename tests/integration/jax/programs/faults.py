"""Bad input and lost parts at run time: the documented error on every rank, and the next call works."""

import functools
import os
import signal
import time

import compiles
import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
import worker_processes
from epd.jax import primitives
from world import World, fails

_CFG = ep.EpLayerConfig(top_k=2)


def _operands(world: World, seed: int):
    problem = world.problem(seed, tokens=8)
    return problem, [world.put(a) for a in (problem.topk_idx, problem.tokens, problem.weights)]


def _layer(capacity, idx, tokens, weights):
    recv, _, handle, counts, _ = ep.ep_dispatch(_CFG, idx, tokens, weights, capacity)
    return ep.ep_combine(_CFG, handle, counts, recv, idx.shape[0])


def _expect_working(world: World, seed: int) -> None:
    problem, operands = _operands(world, seed)
    with world.context():
        out = jax.jit(functools.partial(_layer, problem.capacity))(*operands)
    world.expect_equal(
        out,
        world.gather(problem, world.scatter(problem, problem.tokens)),
        "a healthy call afterwards",
    )


def _local_rows(world: World, per_process) -> jax.Array:
    """A global array of which this process makes its own rows."""
    local = per_process(world.index)
    shape = (world.num_ranks * local.shape[0], *local.shape[1:])
    return jax.make_array_from_callback(shape, world.sharding, lambda index: local)


def check_index_out_of_range_on_one_rank(world: World):
    world.bootstrap()
    experts = world.sizes["num_experts"]
    bad = lambda i: np.where(i == world.ep - 1, experts, 0) * np.ones((4, 2), np.int32)  # noqa: E731
    idx = _local_rows(world, lambda i: bad(i % world.ep).astype(np.int32))
    with world.context():
        prepare = jax.jit(lambda i: [world_pin(world, a) for a in ep.ep_prepare(_CFG, i)])
        with fails("INVALID_ARGUMENT", str(experts)):
            jax.block_until_ready(prepare(idx))
    _expect_working(world, 41)


def world_pin(world: World, array):
    return jax.lax.with_sharding_constraint(array, world.sharding)


def _plan(world: World, idx):
    with world.context():
        return jax.jit(lambda i: world_pin(world, ep.ep_prepare(_CFG, i)[2]))(idx)


def _dispatch_with(world: World, handle, operands, capacity=128):
    with world.context():
        step = jax.jit(lambda h, i, t, w: primitives.ep_dispatch_fwd(_CFG, h, i, t, w, capacity))
        jax.block_until_ready(step(handle, *operands))


def check_corrupt_plan_on_one_rank(world: World):
    world.bootstrap()
    _, operands = _operands(world, 42)
    handle = _plan(world, operands[0])
    for byte in (0, 200):
        mine = np.array(handle.addressable_shards[0].data)
        if world.index % world.ep == 0:
            mine[0, byte] ^= 0xFF
        with fails("DATA_LOSS"):
            _dispatch_with(world, _local_rows(world, lambda _, m=mine: m), operands)
    zeros = _local_rows(world, lambda _: np.zeros_like(mine))
    with fails("DATA_LOSS"):
        _dispatch_with(world, zeros, operands)
    _expect_working(world, 43)


def check_foreign_plan(world: World):
    """A plan of an earlier group of the same name and sizes."""
    world.bootstrap()
    _, operands = _operands(world, 44)
    mine = np.array(_plan(world, operands[0]).addressable_shards[0].data)
    world.bootstrap(capacity=120)
    handle = _local_rows(world, lambda _: mine)
    with fails("INVALID_ARGUMENT", "group id of the routing plan"):
        _dispatch_with(world, handle, operands, capacity=100)
    _expect_working(world, 45)


def check_dtypes_that_differ_between_ranks(world: World):
    world.bootstrap()
    problem, operands = _operands(world, 46)
    narrow = world.index % world.ep == 0
    tokens = operands[1].astype(jnp.bfloat16) if narrow else operands[1]
    with world.context(), fails("INVALID_ARGUMENT", "dtype"):
        jax.block_until_ready(
            jax.jit(lambda i, t, w: ep.ep_dispatch(_CFG, i, t, w, problem.capacity)[0])(
                operands[0], tokens, operands[2]
            )
        )
    _expect_working(world, 47)


def check_static_arguments_that_differ_between_ranks(world: World):
    """The first rank of each domain traced its call with another top_k, or another alignment: all are told both values."""
    world.bootstrap()
    first = world.index % world.ep == 0
    for mine, field in (
        (ep.EpLayerConfig(top_k=4 if first else 2), "top_k: "),
        (ep.EpLayerConfig(top_k=2, dispatch_output_per_expert_alignment=16 * first), "alignment: "),
    ):
        idx = _local_rows(world, lambda _, k=mine.top_k: np.zeros((4, k), np.int32))
        with world.context():
            prepare = jax.jit(lambda i, c=mine: [world_pin(world, a) for a in ep.ep_prepare(c, i)])
            began = time.monotonic()
            with fails("INVALID_ARGUMENT", field, " on ranks 0", " on ranks 1"):
                jax.block_until_ready(prepare(idx))
        assert time.monotonic() - began < 20, "the ranks waited for each other"
        world.barrier(f"all ranks saw the wrong {field}")
    _expect_working(world, 53)


def check_programs_that_differ_between_ranks(world: World):
    """The first rank of each domain runs a program with one call less: all are told, long before the absent deadline."""
    world.bootstrap()
    problem, operands = _operands(world, 54)
    first = world.index % world.ep == 0
    with world.context():
        if first:
            step = jax.jit(lambda i, *_: [world_pin(world, a) for a in ep.ep_prepare(_CFG, i)])
        else:
            step = jax.jit(functools.partial(_layer, problem.capacity))
        compiled = step.lower(*operands).compile()
        world.barrier("compiled")
        began = time.monotonic()
        with fails("INVALID_ARGUMENT", "different programs", " on ranks 0", " on ranks 1"):
            jax.block_until_ready(compiled(*operands))
    assert time.monotonic() - began < 30, "the ranks waited for each other"
    world.barrier("all ranks saw the other program")
    _expect_working(world, 55)  # Also on the rank that has not begun the others' failed execution.
    world.barrier("all work again")
    ep.ep_finalize()  # The others have not begun the first rank's program; from here on all count from 0.
    world.sizes = {}


def check_functions_that_exchange_alike_do_not_meet(world: World):
    """The first rank of each domain evaluates while the others train: none gets another function's rows, all are told. With
    names they would meet."""
    world.bootstrap()
    problem, operands = _operands(world, 56)
    first = world.index % world.ep == 0

    def evaluate(idx, tokens, weights):
        return _layer(problem.capacity, idx, tokens, weights)

    def train(idx, tokens, weights):
        return _layer(problem.capacity, idx, tokens, weights)

    with world.context():
        mine = "this rank runs jit_" + ("evaluate" if first else "train")
        compiled = jax.jit(evaluate if first else train).lower(*operands).compile()
        world.barrier("compiled")
        with fails("INVALID_ARGUMENT", "different programs", "give the calls name=", mine):
            jax.block_until_ready(compiled(*operands))
    world.barrier("all ranks saw the other function")
    _expect_working(world, 57)
    ep.ep_finalize()
    world.sizes = {}


def check_ranks_may_bring_different_numbers_of_tokens(world: World):
    """Each process traces its own T; the first rank of each domain has none, the others 3, 6, ..."""
    world.bootstrap()
    mine = 3 * (world.index % world.ep)
    rows = np.full((mine, 8), 1.0 + world.index, np.float32)
    operands = _own_tokens(world, rows)
    prepare = jax.jit(lambda i: [world_pin(world, a) for a in ep.ep_prepare(_CFG, i)])
    with world.context():
        counts, total, _ = prepare(operands[0])
        out = jax.jit(functools.partial(_layer, 100))(*operands)
    routes = sum(3 * position * 2 for position in range(world.ep))
    expected = routes if world.index % world.ep == 0 else 0
    assert int(np.asarray(total.addressable_shards[0].data)[0, 0]) == expected
    assert int(np.asarray(counts.addressable_shards[0].data)[0, 0]) == expected
    np.testing.assert_array_equal(np.asarray(out.addressable_shards[0].data), 2 * rows)


def check_gradients_of_different_numbers_of_tokens(world: World):
    world.bootstrap()
    mine = 3 * (world.index % world.ep)
    rows = np.full((mine, 8), 1.0 + world.index, np.float32)
    square = jax.grad(lambda i, t, w: (_layer(100, i, t, w) ** 2).sum(), 1)
    with world.context():
        gradient = jax.jit(square)(*_own_tokens(world, rows))
    np.testing.assert_array_equal(np.asarray(gradient.addressable_shards[0].data), 8 * rows)


def _own_tokens(world: World, rows: np.ndarray) -> list[jax.Array]:
    """Both routes of each of this process's rows go to expert 0, with weight 1."""
    arrays = np.zeros((len(rows), 2), np.int32), rows, np.ones((len(rows), 2), np.float32)
    return [_local_rows(world, lambda _, a=array: a) for array in arrays]


def check_executable_of_other_sizes_on_one_rank(world: World):
    """The first rank of each domain runs a program traced for other sizes: no rank waits for it."""
    first = world.index % world.ep == 0
    for other, width, slots, field in (
        ({"hidden": 16}, 16, 64, "hidden"),
        ({"capacity": 200}, 8, 160, "capacity"),
        ({"num_experts": 4 * world.ep}, 8, 64, "num_experts"),
    ):
        world.bootstrap(**other)
        rows = np.ones((4, width if first else world.sizes["hidden"]), np.float32)
        elsewhere = _own_tokens(world, rows)
        with world.context():
            step = jax.jit(functools.partial(_layer, slots if first else 64))
            traced = step.lower(*elsewhere).compile()
        world.bootstrap()
        operands = _own_tokens(world, rows if first else np.ones((4, 8), np.float32))
        if not first:
            with world.context():
                traced = step.lower(*operands).compile()
        with world.context(), fails("INVALID_ARGUMENT", field):
            jax.block_until_ready(traced(*operands))
        _expect_working(world, 50)


def check_executable_after_a_new_bootstrap(world: World):
    """Runs as it is if the sizes agree, else names the field."""
    world.bootstrap()
    problem, operands = _operands(world, 48)
    with world.context():
        step = jax.jit(functools.partial(_layer, problem.capacity))
        first = step(*operands)
        want = world.gather(problem, world.scatter(problem, problem.tokens))
        world.expect_equal(first, want)
        with compiles.none():
            for changed, field in (
                ({"hidden": 16}, "hidden_dim"),
                ({"max_tokens": 32}, "max_tokens_per_rank"),
                ({"num_experts": 4 * world.ep}, "num_experts"),
                ({"capacity": 64}, "recv_capacity_per_rank"),
            ):
                world.bootstrap(**changed)
                with fails("INVALID_ARGUMENT", field):
                    jax.block_until_ready(step(*operands))
            world.bootstrap(capacity=256)
            world.expect_equal(step(*operands), want, "the same sizes, more capacity")
            ep.ep_finalize()
            world.sizes = {}
            with fails("FAILED_PRECONDITION", "ep_bootstrap"):
                jax.block_until_ready(step(*operands))
            world.bootstrap()
            world.expect_equal(step(*operands), want, "the same sizes again")


def check_bootstrap_with_sizes_that_differ_between_ranks(world: World):
    """All ranks are told which size differs; a good bootstrap works afterwards."""
    ep.ep_finalize()
    world.sizes = {}
    with fails("INVALID_ARGUMENT", "hidden"):
        world.bootstrap(hidden=8 + 8 * (world.index % world.ep))
    world.bootstrap()
    _expect_working(world, 51)


def check_repeated_bootstraps_leave_no_descriptors(world: World):
    world.bootstrap()
    counts = []
    for number in range(6):
        ep.ep_finalize()
        world.sizes = {}
        world.bootstrap()
        _expect_working(world, 52 + number)
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[-1] <= counts[1], counts  # The first rounds may start threads.


def _worker_pid() -> int:
    epd = int(os.environ["EPD_TEST_EPD_PID"])
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        workers = worker_processes.of(epd)
        if workers:
            return workers[0]
        time.sleep(0.02)
    raise AssertionError("epd has no worker")


def check_killed_worker_under_load(world: World):
    """A typed error on every rank; the next call works, and nothing is compiled."""
    world.bootstrap(hidden=256, max_tokens=256, capacity=2048)
    problem = world.problem(49, tokens=256)
    operands = [world.put(a) for a in (problem.topk_idx, problem.tokens, problem.weights)]
    want = world.gather(problem, world.scatter(problem, problem.tokens))
    with world.context():
        step = jax.jit(functools.partial(_layer, problem.capacity))
        world.expect_equal(step(*operands), want, "before")
        with compiles.none():
            for round_number in range(2):
                # The worker serves all domains, and these do not wait for each other.
                world.barrier(f"all domains are healthy before round {round_number}")
                _step_until_error(world, step, operands, round_number)
                world.barrier(f"all ranks saw the error {round_number}")
                world.expect_equal(step(*operands), want, f"after round {round_number}")


def _step_until_error(world: World, step, operands, round_number: int) -> None:
    deadline, steps = time.monotonic() + 30, 0
    while True:
        steps += 1
        # Again now and then: ranks that are all between two calls hear nothing of it.
        if steps % 100 == 5 and world.index == 0:
            os.kill(_worker_pid(), signal.SIGKILL)
        try:
            with ep.ep_errors():
                jax.block_until_ready(step(*operands))
        except ep.EpError as error:
            assert error.code == "UNAVAILABLE", error
            print(f"round {round_number}, step {steps}: {error}", flush=True)
            return
        assert time.monotonic() < deadline, "the worker was killed, but no call failed"
