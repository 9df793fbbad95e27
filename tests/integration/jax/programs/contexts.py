"""What a training loop puts around the operations: remat policies, nested jit, donation, eager calls, debugging modes."""

import contextlib
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from epd.jax import primitives
from jax.ad_checkpoint import checkpoint_name
from layers import CFG, dense, expect_results, inputs, layer, loss, put, value_and_gradients
from world import World, raises

_CAPACITY = 64


def _operands(world: World, seed: int):
    world.bootstrap(capacity=_CAPACITY)
    arrays = inputs(seed, 4 * world.num_ranks, world.sizes["num_experts"])
    return arrays, put(world.mesh, world.spec, arrays)


def check_value_and_grad_with_aux(world: World):
    arrays, operands = _operands(world, 41)

    def step(idx, tokens, weights):
        out = layer(_CAPACITY, idx, tokens, weights)
        return (out**2).sum(), out

    with world.context():
        graded = jax.jit(jax.value_and_grad(step, argnums=(1, 2), has_aux=True))
        (value, out), grads = graded(*operands)
    expect_results(world, (out, *grads), arrays)
    want = loss(dense, *map(jnp.asarray, arrays))
    np.testing.assert_allclose(np.asarray(value), np.asarray(want), rtol=1e-5)


def _named_layer(idx, tokens, weights):
    counts, _, handle = ep.ep_prepare(CFG, idx)
    handle = checkpoint_name(handle, "plan")
    received = primitives.ep_dispatch_fwd(CFG, handle, idx, tokens, weights, _CAPACITY)
    recv = checkpoint_name(received[0], "recv")
    recv_weights = checkpoint_name(received[1], "recv_weights")
    return ep.ep_combine(CFG, handle, counts, jnp.sin(recv) * recv_weights[..., None], len(idx))


def check_checkpoint_with_policies(world: World):
    """Each policy gives the same numbers, and as many prepares and dispatches as it should."""
    arrays, operands = _operands(world, 42)
    policies = jax.checkpoint_policies
    names = ("recv", "recv_weights", "plan")
    prepare, dispatch = ep.FFI_TARGET_NAMES[:2]
    for what, policy, prepares, dispatches in (
        ("none", None, 2, 2),
        ("everything", policies.everything_saveable, 1, 1),
        ("nothing", policies.nothing_saveable, 2, 2),
        ("dots", policies.dots_saveable, 2, 2),
        ("the plan", policies.save_only_these_names("plan"), 1, 2),
        ("what was received", policies.save_only_these_names(*names), 1, 1),
        ("all but the rows", policies.save_anything_except_these_names("recv"), 1, 1),
    ):
        wrapped = jax.checkpoint(_named_layer, policy=policy)
        gradient = jax.jit(jax.grad(functools.partial(loss, wrapped), (1, 2)))
        with world.context():
            lowered = gradient.lower(*operands)
            compiled = lowered.compile()
            got = compiled(*operands)
        text = lowered.as_text()
        counts = [text.count(f"@{target}(") for target in (prepare, dispatch)]
        assert counts == [prepares, dispatches], (what, counts)
        want = jax.grad(functools.partial(loss, dense), (1, 2))(*map(jnp.asarray, arrays))
        for array, expected in zip(got, want, strict=True):
            world.expect_close(array, np.asarray(expected), 1e-4, what)


def check_scan_over_stacked_layers(world: World):
    """lax.scan over the layers' parameters, their routing among them, with and without remat."""
    arrays, operands = _operands(world, 43)
    stack = [inputs(430 + n, 4 * world.num_ranks, world.sizes["num_experts"]) for n in range(3)]
    stacked = [np.stack(part) for part in zip(*stack, strict=True)]
    spec = jax.sharding.PartitionSpec(None, *world.spec)
    idx, _, weights = put(world.mesh, spec, stacked)

    def model(function, remat, tokens, idx, weights):
        def body(carry, parameters):
            return carry + jnp.tanh(function(parameters[0], carry, parameters[1])), None

        body = jax.checkpoint(body) if remat else body
        return (jax.lax.scan(body, tokens, (idx, weights))[0] ** 2).sum()

    want = jax.grad(functools.partial(model, dense, False), (0, 2))(
        jnp.asarray(arrays[1]), stacked[0], stacked[2]
    )
    for remat in (False, True):
        function = functools.partial(model, functools.partial(layer, _CAPACITY), remat)
        with world.context():
            got = jax.jit(jax.grad(function, (0, 2)))(operands[1], idx, weights)
        for array, expected in zip(got, want, strict=True):
            world.expect_close(array, np.asarray(expected), 1e-4, f"remat {remat}")


