"""Goal: the example trains, its check passes, and a row corrupted in transit makes the check fail."""

import subprocess

import pytest
from harness import ROOT, clean_environment, python, running_daemon

_EXAMPLES = ROOT / "client" / "jax" / "example"


def _run(
    *arguments: str, example: str = "train_moe", **environment: str
) -> subprocess.CompletedProcess:
    with running_daemon() as daemon:
        return subprocess.run(
            python(
                str(_EXAMPLES / f"{example}.py"), "--timeout=200", *arguments
            ),  # It ends its own processes.
            env=clean_environment(EPD_SOCKET=daemon.socket, **environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )


@pytest.mark.parametrize("mesh", ["2x2", "1x2"])
def test_training_halves_the_loss_and_the_check_passes(mesh: str, tmp_path):
    plot = tmp_path / "plot.png"
    ended = _run("--check", "--mesh", mesh, "--steps", "40", "--plot", str(plot))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "check float32: passed" in ended.stdout and "check bfloat16: passed" in ended.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_one_corrupted_row_fails_the_check(tmp_path):
    ended = _run(
        "--check",
        "--corrupt",
        "--mesh",
        "1x2",
        "--steps",
        "0",
        "--plot",
        str(tmp_path / "none.png"),
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "check float32: FAILED" in ended.stdout and "check bfloat16: FAILED" in ended.stdout


def test_quantised_rows_and_their_scales_arrive_under_one_plan():
    ended = _run("--ranks", "3", example="fp8_dispatch")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "fp8_dispatch: passed" in ended.stdout and "equal to NumPy" in ended.stdout


@pytest.mark.parametrize(("attention", "experts"), [(2, 3), (1, 1)])
def test_attention_ranks_and_expert_ranks_train_as_a_dense_layer_does(attention: int, experts: int):
    ended = _run(
        f"--attention={attention}", f"--experts={experts}", example="attention_and_experts"
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("as the dense layer, by at most") == attention + experts
    assert "attention_and_experts: passed" in ended.stdout


def test_processes_join_two_groups_by_rank_one_of_them_without_tokens():
    ended = _run("--ranks", "3", example="joined_groups")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("; as the dense layer, by at most") == 3
    assert "rank 2: 0 tokens" in ended.stdout and "joined_groups: passed" in ended.stdout


def test_roles_come_from_the_persistent_compilation_cache(tmp_path):
    cached = []
    for _ in range(2):
        ended = _run(
            "--attention=1",
            "--experts=1",
            example="attention_and_experts",
            JAX_COMPILATION_CACHE_DIR=str(tmp_path),
            JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
            JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="0",
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        cached.append({path.name for path in tmp_path.glob("jit_role-*-cache")})
    assert cached[0] and cached[1] == cached[0], cached
