"""Cases of the tests of whole layers, each of which runs some programs and asks for every check of theirs."""

import importlib.util

import pytest
from harness import Setup, checks_of


def layer_cases(*programs: tuple[str, int, int], needs_flax: str) -> list:
    """A pytest parameter (setup, check) per check of each (program, processes, devices) of layers; `needs_flax` is one of the programs."""
    skip = pytest.mark.skipif(
        importlib.util.find_spec("flax") is None,
        reason="deploy/setup has Flax for Python 3.12 alone",
    )
    setups = [Setup(*program, (2, 2)) for program in programs]
    return [
        pytest.param(
            setup, check, id=f"{setup}-{check}", marks=skip if setup.program == needs_flax else ()
        )
        for setup in setups
        for check in checks_of(setup.program)
    ]
