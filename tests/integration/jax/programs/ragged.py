"""ragged_all_to_all against NumPy and against an emulation by all_gather."""

import inspect
import re
from dataclasses import dataclass
from functools import partial

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from epd.jax import _ffi
from jax.sharding import PartitionSpec
from world import COLLECTIVES, World, fails, raises

HIDDEN = 6


@dataclass
class Slices:
    """What all ranks of all domains call with, stacked: [R * N, ...], [R * M, ...] and [R, n * S]."""

    operand: np.ndarray
    output: np.ndarray
    input_offsets: np.ndarray
    send_sizes: np.ndarray
    output_offsets: np.ndarray
    recv_sizes: np.ndarray

    @property
    def indices(self) -> tuple[np.ndarray, ...]:
        given = (self.input_offsets, self.send_sizes, self.output_offsets, self.recv_sizes)
        return tuple(array.reshape(-1).astype(np.int32) for array in given)


def draw(
    seed: int, domains: int, n: int, slices: int = 1, row=(HIDDEN,), dtype=np.float32, most: int = 5
) -> Slices:
    """Random sizes, a third of them 0; slices of the operand may overlap, between those of the output are gaps."""
    print(f"seed {seed}", flush=True)
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, most + 1, (domains, n, n, slices))
    sizes[rng.random(sizes.shape) < 0.33] = 0
    rows = n * slices * most
    input_offsets = rng.integers(0, rows - most + 1, sizes.shape)
    received = sizes.transpose(0, 2, 1, 3).copy()  # By receiver, sender, number.
    output_offsets = np.zeros_like(received)
    for domain in range(domains):
        for receiver in range(n):
            at = 0
            for place in rng.permutation(n * slices):
                at += rng.integers(0, 2)
                output_offsets[domain, receiver].reshape(-1)[place] = at
                at += received[domain, receiver].reshape(-1)[place]
    ranks, out_rows = domains * n, n * slices * (most + 1)

    def data(rows: int) -> np.ndarray:
        values = rng.standard_normal((ranks * rows, *row)) * 50
        if np.dtype(dtype).kind == "c":
            values = values + 1j * rng.standard_normal(values.shape)
        return values.astype(dtype) if np.dtype(dtype).kind != "b" else values > 0

    flat = lambda array: array.reshape(ranks, -1)  # noqa: E731
    return Slices(
        data(rows),
        data(out_rows),
        flat(input_offsets),
        flat(sizes),
        flat(output_offsets.transpose(0, 2, 1, 3)),
        flat(received),
    )


def expected(given: Slices, domains: int, n: int) -> np.ndarray:
    ranks = domains * n
    operands = given.operand.reshape(ranks, -1, *given.operand.shape[1:])
    result = given.output.copy().reshape(ranks, -1, *given.output.shape[1:])
    slices = given.send_sizes.shape[1] // n
    for sender in range(ranks):
        for i in range(n * slices):
            size = given.send_sizes[sender, i]
            first, to = given.input_offsets[sender, i], given.output_offsets[sender, i]
            receiver = sender // n * n + i // slices
            result[receiver, to : to + size] = operands[sender, first : first + size]
    return result.reshape(given.output.shape)


def emulated(operand, output, *indices, axis_name: str = "ep"):
    """The same by all_gather; differentiable."""
    n, me = jax.lax.axis_size(axis_name), jax.lax.axis_index(axis_name)
    gather = partial(jax.lax.all_gather, axis_name=axis_name)
    operands, (first, size, to, _) = gather(operand), map(gather, indices)
    slices = first.shape[1] // n
    row = jnp.arange(output.shape[0], dtype=to.dtype)
    for sender in range(n):
        for number in range(slices):
            i = me * slices + number
            begin = to[sender, i]
            inside = (row >= begin) & (row < begin + size[sender, i])
            moved = operands[sender][jnp.clip(first[sender, i] + row - begin, 0, len(operand) - 1)]
            output = jnp.where(inside.reshape(-1, *(1,) * (output.ndim - 1)), moved, output)
    return output


def mapped(world: World, function, *arguments, spec: PartitionSpec | None = None, **options):
    """The function of each rank's shares, jitted."""
    spec = spec or world.spec
    specs = {"in_specs": spec, "out_specs": spec, **options}
    return jax.jit(jax.shard_map(function, mesh=world.mesh, **specs))(*arguments)


