"""Cases of the tests of whole layers, each of which runs some programs and asks for every check of theirs."""

import importlib.util

import pytest
from harness import Setup, checks_of, with_64_bits

# Of programs and processes: others run the layer without them.
_WITH_64_BITS = {("moe_layers", 1), ("transformer_engine_moe", 1)}


def layer_cases(*programs: tuple[str, int, int], needs_flax: str) -> list:
    """A pytest parameter (setup, check) per check of each (program, processes, devices) of layers; `needs_flax` is one of the programs."""
    skip = pytest.mark.skipif(
        importlib.util.find_spec("flax") is None,
        reason="deploy/setup has Flax for Python 3.12 alone",
    )
    setups = [Setup(*program, (2, 2)) for program in programs]
    setups = [
        with_64_bits(setup) if (setup.program, setup.processes) in _WITH_64_BITS else setup
        for setup in setups
    ]
    return [
        pytest.param(
            setup, check, id=f"{setup}-{check}", marks=skip if setup.program == needs_flax else ()
        )
        for setup in setups
        for check in checks_of(setup.program)
    ]
