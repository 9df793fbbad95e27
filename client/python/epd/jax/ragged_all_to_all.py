"""ragged_all_to_all: ``jax.lax.ragged_all_to_all`` on CPUs, where XLA has none."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax._src.lax.parallel import ragged_all_to_all_p
from jax.interpreters import mlir

from epd.jax import _ragged_group, config
from epd.jax._call import Static, align_varying
from epd.jax._exchange_primitive import bind
from epd.jax._ragged_exchange import IndexGroups, Ragged, RaggedBytes
from epd.jax.mesh import Layout, axes_of_vmap

_FUNCTION = "ragged_all_to_all"
_NAMES = ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")


def _layout(axis_name: str | Sequence[str]) -> Layout:
    axes = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)
    mesh = jax.sharding.get_abstract_mesh()
    manual = () if mesh.empty else mesh.manual_axes
    missing = [axis for axis in axes if axis not in manual]
    if missing or not axes:
        raise ValueError(
            f"{_FUNCTION}: call it inside a jax.shard_map over axis_name: {axis_name!r} is not among its axes {tuple(manual)}"
            f"{axes_of_vmap(missing)}"
        )
    free = tuple(axis for axis in mesh.axis_names if axis not in manual and mesh.shape[axis] > 1)
    return Layout(
        mesh=mesh if free else None,
        axis_names=tuple(mesh.axis_names),
        mesh_shape=tuple(mesh.shape[axis] for axis in mesh.axis_names),
        ep_axes=axes,
        carriers=axes,
        lead=(),
        free=tuple(axis for axis in mesh.axis_names if axis not in manual),
        checks_manual=True,
    )


def _index_groups(given: Sequence[Sequence[int]] | None, size: int) -> IndexGroups | None:
    if given is None:
        return None
    groups = tuple(tuple(int(index) for index in group) for group in given)
    alike = len({len(group) for group in groups}) == 1
    if not alike or sorted(index for group in groups for index in group) != list(range(size)):
        raise ValueError(
            f"{_FUNCTION}: axis_index_groups is {groups}; expected groups of one size with each of the {size} indices once"
        )
    return groups


def _check_rows(operand: jax.Array, output: jax.Array) -> None:
    if not operand.ndim or operand.ndim != output.ndim or operand.shape[1:] != output.shape[1:]:
        raise ValueError(
            f"{_FUNCTION}: operand is {operand.shape} and output {output.shape}; expected arrays of rows of one shape"
        )
    if operand.dtype != output.dtype:
        raise ValueError(
            f"{_FUNCTION}: operand is {operand.dtype} and output {output.dtype}; give both one dtype"
        )


def _check_indices(arrays: Sequence[jax.Array]) -> None:
    for name, array in zip(_NAMES, arrays, strict=True):
        if not jnp.issubdtype(array.dtype, jnp.integer):
            raise ValueError(f"{_FUNCTION}: {name} is {array.dtype}; expected integers")
        if array.ndim != 1 or array.shape != arrays[0].shape or not array.size:
            raise ValueError(
                f"{_FUNCTION}: {name} is {array.shape}; expected the shape of {_NAMES[0]} {arrays[0].shape}, one dimension, a"
                " multiple of the ranks"
            )


def _indices(arrays: Sequence[jax.Array], ranks: int) -> list[jax.Array]:
    if arrays[0].size % ranks:
        raise ValueError(
            f"{_FUNCTION}: {_NAMES[0]} is {arrays[0].shape}; expected one dimension, a multiple of the {ranks} ranks"
        )
    wide = any(array.dtype.itemsize == 8 for array in arrays)
    return [array.astype(jnp.int64 if wide else jnp.int32) for array in arrays]


_Way = Callable[[jax.Array], jax.Array]


def _pairs(rows: jax.Array) -> jax.Array:
    return jnp.stack([rows.real, rows.imag], axis=-1)


def _as_bytes(rows: jax.Array) -> tuple[_Way, _Way]:
    """To a dtype that can be moved, and back: keys of jax.random, complex elements, and those of less than a byte."""
    dtype = rows.dtype
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        wrap = functools.partial(jax.random.wrap_key_data, impl=jax.random.key_impl(rows))
        return jax.random.key_data, wrap
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return _pairs, lambda pairs: jax.lax.complex(pairs[..., 0], pairs[..., 1])
    moved: Any = dtype
    if dtype.name in config.SUB_BYTE:
        moved = jnp.bfloat16 if jnp.issubdtype(dtype, jnp.floating) else jnp.int8
    return (lambda array: array.astype(moved)), (lambda array: array.astype(dtype))


def ragged_all_to_all(
    operand: jax.Array,
    output: jax.Array,
    input_offsets: jax.Array,
    send_sizes: jax.Array,
    output_offsets: jax.Array,
    recv_sizes: jax.Array,
    *,
    axis_name: str | Sequence[str],
    axis_index_groups: Sequence[Sequence[int]] | None = None,
) -> jax.Array:
    """Sends slices of rows to the other devices along an axis, to offsets that the sender gives.

    ``jax.lax.ragged_all_to_all`` with its arguments and meaning, through the node's epd. Inside a shard_map over ``axis_name``.
    The ranks find each other at run time: tracing needs no daemon, and each device joins at its first call. Differentiable in
    operand and output, forwards and backwards; a row that goes to several ranks gets the sum of their gradients. ``vmap``
    makes one exchange per element, one after another.

    Args:
        operand: ``[N, ...]`` rows, of any dtype.
        output: ``[M, ...]`` what the result holds where no slice lands. Its dtype is operand's.
        input_offsets: ``[R * S]`` where each slice begins in operand: S slices for each of R ranks, ordered by rank.
        send_sizes: ``[R * S]`` their rows; 0: none, and the offsets mean nothing.
        output_offsets: ``[R * S]`` where each begins in its receiver's output.
        recv_sizes: ``[R * S]`` rows of each slice that comes, ordered by the rank that sends it.
        axis_name: an axis of the mesh, or several, counted row-major.
        axis_index_groups: indices of the axis that exchange among themselves, in groups of one size.

    Returns:
        ``[M, ...]``

    Raises:
        ValueError: while tracing: axis_name is no manual axis, shapes or dtypes that do not fit.
        EpError (see ``epd.jax.errors``): while running, INVALID_ARGUMENT on all ranks: a negative or too large offset or
            size, recv_sizes that are not what the others send, slices that overlap in an output.
    """
    operand, output = jnp.asarray(operand), jnp.asarray(output)
    given = [jnp.asarray(a) for a in (input_offsets, send_sizes, output_offsets, recv_sizes)]
    _check_rows(operand, output)
    _check_indices(given)
    layout = _layout(axis_name)
    groups = _index_groups(axis_index_groups, layout.ep_size)
    ranks = len(groups[0]) if groups is not None else layout.ep_size
    indices = _indices(given, ranks)
    if not math.prod(operand.shape[1:]):
        return output
    spec = _ragged_group.spec_of(_ragged_group.alias_of(layout, groups), ranks)
    static = Static(spec, layout, _ragged_group.LAYER)
    there, back = _as_bytes(operand)
    operand, output, *indices = align_varying(layout, [there(operand), there(output), *indices])
    sizes = (static, groups, operand.shape[0])
    if jnp.issubdtype(operand.dtype, jnp.inexact):
        return back(bind(Ragged(*sizes), indices, [operand, output])[2])
    return back(bind(RaggedBytes(*sizes), [operand, output, *indices], [])[2])


_num_as_lax = 0  # Contexts that are entered.


@contextlib.contextmanager
def ragged_all_to_all_as_lax() -> Iterator[None]:
    """Inside, ``jax.lax.ragged_all_to_all`` on CPUs is this one, for all threads: in programs that are traced there, also by code
    that had imported the function before, and in those that are compiled there though they were traced outside. The
    derivatives of the latter are JAX's, whose gradient of output is wrong next to empty slices.
    """
    global _num_as_lax
    before = jax.lax.ragged_all_to_all
    jax.lax.ragged_all_to_all = ragged_all_to_all
    _num_as_lax += 1
    # What the function calls that others hold.
    vars(ragged_all_to_all_p)["bind"] = ragged_all_to_all
    try:
        yield
    finally:
        _num_as_lax -= 1
        if not _num_as_lax:
            del vars(ragged_all_to_all_p)["bind"]
        jax.lax.ragged_all_to_all = before


def _lower_lax(ctx: mlir.LoweringRuleContext, *arrays: Any, **params: Any) -> Any:
    if not _num_as_lax:
        raise NotImplementedError(
            "jax.lax.ragged_all_to_all: XLA has none on CPUs, and the program was traced and compiled without epd's: enter"
            " epd.jax.ragged_all_to_all_as_lax(), or start it by python -m epd.jax.run --ragged-all-to-all"
        )
    exchange = functools.partial(ragged_all_to_all, **params)
    return mlir.lower_fun(exchange, multiple_results=False)(ctx, *arrays)


mlir.register_lowering(ragged_all_to_all_p, _lower_lax, platform="cpu")