def check_nested_jit(world: World):
    """jit in jit in jit, one inner function used twice, and the gradient of it all."""
    arrays, operands = _operands(world, 44)
    inner = jax.jit(functools.partial(layer, _CAPACITY))

    def twice(function, idx, tokens, weights):
        first = jax.jit(function)(idx, tokens, weights)
        return jax.jit(lambda t: function(idx, t, weights))(first) + first

    with world.context():
        step = jax.jit(jax.jit(value_and_gradients(functools.partial(twice, inner))))
        got = step(*operands)
    want = value_and_gradients(functools.partial(twice, dense))(*map(jnp.asarray, arrays))
    for array, expected in zip(got, want, strict=True):
        world.expect_close(array, np.asarray(expected), 1e-4)


def check_linearize_and_a_pullback_used_twice(world: World):
    arrays, operands = _operands(world, 45)
    moves = inputs(450, 4 * world.num_ranks, world.sizes["num_experts"])[1]

    def both(function, idx, tokens, weights, move):
        one = functools.partial(lambda i, w, t: function(i, t, w), idx, weights)
        out, push = jax.linearize(one, tokens)
        _, pull = jax.vjp(one, tokens)
        return out, push(move), push(2 * move), pull(move)[0], pull(3 * move)[0]

    with world.context():
        step = jax.jit(functools.partial(both, functools.partial(layer, _CAPACITY)))
        got = step(*operands, world.put(moves))
    want = both(dense, *map(jnp.asarray, (*arrays, moves)))
    for array, expected in zip(got, want, strict=True):
        world.expect_close(array, np.asarray(expected), 1e-4)


def _bytes(arrays) -> list[bytes]:
    return [np.asarray(s.data).tobytes() for array in arrays for s in array.addressable_shards]


def check_donated_inputs_and_inputs_that_are_never_written(world: World):
    """The same results with donation; without it every operand keeps its bits, NumPy arrays that XLA aliases too."""
    arrays, operands = _operands(world, 46)
    kept = [array.copy() for array in arrays]
    before = _bytes(operands)
    step = value_and_gradients(functools.partial(layer, _CAPACITY))
    with world.context():
        for _ in range(2):
            expect_results(world, jax.jit(step)(*operands), arrays)
        assert _bytes(operands) == before
        # The rows of local devices are views of the host's array, where it is aligned.
        expect_results(world, jax.jit(step)(*put(world.mesh, world.spec, arrays)), kept)
        for array, copy in zip(arrays, kept, strict=True):
            np.testing.assert_array_equal(array, copy)
        donating = jax.jit(functools.partial(layer, _CAPACITY), donate_argnums=(1, 2))
        for _ in range(3):
            given = put(world.mesh, world.spec, arrays)
            out = donating(*given)
            world.expect_close(out, np.asarray(dense(*map(jnp.asarray, kept))), 1e-5)
            assert given[1].is_deleted(), "the tokens were not donated"
            assert not given[0].is_deleted()
        given = put(world.mesh, world.spec, arrays)
        graded = jax.jit(step, donate_argnums=(1, 2))(*given)
    expect_results(world, graded, kept, "donated, with gradients")


