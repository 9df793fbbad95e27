"""Goal: transformer_engine.jax.moe as epd offers it equals a dense layer, and refuses by name what it does not have."""

import importlib.util

import pytest
from harness import Setup, checks_of, report_of

# Most of the time goes into compiling.
_SETUPS = [
    Setup(program, processes, devices, (2, 2), environment={"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"})
    for program, processes, devices in (
        ("transformer_engine_moe", 1, 4),
        ("transformer_engine_moe", 2, 2),
        ("transformer_engine_flax", 1, 4),
    )
]
_NEEDS_FLAX = pytest.mark.skipif(
    importlib.util.find_spec("flax") is None, reason="deploy/setup has Flax for Python 3.12 alone"
)
_CASES = [
    pytest.param(
        setup,
        check,
        id=f"{setup}-{check}",
        marks=_NEEDS_FLAX if setup.program == "transformer_engine_flax" else (),
    )
    for setup in _SETUPS
    for check in checks_of(setup.program)
]


@pytest.mark.parametrize(("setup", "check"), _CASES)
def test_check(setup: Setup, check: str):
    report_of(setup).expect(check)
