"""Goal: transformer_engine.jax.moe as epd offers it equals a dense layer, and refuses by name what it does not have."""

import pytest
from harness import Setup, report_of
from layer_cases import layer_cases

_CASES = layer_cases(
    ("transformer_engine_moe", 1, 4),
    ("transformer_engine_moe", 2, 2),
    ("transformer_engine_flax", 1, 4),
    needs_flax="transformer_engine_flax",
)


@pytest.mark.parametrize(("setup", "check"), _CASES)
def test_check(setup: Setup, check: str):
    report_of(setup).expect(check)
