"""Goal: python -m epd.jax.run runs a program of others as it is, with what its flags offer, and says so where they lack."""

import subprocess

import pytest
from harness import clean_environment, python, running_daemon

_LAX = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
assert sys.argv[1:] == ["--steps", "2"] and __name__ == "__main__"
def layer(rows, offsets, sizes):
    return jax.lax.ragged_all_to_all(rows, jnp.zeros_like(rows), offsets, sizes, offsets[::-1] * 0, sizes, axis_name="x")
step = jax.jit(jax.shard_map(layer, mesh=Mesh(jax.devices(), "x"), in_specs=P("x"), out_specs=P("x")))
print("rows", step(jnp.arange(1.0, 3), jnp.zeros(1, jnp.int32), jnp.ones(1, jnp.int32)))
"""
_TE = """
import jax
from transformer_engine.jax.ep import EpLayerConfig, ep_bootstrap, ep_dispatch, ep_finalize, ep_prepare
from transformer_engine.jax.sharding import MeshResource, global_shard_guard
import epd.jax
assert ep_bootstrap is epd.jax.ep_bootstrap and MeshResource is epd.jax.MeshResource
try:
    from transformer_engine.jax.quantize import Quantizer
except ImportError as error:
    print("rows refused:", error)
"""


def _run(tmp_path, program: str, *words: str, **environment: str) -> subprocess.CompletedProcess:
    (tmp_path / "program.py").write_text(program)
    return subprocess.run(
        python("-m", "epd.jax.run", *words),
        cwd=tmp_path,
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("words", [["program.py"], ["-m", "program"]])
def test_a_program_that_calls_jax_lax(tmp_path, words: list[str]):
    with running_daemon() as daemon:
        given = ["--ragged-all-to-all", *words, "--steps", "2"]
        ended = _run(tmp_path, _LAX, *given, EPD_SOCKET=daemon.socket)
    assert ended.returncode == 0 and "rows [1. 0.]" in ended.stdout, ended


def test_a_program_that_imports_transformer_engine(tmp_path):
    ended = _run(tmp_path, _TE, "--ragged-all-to-all", "--as-transformer-engine", "program.py")
    assert ended.returncode == 0 and "offers nothing called Quantizer" in ended.stdout, ended


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--ragged-all-to-all or --as-transformer-engine"),
        (["program.py"], "--ragged-all-to-all or --as-transformer-engine"),
        (["--ragged-all-to-all"], "name the program"),
        (["--ragged", "program.py"], "--ragged is no option"),
    ],
)
def test_what_is_missing_is_named(tmp_path, words: list[str], said: str):
    ended = _run(tmp_path, "", *words)
    assert ended.returncode == 2 and said in ended.stderr, ended


def test_the_real_package_is_not_replaced(tmp_path):
    (tmp_path / "transformer_engine").mkdir()
    (tmp_path / "transformer_engine" / "__init__.py").write_text("")
    words = ["--as-transformer-engine", "-m", "program"]
    ended = _run(tmp_path, "", *words, PYTHONPATH=str(tmp_path))
    assert ended.returncode == 1 and "transformer_engine is installed here" in ended.stderr, ended


@pytest.mark.parametrize("program", ["epd.jax.run", "epd.jax.profile"])
def test_output_that_cannot_be_written_is_said_and_not_zero(program: str):
    for redirect, why in (
        (">/dev/full", "No space left on device"),
        (">&-", "Bad file descriptor"),
    ):
        ended = subprocess.run(
            ["sh", "-c", f'exec "$@" {redirect}', "sh", *python("-m", program, "--help")],
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 1, ended
        assert ended.stderr == f"{program}: cannot write to standard output: {why}\n", ended
