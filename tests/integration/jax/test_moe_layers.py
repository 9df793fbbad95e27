"""Goal: epd.jax.layers equal a dense layer in values and gradients, name bad arguments, and communicate no more than they say."""

import importlib.util
import subprocess

import pytest
from harness import (
    HERE,
    ROOT,
    Setup,
    checks_of,
    clean_environment,
    python,
    report_of,
    running_daemon,
)

# Most of the time goes into compiling.
_SETUPS = [
    Setup(program, processes, devices, (2, 2), environment={"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"})
    for program, processes, devices in (
        ("moe_layers", 1, 4),
        ("moe_meshes", 1, 4),
        ("moe_layers_multiprocess", 4, 1),
        ("moe_modules", 1, 4),
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
        marks=_NEEDS_FLAX if setup.program == "moe_modules" else (),
    )
    for setup in _SETUPS
    for check in checks_of(setup.program)
]
_EXAMPLES = ROOT / "client" / "jax" / "example"
_CHECK = HERE / "examples" / "deepseek_v3_moe_check.py"


@pytest.mark.parametrize(("setup", "check"), _CASES)
def test_check(setup: Setup, check: str):
    report_of(setup).expect(check)


def test_port_of_a_public_model_equals_its_dense_block():
    with running_daemon() as daemon:
        ended = subprocess.run(
            python(str(_CHECK)),
            env=clean_environment(EPD_SOCKET=daemon.socket, PYTHONPATH=str(_EXAMPLES)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "deepseek_v3_moe: passed" in ended.stdout


def test_importing_the_layers_imports_no_flax():
    code = "import epd.jax.layers, sys; sys.exit('flax' in sys.modules)"
    ended = subprocess.run(python("-c", code), env=clean_environment(), timeout=60, check=False)
    assert ended.returncode == 0
