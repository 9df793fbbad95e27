"""Goal: epd.jax.layers equal a dense layer in values and gradients, name bad arguments, and communicate no more than they say."""

import subprocess

import false_alarms
import pytest
from harness import (
    HERE,
    ROOT,
    Setup,
    clean_environment,
    python,
    report_of,
    running_daemon,
)
from layer_cases import layer_cases

_CASES = layer_cases(
    ("moe_layers", 1, 4),
    ("moe_meshes", 1, 4),
    ("moe_layers_multiprocess", 4, 1),
    ("moe_modules", 1, 4),
    needs_flax="moe_modules",
)
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
        false_alarms.compared(daemon.socket).expect("deepseek_v3_moe_check")


def test_importing_the_layers_imports_no_flax():
    code = "import epd.jax.layers, sys; sys.exit('flax' in sys.modules)"
    ended = subprocess.run(python("-c", code), env=clean_environment(), timeout=60, check=False)
    assert ended.returncode == 0
