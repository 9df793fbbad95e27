"""Goal: a machine without a daemon traces, lowers, exports and compiles; every process makes the same bytes."""

import json
import pathlib
import subprocess

import pytest
from harness import HERE, clean_environment, python

_SCRIPT = str(HERE / "scripts" / "lowering.py")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> list[dict]:
    """What two processes made, one after another, with other hash seeds and no daemon to be found or started."""
    folder = tmp_path_factory.mktemp("lowering")
    return [_run(folder, seed) for seed in ("1", "2")]


def _run(folder: pathlib.Path, seed: str) -> dict:
    environment = clean_environment(
        EPD_SOCKET=str(folder / "none.sock"),
        EPD_AUTOSTART="0",
        PYTHONHASHSEED=seed,
        XLA_FLAGS="--xla_force_host_platform_device_count=8",
    )
    ended = subprocess.run(
        python(_SCRIPT, str(folder / "cache")),
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert not (folder / "none.sock").exists()
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "what",
    ["lowered, auto", "lowered, explicit", "slices, auto", "slices, explicit", "exported"],
)
def test_without_a_daemon_every_process_makes_the_same_bytes(made, what: str):
    assert made[0][what] == made[1][what], made


def test_a_second_process_finds_the_program_in_the_persistent_cache(made):
    assert (made[0]["hits"], made[0]["misses"]) == (0, 1), made
    assert (made[1]["hits"], made[1]["misses"]) == (1, 0), made
