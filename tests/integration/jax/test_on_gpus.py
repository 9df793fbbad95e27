"""Goal: a JAX program whose platform is CUDA runs on the GPUs that its processes have, and says nothing for it: which rank sits
where, XLA's handlers and the backend follow from its devices. What cannot be told from them is an error that says what to give.

JAX and the driver are fakes (tests/fakes), epd, its workers and the package are not.
"""

import os
import pathlib
import subprocess
from collections.abc import Iterator

import pytest
from fake_gpus import FakeGpus
from harness import HERE, Daemon, clean_environment, python, run_together, short_folder

_SCRIPT = str(HERE / "scripts" / "on_gpus.py")
_SIZES = "num_experts=4, max_tokens_per_rank=8, recv_capacity_per_rank=64, hidden_dim=8, job='j'"


@pytest.fixture(name="gpus")
def _gpus(tmp_path: pathlib.Path) -> Iterator[FakeGpus]:
    """Two. No call of any process may break a rule of the driver's."""
    gpus = FakeGpus(tmp_path / "told", devices=2)
    yield gpus
    assert gpus.violations() == ""


@pytest.fixture(name="daemon")
def _daemon(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    for name, value in gpus.driver.items():
        monkeypatch.setenv(name, value)
    with short_folder() as folder:
        daemon = Daemon(folder)
        daemon.start("--cuda_staging_bytes=256MiB")
        try:
            yield daemon
        finally:
            daemon.stop()


def _environment(gpus: FakeGpus, daemon: Daemon | None, **extra: str) -> dict[str, str]:
    mine = gpus.jax(f"{HERE}{os.pathsep}{HERE.parent}")
    socket = "/none" if daemon is None else daemon.socket
    return clean_environment(**mine, EPD_SOCKET=socket, EPD_FORM_TIMEOUT="60", **extra)


def _ended(gpus: FakeGpus, daemon: Daemon, *processes: str) -> list[str]:
    """What each process printed, by the arguments of on_gpus.py."""
    environment = _environment(gpus, daemon)
    ended = run_together(
        [(python(_SCRIPT, *arguments.split()), environment) for arguments in processes], daemon
    )
    return [out for out, _ in ended]


@pytest.mark.parametrize(
    ("processes", "devices"),
    [
        (("default 2 0", "default 2 1"), (["cuda:0"], ["cuda:0"])),
        (("default 2 0", "default_device 2 1"), (["cuda:0"], ["cuda:1"])),
        (("mesh 3 0 2", "default_device 3 1"), (["cuda:1", "cuda:0"], ["cuda:1"])),
        (("devices 3 0 2", "default_device 3 1"), (["cuda:1", "cuda:0"], ["cuda:1"])),
        (("along 2 0 1",), (["cuda:1", "cuda:0"],)),
        (("exported 2 0", "default 2 1"), (["cuda:0"], ["cuda:0"])),
    ],
    ids=lambda value: "+".join(value).replace(" ", "_") if isinstance(value[0], str) else "",
)
def test_ranks_sit_on_their_processes_gpus(
    gpus: FakeGpus, daemon: Daemon, processes: tuple[str, ...], devices: tuple[list[str], ...]
) -> None:
    for said, on in zip(_ended(gpus, daemon, *processes), devices, strict=True):
        ranks = said.strip()
        assert '"platform": "gpu"' in ranks
        assert f'"calls": {15 * len(on)},' in ranks, ranks
        assert str(on).replace("'", '"') in ranks, ranks
    assert gpus.launched()


def _said(environment: dict[str, str], program: str) -> str:
    """The ValueError, TypeError or EpError that the program ends with, or what it prints."""
    lines = "\n    ".join(program.strip().splitlines())
    code = f"import jax, numpy as np, epd.jax as ep\ntry:\n    {lines}\nexcept (ValueError, TypeError, ep.EpError) as error:\n    print(error)"
    run = subprocess.run(
        python("-c", code),
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize(
    ("join", "said"),
    [
        (
            "(0, 1)",
            [
                "ranks [0, 1] of this process need a GPU each",
                "none is active",
                "devices=[...]",
                "[cuda:0, cuda:1]",
            ],
        ),
        (
            "(0, 1), devices=jax.devices()[:1]",
            ["devices is [cuda:0] for ranks [0, 1]", "one device for each rank"],
        ),
        ("(0, 1), devices=jax.devices()[:1] * 2", ["[cuda:0, cuda:0]", "a GPU of its own"]),
        ("0, devices=jax.devices()", ["[cuda:0, cuda:1] for ranks [0]"]),
        ("0, devices='cuda:0'", ["devices must be a jax.Device", "'cuda:0'"]),
        ("0, devices=[0]", ["devices must be a jax.Device", "[0]"]),
    ],
)
def test_what_the_devices_do_not_tell_is_asked_for(
    gpus: FakeGpus, join: str, said: list[str]
) -> None:
    text = _said(_environment(gpus, None), f"ep.Group.join('g', 2, {join}, {_SIZES})")
    for words in ["Group.join", *said]:
        assert words in text, text


_IN_ANOTHER_ORDER = f"""
group = ep.Group.join('g', 2, (0, 1), devices=jax.devices(), resource=ep.MeshResource(ep_resource='ep'), {_SIZES})
mesh = jax.sharding.Mesh(np.array(jax.devices()[::-1]), ('ep',))
with jax.set_mesh(mesh):
    jax.jit(lambda idx: group.prepare(ep.EpLayerConfig(top_k=2), idx)).lower(np.zeros((8, 2), np.int32))
"""


def test_a_mesh_in_another_order_than_the_ranks_is_named(gpus: FakeGpus, daemon: Daemon) -> None:
    text = _said(_environment(gpus, daemon), _IN_ANOTHER_ORDER)
    assert "the active mesh has the devices [cuda:1, cuda:0]" in text, text
    assert "ranks [0, 1] of this process joined on [cuda:0, cuda:1]" in text, text


_ELSEWHERE = f"""
group = ep.Group.join('g', 1, 0, {_SIZES})
idx = jax.device_put(np.zeros((8, 2), np.int32), jax.devices()[1])
try:
    jax.block_until_ready(jax.jit(lambda idx: group.prepare(ep.EpLayerConfig(top_k=2), idx)[0])(idx))
except Exception as error:
    print(error)
"""


def test_a_program_on_another_gpu_than_its_ranks_is_told_where_they_sit(
    gpus: FakeGpus, daemon: Daemon
) -> None:
    text = _said(_environment(gpus, daemon), _ELSEWHERE)
    assert "0 ranks of this process sit on cuda:1" in text, text
    assert "domain 0 position 0 on cuda:0" in text and "devices=" in text, text


def test_a_group_on_gpus_says_why_they_cannot_be_used_instead_of_using_cpus(gpus: FakeGpus) -> None:
    join = f"ep.Group.join('g', 1, 0, {_SIZES})"
    text = _said(_environment(gpus, None) | {"EPD_FAKE_CUDA": "missing=all"}, join)
    assert "[epd:FAILED_PRECONDITION]" in text and "cannot use GPUs" in text, text
    text = _said(_environment(gpus, None, EPD_COMMAND_BUFFERS="maybe"), join)
    assert "EPD_COMMAND_BUFFERS='maybe'" in text, text


def test_enable_cuda_is_a_check(gpus: FakeGpus) -> None:
    check = "{}ep.enable_cuda()\nep.enable_cuda()\nprint('fine')"
    environment = _environment(gpus, None)
    assert _said(environment, check.format("")) == "fine\n"
    assert _said(environment, check.format("jax.devices()\n")) == "fine\n"
    on_cpu = {"JAX_PLATFORMS": "cpu"}
    assert _said(environment | on_cpu, check.format("")) == "fine\n"  # JAX may still find some.
    text = _said(environment | on_cpu, check.format("jax.devices()\n"))
    assert "JAX has no GPU in this process" in text and "JAX_PLATFORMS" in text, text
