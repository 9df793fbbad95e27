"""Goal: ragged_all_to_all is what jax.lax documents, with the gradients of an emulation by all_gather, on any shape of job."""

import functools

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import Fleet, Report, Setup, checks_of, report_of, with_64_bits
from nodes import running_nodes

_SHAPES = [
    Setup("ragged", processes=4, mesh=(1, 4)),
    Setup("ragged", processes=2, devices=2, mesh=(1, 4)),
    with_64_bits(Setup("ragged", processes=1, devices=8, mesh=(2, 4))),
    Setup("ragged", processes=1, mesh=(1, 1)),
    Setup("ragged", processes=3, devices=(1, 2, 1), mesh=(2, 2)),
]


@pytest.mark.parametrize("check", checks_of("ragged"))
@pytest.mark.parametrize("setup", _SHAPES, ids=str)
def test_shape(setup: Setup, check: str):
    report_of(setup).expect(check)


@pytest.mark.parametrize("setup", _SHAPES, ids=str)
def test_processes_end_with_status_0(setup: Setup):
    report_of(setup).expect_clean_exit()


@functools.cache
def _over_two_nodes() -> Report:
    try:
        with running_nodes(2) as nodes:
            setup = Setup("ragged", processes=4, mesh=(1, 4), label="-nodes")
            return Fleet(setup, nodes.daemons[0].folder, *nodes.daemons).run()
    except (AssertionError, OSError) as error:
        return Report([], [], [], "", failure=f"{type(error).__name__}: {error}")


@pytest.mark.parametrize("check", checks_of("ragged"))
def test_over_two_nodes(check: str):
    _over_two_nodes().expect(check)


_ROWS, _ONES = np.ones((4, 3), np.float32), np.ones(4, np.int32)


def _index(number: int, array: np.ndarray) -> tuple:
    """Sound operands, but for one of the four arrays of indices."""
    return _ROWS, _ROWS, *(array if n == number else _ONES for n in range(4))


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((_ROWS[0, 0], _ROWS, *4 * (_ONES,)), "operand is"),
        ((_ROWS, _ROWS[:, :2], *4 * (_ONES,)), "output"),
        ((_ROWS, _ROWS.astype(np.int32), *4 * (_ONES,)), "give both one dtype"),
        *(
            (_index(number, array), name)
            for number, name in enumerate(
                ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")
            )
            for array in (_ONES.astype(np.float32), _ONES[:, None])
        ),
        ((_ROWS, _ROWS, *4 * (_ONES[:0],)), "input_offsets"),
    ],
)
def test_arguments_are_named_before_an_axis_that_is_not_there(mapped: bool, given, said: str):
    """As in JAX: what is wrong with the call itself is the same in every mesh."""
    call = functools.partial(ep.ragged_all_to_all, axis_name="elsewhere")
    arrays = [jnp.asarray(array) for array in given]
    if mapped:
        call, arrays = jax.vmap(call, axis_name="elsewhere"), [array[None] for array in arrays]
    with pytest.raises(ValueError, match="ragged_all_to_all: ") as raised:
        call(*arrays)
    assert said in str(raised.value) and "elsewhere" not in str(raised.value), raised.value


def test_an_axis_that_is_not_there_is_named_where_the_arguments_are_sound():
    with pytest.raises(ValueError, match="'elsewhere'"):
        ep.ragged_all_to_all(_ROWS, _ROWS, *4 * (_ONES,), axis_name="elsewhere")