def put(world: World, given: Slices) -> list[jax.Array]:
    return [world.put(array) for array in (given.operand, given.output, *given.indices)]


EXCHANGE = partial(ep.ragged_all_to_all, axis_name="ep")


def check_rows_land_where_their_senders_say(world: World):
    for seed, slices in ((1, 1), (2, 3)):
        given = draw(seed, world.dp, world.ep, slices)
        out = mapped(world, EXCHANGE, *put(world, given))
        world.expect_equal(out, expected(given, world.dp, world.ep))


def check_it_is_the_emulation_by_all_gather(world: World):
    given = draw(3, world.dp, world.ep, 2)
    arrays = put(world, given)
    out, emulation = mapped(world, EXCHANGE, *arrays), mapped(world, emulated, *arrays)
    for one, other in zip(out.addressable_shards, emulation.addressable_shards, strict=True):
        np.testing.assert_array_equal(np.asarray(one.data), np.asarray(other.data))


def check_it_takes_what_jax_lax_takes(world: World):
    del world
    ours, theirs = map(inspect.signature, (ep.ragged_all_to_all, jax.lax.ragged_all_to_all))
    for one, other in zip(ours.parameters.values(), theirs.parameters.values(), strict=True):
        assert (one.name, one.kind, one.default) == (other.name, other.kind, other.default)


def check_more_than_128_slices(world: World):
    """Of each pair of ranks."""
    given = draw(4, world.dp, world.ep, 130, most=2)
    out = mapped(world, EXCHANGE, *put(world, given))
    world.expect_equal(out, expected(given, world.dp, world.ep))


def check_rows_larger_than_an_eager_buffer(world: World):
    given = draw(5, world.dp, world.ep, 1, row=(16, 1024), most=40)
    for _ in range(3):
        out = mapped(world, EXCHANGE, *put(world, given))
        world.expect_equal(out, expected(given, world.dp, world.ep))


def check_any_dtype_and_shape_of_rows(world: World):
    kinds = [np.float32, jnp.bfloat16, np.float16, np.int8, np.uint8, np.int32, np.bool_]
    kinds += [jnp.float8_e4m3fn]
    for seed, dtype in enumerate(kinds):
        given = draw(10 + seed, world.dp, world.ep, row=((), (3,), (2, 5))[seed % 3], dtype=dtype)
        out = mapped(world, EXCHANGE, *put(world, given))
        assert out.dtype == dtype
        world.expect_equal(out, expected(given, world.dp, world.ep), str(dtype))


def check_keys_and_elements_of_less_than_a_byte(world: World):
    given = draw(19, world.dp, world.ep, row=(2,), dtype=np.uint32)
    wanted = expected(given, world.dp, world.ep)

    def keys(operand, output, *indices):
        wrapped = map(jax.random.wrap_key_data, (operand, output))
        return jax.random.key_data(EXCHANGE(*wrapped, *indices))

    def narrow(operand, output, *indices):
        small = [(array % 16).astype(jnp.uint4) for array in (operand, output)]
        return EXCHANGE(*small, *indices).astype(jnp.int32)

    world.expect_equal(mapped(world, keys, *put(world, given)), wanted)
    world.expect_equal(mapped(world, narrow, *put(world, given)), wanted % 16)


def _expect_shards(got: jax.Array, wanted: np.ndarray | jax.Array, **tolerance: float) -> None:
    """As they are, or within the tolerance; of any dtype that NumPy compares."""
    compare = np.testing.assert_allclose if tolerance else np.testing.assert_array_equal
    shards = wanted.addressable_shards if isinstance(wanted, jax.Array) else None
    for number, mine in enumerate(got.addressable_shards):
        other = wanted[mine.index] if shards is None else shards[number].data
        compare(np.asarray(mine.data), np.asarray(other), **tolerance)


def check_elements_of_8_and_16_bytes_and_indices_of_8(world: World):
    """Of few rows, which ranks of one node exchange for themselves, and of more than go there."""
    with jax.enable_x64(True):
        for seed, (dtype, row) in enumerate(((np.int64, (3,)), (np.complex128, (2048,)))):
            given = draw(32 + seed, world.dp, world.ep, 2, row=row, dtype=dtype)
            indices = [world.put(array.astype(np.int64)) for array in given.indices]
            arrays = world.put(given.operand), world.put(given.output)
            out = mapped(world, EXCHANGE, *arrays, *indices)
            assert out.dtype == dtype
            _expect_shards(out, expected(given, world.dp, world.ep))


