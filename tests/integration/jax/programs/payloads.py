"""Rows of any dtype, and several payloads under one plan: what arrives, what flows back, what is refused."""

import re

import epd.jax as ep
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from epd.jax import primitives
from world import World, raises

_CFG = ep.EpLayerConfig(top_k=2, dispatch_output_per_expert_alignment=4)
_DTYPES = (
    np.int8,
    np.uint8,
    np.bool_,
    np.int16,
    np.int32,
    np.uint32,
    np.int64,
    np.float64,
    np.complex64,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
)


def _group(world: World, dtype=np.float64, **sizes) -> ep.Group:
    return ep.Group(
        "payloads",
        num_experts=2 * world.ep,
        max_tokens_per_rank=16,
        recv_capacity_per_rank=128,
        hidden_dim=world.sizes["hidden"],
        max_token_dtype=dtype,
        resource=world.resource,
        **sizes,
    )


def _rows(world: World, rows: int, hidden: int, dtype, seed: int) -> np.ndarray:
    """Random bytes of the dtype; of those with NaNs and signs of zero, numbers without."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, (rows, hidden), dtype=dtype)
    return (rng.standard_normal((rows, hidden)) * 5).astype(dtype)


def _expect_bits(world: World, array: jax.Array, want: np.ndarray, what: str) -> None:
    assert array.dtype == want.dtype and array.shape == want.shape, (what, array, want.shape)
    for shard in array.addressable_shards:
        got = np.asarray(shard.data)
        assert got.tobytes() == np.ascontiguousarray(want[shard.index]).tobytes(), what


def check_rows_of_every_dtype_arrive_bit_for_bit(world: World):
    """Dispatch and combine's backward move them; no value is looked at."""
    world.bootstrap()
    problem = world.problem(201, tokens=8, alignment=4)
    with world.context(), jax.enable_x64(True), _group(world) as group:
        idx, weights = world.put(problem.topk_idx), world.put(problem.weights)
        rows = [
            _rows(world, len(problem.tokens), 8, dtype, 202 + n) for n, dtype in enumerate(_DTYPES)
        ]

        @jax.jit
        def step(idx, weights, payload):
            _, _, handle = group.prepare(_CFG, idx)
            moved = [group.dispatch_fwd(_CFG, handle, idx, one, weights, 128)[0] for one in payload]
            back = [group.combine_bwd(_CFG, handle, one, 128) for one in payload]
            return moved, back

        moved, back = jax.block_until_ready(step(idx, weights, [world.put(one) for one in rows]))
    for dtype, one, forth, backward in zip(_DTYPES, rows, moved, back, strict=True):
        want = world.scatter(problem, one)
        _expect_bits(world, forth, want, f"dispatch of {np.dtype(dtype)}")
        _expect_bits(world, backward, want, f"combine backward of {np.dtype(dtype)}")


def check_a_pytree_travels_under_one_plan_and_flows_back(world: World):
    """Rows, narrower float scales and integers: the floats have gradients, and so have the weights."""
    world.bootstrap(hidden=16)
    problem = world.problem(221, tokens=8, alignment=4)
    rows = len(problem.tokens)
    payload = {
        "ids": _rows(world, rows, 3, np.int32, 222),
        "rows": problem.tokens,
        "scales": _rows(world, rows, 2, np.float32, 223),
    }
    g_rows, g_scales = (
        _rows(world, world.num_ranks * 128, size, np.float32, 224 + size).reshape(
            world.num_ranks, 128, size
        )
        for size in (16, 2)
    )
    g_weights = np.random.default_rng(225).random((world.num_ranks, 128)).astype(np.float32)
    with world.context(), _group(world, np.float32) as group:

        def value(floats, weights, idx, ids, gradients):
            received, recv_weights, *_ = group.dispatch(
                _CFG, idx, {**floats, "ids": ids}, weights, 128, name="payload"
            )
            parts = (received["rows"], received["scales"], recv_weights)
            return sum((a * g).sum() for a, g in zip(parts, gradients, strict=True)), received

        arguments = jax.tree.map(world.put, (payload, problem.weights, problem.topk_idx))
        ids = arguments[0].pop("ids")
        gradients = [world.put(array) for array in (g_rows, g_scales, g_weights)]
        (grads, grad_weights), received = jax.block_until_ready(
            jax.jit(jax.grad(value, (0, 1), has_aux=True))(*arguments, ids, gradients)
        )
    for name, array in payload.items():
        _expect_bits(world, received[name], world.scatter(problem, array), name)
    world.expect_equal(grads["rows"], world.gather(problem, g_rows))
    world.expect_equal(grads["scales"], world.gather(problem, g_scales))
    world.expect_equal(grad_weights, world.gather_weights(problem, g_weights))


