"""Goal: what the README of epd.jax shows runs as it stands, in as many processes as it says; and no public docstring sends its
reader to a private module."""

import contextlib
import importlib
import inspect
import pathlib
import pkgutil
import re
import subprocess
from dataclasses import dataclass

import epd.jax
import pytest
from harness import ROOT, clean_environment, python, running_daemon

_README = ROOT / "client" / "jax" / "README.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class _Run:
    """A snippet, by a word of it that no other one has; the processes and their devices, and what is run behind it."""

    word: str
    processes: int = 1
    devices: int = 4
    behind: str = ""


_A_WORKER_DIES = """
import os, signal, time
import jax.numpy as jnp
import worker_processes
from epd.jax import EpLayerConfig, Group
os.environ["EPD_DIRECT"] = "off"  # Each call asks the worker, and so finds that it is dead.
group = Group.join("loop", ranks=1, rank=0, num_experts=2, max_tokens_per_rank=4, recv_capacity_per_rank=8, hidden_dim=8)
prepare = jax.jit(lambda idx: group.prepare(EpLayerConfig(top_k=1), idx)[1])
idx = jnp.zeros((3, 1), jnp.int32)
assert repeated(prepare, idx) == 3
epd = int(os.environ["EPD_TEST_EPD_PID"])
def kill_the_worker():
    os.kill(worker_processes.of(epd)[0], signal.SIGKILL)
kill_the_worker()
assert repeated(prepare, idx) == 3
epoch = group.epoch
kill_the_worker()
deadline = time.monotonic() + 60
while group.epoch == epoch:  # Seen without a call.
    assert time.monotonic() < deadline
    time.sleep(0.001)
group.wait_ready(timeout=60)
assert group.state == "ready"
assert repeated(prepare, idx) == 3
group.finalize()
try:
    repeated(prepare, idx)
except EpError as error:
    assert error.retry == "connect again", error
    group.connect()
assert repeated(prepare, idx) == 3
"""

_CALLS_THE_EXPORTED = """
sharding = NamedSharding(mesh, P("ep"))
idx = jax.device_put(jnp.tile(jnp.array([[0, 3]], jnp.int32), (16, 1)), sharding)
given = jax.device_put(jnp.ones((16, 8)), sharding), jax.device_put(jnp.full((16, 2), 0.5), sharding)
with group, jax.set_mesh(mesh):
    out = jax.jit(exported.call)(idx, *given)
assert (out == 1).all(), out
"""

_RUNS = (
    _Run(
        "ep_bootstrap(world_size", behind="assert float(abs(out[0, 0] - 2 * jnp.tanh(1.0))) < 1e-6"
    ),
    _Run(
        "start=True",
        behind="assert all(float(abs(o[0, 0] - 2 * jnp.tanh(1.0))) < 1e-6 for o in out)",
    ),
    _Run("wide.dispatch", behind="assert (out == 2).all() and stats.expert_counts[0, 0] == 64"),
    _Run("Group.join(", processes=2, devices=1),
    _Run("RoleGroup(", devices=3),
    _Run("import ragged_all_to_all"),
    _Run(
        "as_transformer_engine()",
        behind="assert slots_needed.ravel().tolist() == [256, 0, 0, 0] and abs(loss - 1e-2) < 1e-6 and abs(out - out[0, 0, 0]).max() == 0",
    ),
    _Run("def repeated", devices=1, behind=_A_WORKER_DIES),
    _Run("jax.export.export(", behind=_CALLS_THE_EXPORTED),
)


def _snippets() -> list[str]:
    return _BLOCK.findall(_README.read_text())


def test_every_snippet_is_run():
    found = [[run.word for run in _RUNS if run.word in text] for text in _snippets()]
    assert sorted(found) == sorted([run.word] for run in _RUNS)


@pytest.mark.parametrize("run", _RUNS, ids=lambda run: run.word.strip("("))
def test_a_snippet_runs_as_it_stands(run: _Run):
    (text,) = [text for text in _snippets() if run.word in text]
    with running_daemon() as daemon, contextlib.ExitStack() as started:
        processes = [
            started.enter_context(
                subprocess.Popen(
                    python("-c", text + run.behind),
                    env=clean_environment(
                        EPD_SOCKET=daemon.socket,
                        EPD_TEST_EPD_PID=str(daemon.process.pid),
                        XLA_FLAGS=f"--xla_force_host_platform_device_count={run.devices}",
                        EPD_JOB="snippet",
                        RANK=str(rank),
                    ),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            for rank in range(run.processes)
        ]
        try:
            printed = [process.communicate(timeout=200)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert [process.returncode for process in processes] == [0] * run.processes, printed


def _public_docstrings() -> dict[str, str]:
    """Of public modules, and of their public classes, methods and functions."""
    folder = pathlib.Path(epd.jax.__file__).parent
    found = {}
    for module_file in pkgutil.walk_packages([str(folder)], "epd.jax."):
        if "._" in module_file.name or module_file.name.endswith("libepd_jax"):
            continue
        if module_file.name.endswith((".linen", ".nnx")) and not importlib.util.find_spec("flax"):
            continue
        module = importlib.import_module(module_file.name)
        found[module_file.name] = module.__doc__
        for name, member in vars(module).items():
            if name.startswith("_") or getattr(member, "__module__", "") != module.__name__:
                continue
            found[f"{module_file.name}.{name}"] = member.__doc__
            methods = inspect.getmembers(member) if inspect.isclass(member) else []
            for method, function in methods:
                if method == "__init__" or not method.startswith("_"):
                    found[f"{module_file.name}.{name}.{method}"] = function.__doc__
    found["epd.jax"] = epd.jax.__doc__
    return {name: text for name, text in found.items() if text}


def test_no_public_docstring_names_a_private_module():
    private = [path.stem for path in pathlib.Path(epd.__file__).parent.rglob("_[a-z]*.py")]
    pattern = re.compile(rf"(?<!\w)({'|'.join(private)})(?!\w)")
    docstrings = _public_docstrings()
    assert "epd.jax.group.Group.join" in docstrings and "_environment" in private
    assert not {
        name: pattern.findall(text) for name, text in docstrings.items() if pattern.search(text)
    }