def check_gradients_of_rows_that_the_library_only_moves(world: World):
    """Rows that went to several ranks get the sum, whatever their dtype is."""

    def gradients(function, operand, output, *indices):
        def loss(operand, output):
            out = function(operand, output, *indices)
            factors = (
                jnp.arange(1, 1 + len(out)).astype(out.dtype).reshape(-1, *(1,) * (out.ndim - 1))
            )
            return (out * out * factors).real.sum()

        return jax.grad(loss, (0, 1))(operand, output)

    with jax.enable_x64(True):
        for seed, dtype in enumerate((np.float64, np.complex64)):
            arrays = put(world, draw(40 + seed, world.dp, world.ep, 2, dtype=dtype))
            got, wanted = (
                mapped(world, partial(gradients, function), *arrays)
                for function in (EXCHANGE, emulated)
            )
            close = 1e-4 if dtype is np.complex64 else 1e-12
            for one, other in zip(got, wanted, strict=True):
                assert one.dtype == dtype
                _expect_shards(one, other, rtol=close, atol=close)


def check_gradients_of_rows_of_8_bits(world: World):
    """Of cotangents whose sums 8 bits hold."""
    given = draw(43, world.dp, world.ep, dtype=jnp.float8_e4m3fn)

    def gradients(function, operand, output, *indices):
        out, pull = jax.vjp(lambda x, y: function(x, y, *indices), operand, output)
        small = 1 + jnp.arange(out.size).reshape(out.shape) % 2
        return [gradient.astype(jnp.float32) for gradient in pull(small.astype(out.dtype))]

    def wide(operand, output, *indices):
        return emulated(operand.astype(jnp.float32), output.astype(jnp.float32), *indices)

    got, wanted = (
        mapped(world, partial(gradients, function), *put(world, given), check_vma=False)
        for function in (EXCHANGE, wide)
    )
    for one, other in zip(got, wanted, strict=True):
        _expect_shards(one, other)


def _products(function, operand, output, *indices):
    """<J x, v> and <x, J^T v> over all ranks, which are one number."""
    out, pull = jax.vjp(lambda x, y: function(x, y, *indices), operand, output)
    v = jnp.cos(out)
    back = zip(pull(v), (operand, output), strict=True)
    both = jnp.stack([(out * v).sum(), sum((one * other).sum() for one, other in back)])
    return jax.lax.psum(both, ("dp", "ep"))[None]


def _expect_one_number(world: World, function, arrays) -> None:
    found = mapped(world, partial(_products, function), *arrays, check_vma=False)
    for shard in found.addressable_shards:
        forward, back = np.asarray(shard.data)[0]
        np.testing.assert_allclose(forward, back, rtol=1e-4)
        assert forward, "nothing was moved"


def _gradients(function, operand, output, *indices):
    def loss(operand, output):
        out = function(operand, output, *indices)
        factors = jnp.arange(1, 1 + out.size).astype(out.dtype).reshape(out.shape)
        return (jnp.sin(out) * factors).sum()

    return jax.grad(loss, (0, 1))(operand, output)


def check_gradients_are_those_of_the_emulation(world: World):
    """Also of rows that went to several ranks, which get the sum."""
    arrays = put(world, draw(20, world.dp, world.ep, 2))
    for options in ({}, {"check_vma": False}):
        got, wanted = (
            mapped(world, partial(_gradients, function), *arrays, **options)
            for function in (EXCHANGE, emulated)
        )
        for one, other in zip(got, wanted, strict=True):
            for mine, theirs in zip(one.addressable_shards, other.addressable_shards, strict=True):
                np.testing.assert_allclose(mine.data, theirs.data, rtol=1e-5, atol=1e-5)


def check_the_program_has_no_collective_of_xla(world: World):
    arrays = put(world, draw(21, world.dp, world.ep))
    step = jax.jit(
        jax.shard_map(
            partial(_gradients, EXCHANGE),
            mesh=world.mesh,
            in_specs=world.spec,
            out_specs=world.spec,
        )
    )
    text = step.lower(*arrays).compile().as_text()
    assert not [word for word in COLLECTIVES if re.search(rf"\b{word}(-start)?\(", text)], text


