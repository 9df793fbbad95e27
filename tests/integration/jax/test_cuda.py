"""Goal: a process without a usable CUDA driver hears why, when it asks for GPUs, and is otherwise as it was."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import jax, epd.jax
epd.jax.check()
epd.jax.check("default")
try:
    epd.jax.enable_cuda()
except epd.jax.EpError as error:
    print(str(error))
epd.jax.check()
print(jax.jit(lambda x: x + 1)(1))
"""


def test_no_driver_is_a_reason_and_nothing_else_changes(tmp_path: Path) -> None:
    # Before any that the machine may have.
    (tmp_path / "libcuda.so.1").write_text("no library\n")
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    reason, result = run.stdout.strip().splitlines()
    assert reason.startswith("[epd:FAILED_PRECONDITION]"), reason
    assert "libcuda.so.1" in reason
    assert result == "2"


_ASKS = """
import epd.jax
try:
    epd.jax.enable_cuda()
except (ValueError, epd.jax.EpError) as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"EPD_COMMAND_BUFFERS": "maybe"}, "give on or off"),
        ({"XLA_FLAGS": "--xla_gpu_enable_command_buffer=+CONDITIONAL,while"}, "or set EPD_COMMAND"),
        (
            {
                "XLA_FLAGS": "--xla_gpu_enable_command_buffer=WHILE --xla_gpu_enable_command_buffer=FUSION"
            },
            "libcuda.so.1",
        ),
        (
            {
                "XLA_FLAGS": "--xla_gpu_enable_command_buffer=WHILE",
                "EPD_COMMAND_BUFFERS": "off",
            },
            "libcuda.so.1",
        ),
    ],
)
def test_loops_in_command_buffers_are_named_unless_operations_are_kept_out(
    tmp_path: Path, variables: dict[str, str], said: str
) -> None:
    (tmp_path / "libcuda.so.1").write_text("no library\n")
    run = subprocess.run(
        [sys.executable, "-c", _ASKS],
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "JAX_PLATFORMS": "cpu"} | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert said in run.stdout


_JOINS = """
import numpy as np, jax
from epd.jax import Group, MeshResource
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("ep",))
try:
    Group("g", mesh=mesh, resource=MeshResource(ep_resource="ep"), num_experts=2, max_tokens_per_rank=8,
          recv_capacity_per_rank=64, hidden_dim=16, job="none")
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["EPD_BACKEND", "EPD_EXECUTOR"])
def test_an_unknown_backend_or_executor_is_named_before_anybody_is_asked(name: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _JOINS],
        env=os.environ | {name: "tpu", "JAX_PLATFORMS": "cpu", "EPD_SOCKET": "/none"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert f"{name}='tpu' is unknown; give" in run.stdout