def check_eager_with_numpy_arguments(world: World):
    """Outside jit, with NumPy arguments; every process gives the whole. Gradients too."""
    arrays, _ = _operands(world, 47)
    with world.context():
        out = layer(_CAPACITY, *arrays)
        world.expect_close(out, np.asarray(dense(*map(jnp.asarray, arrays))), 1e-5)
        counts, total, handle = ep.ep_prepare(CFG, arrays[0])
        assert handle.shape == (world.num_ranks, ep.ep_handle_mem_size(CFG))
        for array in (counts, total):
            assert (np.asarray(array.addressable_shards[0].data) >= 0).all()
        gradients = jax.grad(functools.partial(loss, functools.partial(layer, _CAPACITY)), (1, 2))
        got = gradients(arrays[0], jnp.asarray(arrays[1]), jnp.asarray(arrays[2]))
    expect_results(world, (out, *got), arrays)


def check_disable_jit(world: World):
    """Functions run line by line; each operation is still one call of XLA's."""
    arrays, operands = _operands(world, 48)
    step = jax.jit(value_and_gradients(functools.partial(layer, _CAPACITY)))
    with world.context(), jax.disable_jit():
        expect_results(world, step(*operands), arrays)


def check_debug_nans(world: World):
    """Padding and tails raise nothing; a token that is NaN raises JAX's error, and the next call works."""
    arrays, operands = _operands(world, 49)
    step = jax.jit(value_and_gradients(functools.partial(layer, _CAPACITY)))
    with world.context(), jax.debug_nans(True):
        expect_results(world, step(*operands), arrays)
        for part in step(*operands):
            assert all(np.isfinite(np.asarray(s.data)).all() for s in part.addressable_shards)
        tokens = arrays[1].copy()
        tokens[(arrays[0] >= 0).any(1)] = np.nan
        broken = put(world.mesh, world.spec, [arrays[0], tokens, arrays[2]])
        with raises(FloatingPointError, "nan"):
            jax.block_until_ready(step(*broken))
        expect_results(world, step(*operands), arrays)


def _under_debug_nans(function: Callable[[], None]) -> None:
    """With the mode as programs set it, for all threads; in a new one, as JAX forgets it where ``jax.debug_nans`` was entered."""
    jax.config.update("jax_debug_nans", True)
    try:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(function).result()
    finally:
        jax.config.update("jax_debug_nans", False)


def check_debug_nans_outlives_an_exchange(world: World):
    """JAX goes on looking at results of jitted functions in this thread after an exchange was compiled, or made eagerly."""
    _, operands = _operands(world, 50)
    root, run = jax.jit(jnp.log), functools.partial(layer, _CAPACITY)

    def look(function: Callable) -> None:
        root(jnp.ones(2, jnp.float32))
        with world.context():
            jax.block_until_ready(function(*operands))
        with raises(FloatingPointError, "nan"):
            root(-jnp.ones(2, jnp.float32))

    for function in (jax.jit(run), run):
        _under_debug_nans(functools.partial(look, function))


def check_a_nan_in_the_results_of_one_process(world: World):
    """It has JAX's error at once, although JAX runs the function again there alone, and the ranks stay in step."""
    arrays, operands = _operands(world, 51)

    def run(idx, tokens, weights, added):
        return jnp.log(0 * layer(_CAPACITY, idx, tokens, weights) + added)

    sound, broken = np.ones_like(arrays[1]), np.ones_like(arrays[1])
    broken[: len(broken) // world.num_ranks] = -1  # Rank 0's rows.
    sound, broken = put(world.mesh, world.spec, [sound, broken])
    told = "nan", "is not made again by this process alone"

    def look() -> None:
        with world.context():
            for step in (jax.jit(run), jax.jit(lambda *given: jax.jit(run)(*given))):
                jax.block_until_ready(step(*operands, sound))
                with (
                    raises(FloatingPointError, *told)
                    if world.index == 0
                    else contextlib.nullcontext()
                ):
                    jax.block_until_ready(step(*operands, broken))
                for _ in range(2):
                    for shard in step(*operands, sound).addressable_shards:
                        np.testing.assert_array_equal(np.asarray(shard.data), 0)

    _under_debug_nans(look)