def check_remat_scan_vmap_and_jvp(world: World):
    given = draw(22, world.dp, world.ep)
    arrays = put(world, given)

    def scanned(function, operand, output, *indices):
        body = jax.checkpoint(
            lambda c, _: (jnp.cos(function(operand * c.mean(), c, *indices)), None)
        )
        return _gradients(
            lambda x, y, *_: jax.lax.scan(body, y * x.mean(), None, 3)[0], operand, output
        )

    def batched(function, operand, output, *indices):
        both = jax.vmap(lambda x, y: function(x, y, *indices), (0, 0))
        return both(jnp.stack([operand, 2 * operand]), jnp.stack([output, -output])).sum(0)

    def forward(function, operand, output, *indices):
        return jax.jvp(lambda x: function(x * x, output, *indices), (operand,), (operand,))[1]

    for transform in (scanned, batched, forward):
        got, wanted = (
            mapped(world, partial(transform, function), *arrays, check_vma=False)
            for function in (EXCHANGE, emulated)
        )
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
            for mine, theirs in zip(one.addressable_shards, other.addressable_shards, strict=True):
                np.testing.assert_allclose(
                    mine.data, theirs.data, rtol=2e-4, atol=2e-4, err_msg=transform.__name__
                )


def check_vmap_over_slices(world: World):
    """Each element has slices of its own; here the second has none."""
    given = draw(46, world.dp, world.ep)

    def batched(operand, output, *indices):
        pairs = [jnp.stack([index, jnp.zeros_like(index)]) for index in indices]
        rows = jnp.stack([operand, 2 * operand]), jnp.stack([output, -output])
        return jnp.concatenate(jax.vmap(EXCHANGE)(*rows, *pairs), axis=-1)

    wanted = np.concatenate([expected(given, world.dp, world.ep), -given.output], axis=-1)
    world.expect_equal(mapped(world, batched, *put(world, given)), wanted)


def check_a_tuple_of_axes(world: World):
    given = draw(23, 1, world.num_ranks)
    function, arrays = partial(ep.ragged_all_to_all, axis_name=("dp", "ep")), put(world, given)
    world.expect_equal(mapped(world, function, *arrays), expected(given, 1, world.num_ranks))
    _expect_one_number(world, function, arrays)


def check_index_groups(world: World):
    """Every second rank along ep, and those between."""
    if world.ep % 2:
        return
    half = world.ep // 2
    groups = [list(range(0, world.ep, 2)), list(range(1, world.ep, 2))]
    given = draw(24, world.dp * 2, half)
    order = [d * world.ep + i for d in range(world.dp) for group in groups for i in group]
    shares = [
        np.split(array, world.num_ranks) for array in (given.operand, given.output, *given.indices)
    ]
    wanted = np.split(expected(given, world.dp * 2, half), world.num_ranks)

    def placed(parts: list) -> np.ndarray:
        by_rank = dict(zip(order, parts, strict=True))
        return np.concatenate([by_rank[rank] for rank in range(world.num_ranks)])

    function = partial(EXCHANGE, axis_index_groups=groups)
    arrays = [world.put(placed(parts)) for parts in shares]
    world.expect_equal(mapped(world, function, *arrays), placed(wanted))
    with jax.enable_x64(True):
        wide = [array.astype(jnp.float64) for array in arrays[:2]]
        _expect_one_number(world, function, [*wide, *arrays[2:]])


def check_the_other_axis_may_be_left_to_xla(world: World):
    """shard_map over ep alone: what is sent does not depend on dp."""
    given = draw(25, 1, world.ep)
    spec = PartitionSpec("ep")
    arrays = [world.put(array, spec) for array in (given.operand, given.output, *given.indices)]
    out = mapped(world, EXCHANGE, *arrays, spec=spec, axis_names={"ep"})
    world.expect_equal(out, expected(given, 1, world.ep))


def check_programs_with_other_sizes_share_the_group(world: World):
    given = draw(26, world.dp, world.ep, 2, row=(3,))
    arrays = put(world, given)
    step = jax.jit(
        jax.shard_map(EXCHANGE, mesh=world.mesh, in_specs=world.spec, out_specs=world.spec)
    )
    others = put(world, draw(27, world.dp, world.ep))
    texts = [step.lower(*given).as_text() for given in (arrays, others)]
    (alias,) = {name for text in texts for name in re.findall(r"ragged-\w+", text)}
    world.expect_equal(step(*arrays), expected(given, world.dp, world.ep))
    assert _ffi.state(alias)[0] == "ready"