def check_arrays_share_an_exchange_where_they_may(world: World):
    """On CPUs; on GPUs each has its own, under its own name, and so has one of a payload that is too wide together."""
    world.bootstrap()
    rows = 8 * world.num_ranks
    shape = jax.ShapeDtypeStruct
    idx, weights = shape((rows, 2), jnp.int32), shape((rows, 2), jnp.float32)
    with world.context(), _group(world, np.float32) as group:
        handle = shape((world.num_ranks, group.handle_mem_size(_CFG)), jnp.uint8)

        def calls(payload, platform: str) -> list[str]:
            def send(handle, idx, payload, weights):
                return group.dispatch_fwd(_CFG, handle, idx, payload, weights, 128, name="send")

            traced = jax.jit(send).trace(handle, idx, payload, weights)
            text = traced.lower(lowering_platforms=(platform,)).as_text()
            return re.findall(r"custom_call @(epd1\.\w+).*name = \"([^\"]*)\"", text)

        pair = {"rows": shape((rows, 8), jnp.int8), "scales": shape((rows, 1), jnp.float32)}
        assert calls(pair, "cpu") == [("epd1.dispatch_payload", "send")]
        apart = [("epd1.dispatch", "send"), ("epd1.dispatch", "send.1")]
        assert calls(pair, "cuda") == apart
        assert calls({"rows": shape((rows, 8), jnp.int8)}, "cpu") == apart[:1]
        three = {name: shape((rows, 8), jnp.float32) for name in "abc"}
        assert calls(three, "cpu") == [*apart, ("epd1.dispatch", "send.2")]


def check_weights_of_rows_that_cannot_be_summed_have_gradients(world: World):
    world.bootstrap(hidden=16)
    problem = world.problem(231, tokens=8, alignment=4)
    rows = problem.tokens.astype(ml_dtypes.float8_e4m3fn)
    g_weights = np.random.default_rng(232).random((world.num_ranks, 128)).astype(np.float32)
    with world.context(), _group(world, ml_dtypes.float8_e4m3fn) as group:

        def value(weights, tokens, idx, gradient):
            received, recv_weights, *_ = group.dispatch(_CFG, idx, tokens, weights, 128)
            return (recv_weights * gradient).sum(), (received, recv_weights)

        operands = [world.put(a) for a in (problem.weights, rows, problem.topk_idx, g_weights)]
        grad, (received, recv_weights) = jax.block_until_ready(
            jax.jit(jax.grad(value, has_aux=True))(*operands)
        )
        doubled = jax.jit(
            lambda w, *rest: jax.jvp(lambda v: value(v, *rest)[1][1], (w,), (2 * w,))[1]
        )
        tangent = jax.block_until_ready(doubled(*operands))
        of_rows = jax.grad(
            lambda t, *rest: value(rest[0], t, *rest[1:])[1][0].astype(jnp.float32).sum()
        )
        with raises(TypeError, "float8_e4m3fn", "stop_gradient"):
            jax.jit(of_rows).lower(operands[1], operands[0], *operands[2:])
    _expect_bits(world, received, world.scatter(problem, rows), "rows")
    weights = world.scatter_weights(problem, problem.weights)
    world.expect_equal(recv_weights, weights)
    world.expect_equal(tangent, 2 * weights)
    world.expect_equal(grad, world.gather_weights(problem, g_weights))


def check_what_cannot_travel_is_refused_while_tracing(world: World):
    world.bootstrap()
    rows = 8 * world.num_ranks
    f32 = jnp.float32
    with world.context(), _group(world, np.float32) as group:
        shape = jax.ShapeDtypeStruct
        idx, weights = shape((rows, 2), jnp.int32), shape((rows, 2), f32)
        handle = shape((world.num_ranks, group.handle_mem_size(_CFG)), jnp.uint8)

        def dispatch(tokens):
            jax.jit(lambda i, t, w: group.dispatch(_CFG, i, t, w, 128)).lower(idx, tokens, weights)

        dispatch(shape((rows, 8), jnp.int8))
        dispatch({"a": shape((rows, 1), f32), "b": shape((rows, 32), jnp.int8)})
        with raises(
            ValueError,
            "Group.dispatch",
            "tokens has shape",
            "[64, 4]".replace("64", str(rows)),
            "8",
        ):
            dispatch(shape((rows, 4), jnp.int8))
        with raises(ValueError, "tokens has dtype int4", "1, 2, 4 or 8 bytes"):
            dispatch(shape((rows, 8), jnp.int4))
        with raises(ValueError, "tokens['b'] has rows of 33 x int8", "1 to 32 bytes"):
            dispatch({"a": shape((rows, 1), f32), "b": shape((rows, 33), jnp.int8)})
        with raises(ValueError, "tokens['a'] has shape", "tokens['b'] has dtype int4"):
            dispatch({"a": shape((rows, 1, 1), f32), "b": shape((rows, 3), jnp.int4)})
        with raises(TypeError, "no arrays"):
            dispatch({})
        with jax.enable_x64(True), raises(ValueError, "float64", "float32"):
            dispatch(shape((rows, 8), jnp.float64))
        expert_rows = shape((world.num_ranks, 128, 8), jnp.int32)
        with raises(ValueError, "expert_out has dtype int32", "summed"):
            jax.jit(lambda h, r: group.combine(_CFG, h, r, rows)).lower(handle, expert_rows)
        with raises(ValueError, "grad has dtype int32", "summed"):
            jax.jit(lambda h, r, w: group.dispatch_bwd(_CFG, h, r, w, rows)).lower(
                handle, expert_rows, shape((world.num_ranks, 128), f32)
            )
        for wrong, kind in ((np.complex128, ValueError), ("nothing", TypeError)):
            with raises(kind, "Group", "max_token_dtype"):
                _group(world, wrong)
    with world.context(), raises(ValueError, "float16", "int32"):
        # The functional API has them too.
        expert_rows = shape((world.num_ranks, 64, 8), jnp.int32)
        handle = shape((world.num_ranks, ep.ep_handle_mem_size(_CFG)), jnp.uint8)
        jax.jit(lambda h, r: primitives.ep_combine_fwd(_CFG, h, r, rows)).lower(handle, expert_rows)
