"""Goal: forward and backward are the reference's on any shape of job and for any size."""

import pytest
from harness import Setup, checks_of, report_of

_SHAPES = [
    Setup("process_shapes", processes=2, devices=(3, 1), mesh=(1, 4)),
    Setup("process_shapes", processes=3, devices=(1, 2, 1), mesh=(1, 3)),  # One process outside.
    Setup("process_shapes", processes=1, devices=4, mesh=(2, 2), cores=1),
    Setup("process_shapes", processes=1, devices=8, mesh=(1, 8)),
    Setup("process_shapes", processes=3, mesh=(1, 3)),
]
_SIZES = [Setup("sizes", processes=1, devices=3, mesh=(1, 3))]


@pytest.mark.parametrize("check", checks_of("process_shapes"))
@pytest.mark.parametrize("setup", _SHAPES, ids=str)
def test_shape(setup: Setup, check: str):
    report_of(setup).expect(check)


@pytest.mark.parametrize("check", checks_of("sizes"))
@pytest.mark.parametrize("setup", _SIZES, ids=str)
def test_size(setup: Setup, check: str):
    report_of(setup).expect(check)


@pytest.mark.parametrize("setup", _SHAPES + _SIZES, ids=str)
def test_no_program_is_taken_for_another_one(setup: Setup):
    report_of(setup).compared.expect(str(setup))


@pytest.mark.parametrize("setup", _SHAPES + _SIZES, ids=str)
def test_processes_end_with_status_0(setup: Setup):
    report_of(setup).expect_clean_exit()