def check_it_stands_beside_a_group_that_other_code_bootstrapped(world: World):
    """Two code bases in one program: one calls ep_bootstrap, the other this function."""
    world.bootstrap()
    cfg, given = ep.EpLayerConfig(top_k=2), draw(45, world.dp, world.ep)
    rows = np.arange(world.num_ranks * 2 * 8, dtype=np.float32).reshape(-1, 8)
    idx, weights = np.zeros((len(rows), 2), np.int32), np.ones((len(rows), 2), np.float32)
    exchange = jax.shard_map(EXCHANGE, mesh=world.mesh, in_specs=world.spec, out_specs=world.spec)

    def both(idx, tokens, weights, *arrays):
        recv, _, handle, counts, _ = ep.ep_dispatch(cfg, idx, tokens, weights, 64)
        return ep.ep_combine(cfg, handle, counts, recv, len(tokens)), exchange(*arrays)

    with world.context():
        layer = [world.put(array) for array in (idx, rows, weights)]
        combined, exchanged = jax.jit(both)(*layer, *put(world, given))
    world.expect_equal(combined, 2 * rows)
    world.expect_equal(exchanged, expected(given, world.dp, world.ep))


def check_what_does_not_fit_is_an_error_on_all_ranks(world: World):
    last = world.num_ranks - 1
    n = world.ep

    def with_error(change, code: str, *texts: str):
        given = draw(28, world.dp, n, most=3)
        given.send_sizes[:], given.recv_sizes[:] = 1, 1
        given.output_offsets[:] = np.arange(world.num_ranks)[:, None] % n
        given.input_offsets[:] = 0
        change(given)
        # Each domain fails for itself.
        if world.dp == 1:
            with fails(code, *texts):
                jax.block_until_ready(mapped(world, EXCHANGE, *put(world, given)))
        good = draw(29, world.dp, n)
        world.expect_equal(mapped(world, EXCHANGE, *put(world, good)), expected(good, world.dp, n))

    def set_at(name: str, value: int, entry: int = n - 1):
        def change(given: Slices) -> None:
            getattr(given, name)[last, entry] = value

        return change

    bad = "INVALID_ARGUMENT"
    with_error(set_at("recv_sizes", 2, 0), bad, "recv_sizes[0]", "is 2")
    with_error(set_at("send_sizes", -1), bad, "negative")
    with_error(set_at("recv_sizes", -1), bad, "negative")
    with_error(set_at("input_offsets", -1), bad, "negative")
    with_error(set_at("output_offsets", -1), bad, "negative")
    with_error(set_at("input_offsets", 10**6), bad, "operand has")
    with_error(set_at("output_offsets", 10**6), bad, "output of rank")
    if n > 1:
        with_error(set_at("output_offsets", 0), bad, "overlap")


def check_code_that_calls_jax_lax(world: World):
    given = draw(30, world.dp, world.ep)
    imported_before = jax.lax.ragged_all_to_all

    def layer(*arrays):
        return jax.lax.ragged_all_to_all(*arrays, axis_name="ep")

    def holds_it(*arrays):
        return imported_before(*arrays, axis_name="ep")

    specs = {"in_specs": world.spec, "out_specs": world.spec, "check_vma": False}
    outside = jax.jit(jax.shard_map(holds_it, mesh=world.mesh, **specs))
    traced_outside = outside.trace(*put(world, given))
    with ep.ragged_all_to_all_as_lax():
        out = traced_outside.lower().compile()(*put(world, given))
        world.expect_equal(out, expected(given, world.dp, world.ep))
        for function in (layer, holds_it):
            out = mapped(world, function, *put(world, given), check_vma=False)
            world.expect_equal(out, expected(given, world.dp, world.ep))
        _expect_one_number(world, holds_it, put(world, given))
    assert jax.lax.ragged_all_to_all is imported_before


def check_a_program_that_was_traced_without_epd_is_told_so(world: World):
    given = put(world, draw(31, world.dp, world.ep))

    def layer(*arrays):
        return jax.lax.ragged_all_to_all(*arrays, axis_name="ep")

    with raises(NotImplementedError, "ragged_all_to_all_as_lax()", "--ragged-all-to-all"):
        mapped(world, layer, *given)
