"""Goal: a rank of PyTorch and a rank of JAX exchange in one group, to the bit as two ranks of JAX do."""

import functools
import itertools
import subprocess
import tempfile

import harness
import numpy as np
import pytest
from torch_ranks import HERE, PYTHON, Ranks, daemon_and_ranks, wait_all


def _start(fleet: Ranks, framework: str, role: str, dtype: str, folder: str) -> subprocess.Popen:
    command = harness.python() if framework == "jax" else [PYTHON]
    path = str(HERE) if framework == "jax" else fleet.path
    with fleet.log(["tokens", "experts"].index(role)).open("ab") as log:
        return subprocess.Popen(
            [*command, str(HERE / "scripts" / f"{framework}_role.py"), role, dtype, folder],
            env=harness.clean_environment(**harness._DEADLINES)
            | {"EPD_SOCKET": fleet.socket, "EPD_JOB": "mixed", "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


@functools.cache
def _run(tokens: str, experts: str, dtype: str) -> dict[str, np.ndarray]:
    """What the two ranks found, whose frameworks are given."""
    with daemon_and_ranks() as (daemon, fleet), tempfile.TemporaryDirectory() as folder:
        roles = {"tokens": tokens, "experts": experts}
        ranks = [_start(fleet, framework, role, dtype, folder) for role, framework in roles.items()]
        assert wait_all(ranks, 120) == [0, 0], f"{fleet.logs()}\n{daemon.log_tail()}"
        return {
            f"{role}/{name}": array
            for role in roles
            for name, array in np.load(f"{folder}/{role}.npz").items()
        }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("tokens", "experts"), [p for p in itertools.product(("jax", "torch"), repeat=2)][1:]
)
def test_the_bits_are_those_of_two_ranks_of_jax(tokens: str, experts: str, dtype: str):
    want, got = _run("jax", "jax", dtype), _run(tokens, experts, dtype)
    assert want["tokens/out"].any() and want["experts/grad0"].any() and want["tokens/grad1"].any()
    assert want.keys() == got.keys()
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)
