"""Goal: each example does what its first lines say, and its results are those of plain NumPy or a dense layer; a row corrupted in
transit is found. No program of theirs is taken for another one.

Scripts in examples/ run an example and check what it gives, or show what epd promises as an example would.
"""

import re
import subprocess

import false_alarms
import pytest
from harness import HERE, ROOT, clean_environment, python, running_daemon

_EXAMPLES = ROOT / "client" / "jax" / "example"
_CHECKS = HERE / "examples"


def _run(
    *arguments: str, example: str = "train_moe_check", **environment: str
) -> subprocess.CompletedProcess:
    if example != "same_program":  # The only one of a single process; the others end theirs.
        arguments = ("--timeout=200", *arguments)
    script = _CHECKS / f"{example}.py"
    if not script.exists():
        script = _EXAMPLES / f"{example}.py"
    with running_daemon() as daemon:
        ended = subprocess.run(
            python(str(script), *arguments),
            env=clean_environment(
                EPD_SOCKET=daemon.socket, PYTHONPATH=str(_EXAMPLES), **environment
            ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        if ended.returncode == 0:
            false_alarms.compared(daemon.socket).expect(" ".join([script.stem, *arguments]))
        return ended


@pytest.mark.parametrize("mesh", ["2x2", "1x2"])
def test_training_halves_the_loss_and_the_check_passes(mesh: str, tmp_path):
    plot = tmp_path / "plot.png"
    ended = _run("--mesh", mesh, "--steps", "40", "--plot", str(plot))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "check float32: passed" in ended.stdout and "check bfloat16: passed" in ended.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_one_corrupted_row_fails_the_check(tmp_path):
    ended = _run(
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
    ended = _run("--ranks", "3", example="fp8_dispatch_check")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "fp8_dispatch_check: passed" in ended.stdout
    assert ended.stdout.count("equal to NumPy") == 3


@pytest.mark.parametrize(("attention", "experts"), [(2, 3), (1, 1)])
def test_attention_ranks_and_expert_ranks_train_as_a_dense_layer_does(attention: int, experts: int):
    ended = _run(
        f"--attention={attention}", f"--experts={experts}", example="attention_and_experts_check"
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("as the dense layer, by at most") == attention + experts
    assert "attention_and_experts_check: passed" in ended.stdout


def test_processes_join_two_groups_by_rank_one_of_them_without_tokens():
    ended = _run("--ranks", "3", example="joined_groups_check")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("as the dense layer, by at most") == 3
    assert "rank 2: 0 tokens" in ended.stdout and "joined_groups_check: passed" in ended.stdout


def test_a_job_goes_on_when_another_one_of_its_group_loses_a_rank():
    ended = _run(example="tenants")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("job a, rank ") == ended.stdout.count("all 40 steps right") == 2
    told = re.search("job b, rank 0: (.*)", ended.stdout)
    assert told and "UNAVAILABLE" in told[1] and "tenant=b" in told[1], ended.stdout
    assert "tenants: passed" in ended.stdout


def test_exchanges_in_opposite_order_pair_up():
    ended = _run(example="order_freedom")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("every row came from its own exchange") == 2
    first = set(re.findall("in the last one exchange ([01]) was ready first", ended.stdout))
    assert first == {"0", "1"}, ended.stdout
    assert "order_freedom: passed" in ended.stdout


def test_overflow_is_an_error_on_every_rank_or_counted():
    ended = _run("--ranks", "3", example="overflow")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("would receive 48 slots, its capacity is 24") == 3
    assert "dropped by source: [ 0  8 16]" in ended.stdout
    assert "overflow: passed" in ended.stdout


def test_a_rank_has_the_same_bits_whatever_process_it_is_in():
    ended = _run(example="process_shapes")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    seen = set(re.findall("rank ([0-3]) in process [0-3]: ([0-9a-f]{12})", ended.stdout))
    assert sorted(rank for rank, _ in seen) == list("0123"), ended.stdout
    assert ended.stdout.count("devices [") == 16 and "process_shapes: passed" in ended.stdout


def test_a_program_outlives_its_group_and_is_not_traced_for_other_devices():
    ended = _run(example="same_program")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "as another job: 0 traced, 0 lowered, 0 compiled" in ended.stdout
    assert "in another order: 0 traced, 0 lowered, 1 compiled" in ended.stdout


def test_roles_come_from_the_persistent_compilation_cache(tmp_path):
    cached = []
    for _ in range(2):
        ended = _run(
            "--attention=1",
            "--experts=1",
            example="attention_and_experts_check",
            JAX_COMPILATION_CACHE_DIR=str(tmp_path),
            JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
            JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="0",
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        cached.append({path.name for path in tmp_path.glob("jit_role-*-cache")})
    assert cached[0] and cached[1] == cached[0], cached


@pytest.mark.parametrize(
    "example", ["train_moe", "fp8_dispatch", "attention_and_experts", "joined_groups"]
)
def test_an_example_runs_as_a_user_runs_it(example: str, tmp_path):
    options = ["--steps=20", f"--plot={tmp_path / 'plot.png'}"] if example == "train_moe" else []
    ended = _run(*options, example=example)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{example}: passed" in ended.stdout
