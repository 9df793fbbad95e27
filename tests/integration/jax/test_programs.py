"""Goal: transformations, contexts, errors and faults behave as API.md says, in real processes."""

import pytest
from harness import Setup, checks_of, report_of, with_64_bits

_WORKER = {"environment": {"EPD_EXECUTOR": "worker"}, "label": "-worker"}
_SETUPS = [
    Setup("transforms", processes=4, mesh=(2, 2)),
    with_64_bits(Setup("transforms", processes=1, devices=4, mesh=(2, 2))),
    Setup("transposes", processes=2, devices=2, mesh=(2, 2)),
    Setup("strict_modes", processes=1, devices=4, mesh=(2, 2)),
    Setup("shardings", processes=1, devices=8, mesh=(1, 8)),
    Setup("several_axes", processes=1, devices=8, mesh=(1, 8)),
    Setup("several_axes", processes=2, devices=4, mesh=(1, 8)),
    Setup("groups", processes=4, mesh=(2, 2)),
    with_64_bits(Setup("groups", processes=1, devices=4, mesh=(2, 2))),
    Setup("order", processes=2, devices=2, mesh=(1, 4)),
    Setup("traces", processes=1, devices=4, mesh=(2, 2)),
    Setup("contexts", processes=2, devices=2, mesh=(2, 2)),
    Setup("payloads", processes=4, mesh=(2, 2)),
    with_64_bits(Setup("payloads", processes=1, devices=4, mesh=(1, 4), **_WORKER)),
    Setup("halves", processes=4, mesh=(2, 2)),
    Setup("halves", processes=2, mesh=(1, 2)),
    with_64_bits(Setup("halves", processes=1, devices=4, mesh=(1, 4), **_WORKER)),
    with_64_bits(Setup("roles", processes=1, devices=8, mesh=(1, 8))),
    Setup("roles", processes=2, devices=4, mesh=(1, 8)),
    Setup("roles", processes=5, mesh=(1, 5), **_WORKER),
    Setup("bad_input", processes=4, mesh=(2, 2)),
    with_64_bits(Setup("bad_input", processes=1, devices=4, mesh=(2, 2))),
    with_64_bits(Setup("errors_table", processes=1, mesh=(1, 1))),
    Setup("errors_table", processes=4, mesh=(2, 2)),
    Setup("errors_of_meshes", processes=4, mesh=(2, 2)),
    Setup("faults", processes=2, mesh=(1, 2)),
    Setup(
        "faults", processes=4, mesh=(2, 2), environment={"EPD_EXECUTOR": "worker"}, label="-worker"
    ),
    Setup("late", processes=2, mesh=(1, 2), environment={"EPD_ABSENT_TIMEOUT": "3"}),
]
_CASES = [
    pytest.param(setup, check, id=f"{setup}-{check}")
    for setup in _SETUPS
    for check in checks_of(setup.program)
]


@pytest.mark.parametrize(("setup", "check"), _CASES)
def test_check(setup: Setup, check: str):
    report_of(setup).expect(check)
