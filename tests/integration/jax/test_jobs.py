"""Goal: jobs that run at once never exchange rows, whatever their names have in common, and processes of one job meet; a job is of
one initialisation of jax.distributed; a group's object is one in its process."""

import copy
import pickle
import subprocess
import time

import harness
import jax
import pytest
from epd.jax import EpError, Group, _job
from harness import clean_environment, python, running_daemon
from jax._src import distributed

_SCRIPTS = harness.HERE / "scripts"


def _started(script: str, *arguments: object, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        python(str(_SCRIPTS / f"{script}.py"), *map(str, arguments)),
        env=clean_environment(**environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _outputs(processes: list[subprocess.Popen]) -> list[str]:
    try:
        ended = [process.communicate(timeout=150) for process in processes]
    finally:
        for process in processes:
            process.kill()
    statuses = [process.returncode for process in processes]
    assert statuses == [0] * len(processes), [errors[-2000:] for _, errors in ended]
    return [out for out, _ in ended]


_STEPS = {
    "slurm": (
        {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"},
        {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "1"},
    ),
    "torchrun": (
        {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
        {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "h", "MASTER_PORT": "2"},
    ),
}


@pytest.mark.parametrize("launcher", _STEPS)
def test_two_launches_of_one_allocation_are_two_jobs(launcher: str):
    one, other = _STEPS[launcher]
    with running_daemon() as daemon:
        processes = []
        for rank, value, step in ((0, 1, one), (1, 100, other), (0, 100, other), (1, 1, one)):
            processes.append(
                _started(
                    "job_rank", rank, value, EPD_SOCKET=daemon.socket, EPD_FORM_TIMEOUT="90", **step
                )
            )
            time.sleep(1)  # In this order they would pair up crosswise under one name.
        assert _outputs(processes) == ["right\n"] * 4


@pytest.mark.parametrize("groups", ["finalized", "kept"])
@pytest.mark.parametrize("agrees", ["first_to_agree", "last_to_agree"])
def test_another_initialisation_is_another_job(groups: str, agrees: str):
    ports = [str(harness.free_port()) for _ in range(2)]
    with running_daemon() as daemon:
        environment = {"EPD_SOCKET": daemon.socket, "EPD_FORM_TIMEOUT": "60"}
        stays = _started("initialised_again", 0, "both", groups, agrees, *ports, **environment)
        goes = _started("initialised_again", 1, "first", groups, agrees, *ports, **environment)
        fine = _outputs([goes])
        comes = _started("initialised_again", 1, "second", groups, agrees, *ports, **environment)
        fine += _outputs([stays, comes])
        assert fine == ["initialised_again: fine\n"] * 3


class _Store:
    """What jax.distributed's client offers of its store."""

    def __init__(self, values: dict[str, str]):
        self._values = values

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        assert allow_overwrite or key not in self._values
        self._values[key] = value

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
        if key not in self._values:
            time.sleep(timeout_in_ms / 1000)
            raise RuntimeError(f"DEADLINE_EXCEEDED: {key} after {timeout_in_ms} ms")
        return self._values[key]


_WAITS_FOR_A_KEY = """
import os, signal, sys, threading, time
import jax
from epd.jax import _job
from jax._src import distributed

jax.distributed.initialize("127.0.0.1:" + sys.argv[1], 1, 0)
client, sent = distributed.global_state.client, []

def interrupt():
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
client.key_value_set("there", "value")
assert _job._awaited(client, "there", 60) == "value"
began = time.monotonic()
try:
    _job._awaited(client, "nobody sets it", 0.6)
except (jax.errors.JaxRuntimeError, ValueError, RuntimeError) as error:
    assert "DEADLINE_EXCEEDED" in str(error) and 0.5 < time.monotonic() - began < 30, error
threading.Timer(0.6, interrupt).start()
try:
    _job._awaited(client, "nobody sets it", 20)
except KeyboardInterrupt:
    print(time.monotonic() - sent[0])
"""


def test_ctrl_c_ends_a_wait_for_jaxs_store_within_a_second():
    command = python("-c", _WAITS_FOR_A_KEY, str(harness.free_port()))
    ended = subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0 and float(ended.stdout) < 1, (ended.stdout, ended.stderr)


def _seen_by_process_1(monkeypatch, path: str) -> dict[str, str]:
    """What a process 1 of this host that uses ``path`` says in the store."""
    values: dict[str, str] = {}
    jax.devices()  # Before the store is another one than JAX's.
    monkeypatch.setattr(distributed.global_state, "client", _Store(values))
    _job.check_one_daemon(path, [])
    values["epd/sees/1"] = values.pop("epd/sees/0")
    return values


def test_processes_of_one_host_name_that_do_not_see_one_daemon_are_told_so(tmp_path, monkeypatch):
    path = tmp_path / "run" / "epd.sock"
    path.parent.mkdir()
    path.touch()
    values = _seen_by_process_1(monkeypatch, str(path))
    # The same folder, also with a daemon that was started anew since.
    _job.check_one_daemon(str(path), [1])
    path.rename(path.with_name("old"))
    path.touch()
    _job.check_one_daemon(str(path), [1])
    # Another one at the same path, as another container has it.
    path.parent.rename(tmp_path / "other")
    path.parent.mkdir()
    path.touch()
    with pytest.raises(EpError, match="do not see the same daemon") as raised:
        _job.check_one_daemon(str(path), [1])
    assert raised.value.code == "FAILED_PRECONDITION" and "EPD_SOCKET" in str(raised.value)
    # A socket that is mounted by itself is the same one; so may be an epd that others look after; and other hosts have their own.
    (tmp_path / "other" / "old").rename(path)
    _job.check_one_daemon(str(path), [1])
    path.unlink()
    path.touch()
    _job.check_one_daemon("", [1])
    values["epd/sees/1"] = "elsewhere" + values["epd/sees/1"]
    _job.check_one_daemon(str(path), [1])


def test_a_copy_of_a_group_is_the_group_and_it_is_not_pickled():
    with running_daemon() as daemon:
        program = (
            "import copy, epd.jax as ep; g = ep.Group.join('g', 1, 0, num_experts=1, max_tokens_per_rank=1,"
            " recv_capacity_per_rank=1, hidden_dim=1); c = copy.deepcopy([g])[0]; assert c is g; c.finalize();"
            " assert g.state == 'left'"
        )
        environment = clean_environment(EPD_SOCKET=daemon.socket)
        subprocess.run(python("-c", program), env=environment, timeout=100, check=True)
    described = Group.join(
        "g",
        1,
        0,
        num_experts=1,
        max_tokens_per_rank=1,
        recv_capacity_per_rank=1,
        hidden_dim=1,
        connect=False,
    )
    _expect_unique(described)


def _expect_unique(held: object) -> None:
    assert copy.copy(held) is held and copy.deepcopy([held])[0] is held
    with pytest.raises(TypeError, match=f"{type(held).__name__}: .* cannot be pickled"):
        pickle.dumps(held)


_ROLES = """
import copy, pickle
import jax, jax.numpy as jnp
from jax.sharding import Mesh
from epd.jax import EpLayerConfig, RoleGroup, roles

attention, experts = (Mesh(jax.devices()[i : i + 1], (name,)) for i, name in enumerate(("attention", "experts")))
group = RoleGroup("copied", attention, experts, num_experts=2, max_tokens_per_rank=4, recv_capacity_per_rank=8, hidden_dim=8)
cfg = EpLayerConfig(top_k=1)

def attend(link, idx, tokens, weights):
    recv, _, handle, *_ = link.dispatch(cfg, idx, tokens, weights, 1, name="ffn")
    return link.combine(cfg, handle, recv, len(tokens), name="ffn")

def serve(link):
    recv, _, handle, *_ = link.dispatch(cfg, *link.nothing(cfg), 8, name="ffn")
    return link.combine(cfg, handle, recv, 1, name="ffn")

shapes = [jax.ShapeDtypeStruct((rows, 8), jnp.bfloat16) for rows in (2, 1)]
run = roles([(attention, attend), (experts, serve)], copy.deepcopy(group), shapes, name="copied")
arguments = jnp.zeros((2, 1), jnp.int32), jnp.ones((2, 8), jnp.bfloat16), jnp.ones((2, 1))
started = copy.deepcopy(run).start(arguments, ())
assert (copy.copy(started).result()[0] == 1).all()
for held in (group, run, started):
    assert copy.copy(held) is held and copy.deepcopy([held])[0] is held
    try:
        pickle.dumps(held)
        raise AssertionError(f"{held} was pickled")
    except TypeError as error:
        assert f"{type(held).__name__}: " in str(error) and "cannot be pickled" in str(error), error
copy.deepcopy(group).finalize()
assert not group._joined
"""


def test_copies_of_a_group_of_roles_and_of_what_runs_in_it_are_themselves():
    """A copy that left in the original's place, or ran a program of another handshake, would be a rank too many."""
    with running_daemon() as daemon:
        environment = clean_environment(
            EPD_SOCKET=daemon.socket,
            XLA_FLAGS="--xla_force_host_platform_device_count=2",
        )
        subprocess.run(python("-c", _ROLES), env=environment, timeout=100, check=True)
