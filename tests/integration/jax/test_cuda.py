"""Goal: a process without a usable CUDA driver hears why, when it asks for GPUs, and is otherwise as it was."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from epd import _environment

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


def _asked(tmp_path: Path, program: str, variables: dict[str, str]) -> str:
    """What it prints in a process without a driver."""
    (tmp_path / "libcuda.so.1").write_text("no library\n")
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "JAX_PLATFORMS": "cpu"} | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


_LOOPS = "--xla_gpu_enable_command_buffer=+WHILE"


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"EPD_COMMAND_BUFFERS": "maybe"}, "give on or off"),
        ({"XLA_FLAGS": _LOOPS}, "or set EPD_COMMAND_BUFFERS=off"),
        ({"XLA_FLAGS": _LOOPS, "EPD_COMMAND_BUFFERS": "off"}, "libcuda.so.1"),
    ],
)
def test_loops_in_command_buffers_are_named_unless_operations_are_kept_out(
    tmp_path: Path, variables: dict[str, str], said: str
) -> None:
    assert said in _asked(tmp_path, _ASKS, variables)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (["+CONDITIONAL,while"], "CONDITIONAL and WHILE"),
        (["+WHILE", "+COLLECTIVES"], "WHILE"),
        (["WHILE", "+FUSION"], "WHILE"),
        (["FUSION", "+WHILE", "-FUSION"], "WHILE"),
        (["'+while, +conditional'"], "CONDITIONAL and WHILE"),
        (['"FUSION,WHILE"'], "WHILE"),
        (["WHILE", "FUSION"], ""),
        (["+WHILE", "-WHILE"], ""),
        (["+WHILE,+CONDITIONAL", "-CONDITIONAL,-while"], ""),
        (["WHILE", ""], ""),
        (["-WHILE"], ""),
        (["FUSION,CUBLAS"], ""),
    ],
)
@pytest.mark.parametrize("in_a_file", [False, True])
def test_every_flag_counts_as_it_does_for_xla(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    values: list[str],
    named: str,
    in_a_file: bool,
) -> None:
    flags = " ".join(f"--xla_gpu_enable_command_buffer={value}" for value in values)
    if in_a_file:
        (tmp_path / "flags").write_text(flags.replace(" --", "\n--"))
        flags = str(tmp_path / "flags")
    monkeypatch.setenv("XLA_FLAGS", flags)
    if named:
        with pytest.raises(ValueError, match=f"XLA_FLAGS puts {named} into command buffers"):
            _environment.command_buffers()
    else:
        assert _environment.command_buffers()


def test_a_file_of_flags_that_is_not_there_is_left_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "/none/flags")
    assert _environment.command_buffers()


_REGISTERS = """
from epd.jax import _ffi

class Library:
    epd_jax_cuda_initialize = None
    def epd_jax_cuda_problem(self, text, text_bytes):
        return 0

_ffi._library = Library()
_ffi._register = lambda library, platform, prefix, **more: print(platform, prefix)
_ffi.enable_cuda()
"""


@pytest.mark.parametrize(
    ("said", "registered"),
    [("on", "CUDA epd_jax_cuda_\n"), ("off", "CUDA epd_jax_cuda_called_\n")],
)
def test_operations_that_are_kept_out_have_the_handlers_that_xla_captures_nowhere(
    tmp_path: Path, said: str, registered: str
) -> None:
    assert _asked(tmp_path, _REGISTERS, {"EPD_COMMAND_BUFFERS": said}) == registered


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
