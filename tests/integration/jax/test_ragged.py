"""Goal: ragged_all_to_all is what jax.lax documents, with the gradients of an emulation by all_gather, on any shape of job."""

import functools

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
