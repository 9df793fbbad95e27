"""Goal: the five operations give the reference's bits on every shape of job, with both executors."""

import pytest
from harness import Setup, checks_of, report_of, with_64_bits

_WORKER = {"environment": {"EPD_EXECUTOR": "worker"}, "label": "-worker"}
_SETUPS = [
    with_64_bits(Setup("operations", processes=1, mesh=(1, 1))),
    Setup("operations", processes=2, mesh=(1, 2)),
    Setup("operations", processes=4, mesh=(2, 2)),
    Setup("operations", processes=2, devices=2, mesh=(1, 4)),
    Setup("operations", processes=4, mesh=(1, 4), **_WORKER),
]


@pytest.mark.parametrize("check", checks_of("operations"))
@pytest.mark.parametrize("setup", _SETUPS, ids=str)
def test_operation(setup: Setup, check: str):
    report_of(setup).expect(check)


@pytest.mark.parametrize("setup", _SETUPS, ids=str)
def test_processes_end_with_status_0_and_without_noise(setup: Setup):
    report = report_of(setup)
    report.expect_clean_exit()
    for log in report.logs:
        lines = [
            line for line in log.splitlines() if line and not line.startswith(("seed ", "check_"))
        ]
        assert not [line for line in lines if "epd" in line.lower() or "Traceback" in line], log
