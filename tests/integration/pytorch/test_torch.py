"""Goal: epd.torch on Debian's python3-torch computes and fails as it says, each rank a process of its own."""

import functools
import json
import re
import subprocess

import docstring_snippets
import harness
import pytest
import wait
from torch_ranks import HERE, PYPI_TORCH, PYTHON, Ranks, daemon_and_ranks, wait_all


@functools.cache
def _outcomes(program: str, ranks: int) -> tuple[list[dict[str, str]], str]:
    with daemon_and_ranks() as (daemon, fleet):
        statuses = wait_all([fleet.start(program, rank, ranks) for rank in range(ranks)])
        outcomes = []
        for rank in range(ranks):
            path = daemon.folder / f"{rank}.json"
            outcomes.append(json.loads(path.read_text()) if path.exists() else {})
        return outcomes, f"{statuses}\n{fleet.logs()}\n{daemon.log_tail()}"


@functools.cache
def _compiles() -> bool:
    """Whether PyPI's torch is there, and new enough."""
    asked = [PYTHON, "-c", "import torch; torch.library.custom_op"]
    return bool(PYPI_TORCH) and subprocess.run(asked, capture_output=True).returncode == 0


def _checks(program: str) -> list[str]:
    text = (HERE / "programs" / f"{program}.py").read_text()
    return re.findall(r"^def (check_\w+)\(", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("program", "ranks", "check"),
    [
        pytest.param(program, ranks, check, id=f"{program}-{ranks}-{check}")
        for program, ranks in (
            ("operations", 4),
            ("operations", 1),
            ("experts", 4),
            ("experts", 1),
            ("defaults", 2),
            ("bad_input", 2),
            ("processes", 2),
            *((("compiled", 4), ("compiled", 1)) if _compiles() else ()),
        )
        for check in _checks(program)
    ],
)
def test_program(program: str, ranks: int, check: str) -> None:
    outcomes, logs = _outcomes(program, ranks)
    wrong = {
        r: o.get(check, "it did not run") for r, o in enumerate(outcomes) if o.get(check) != "ok"
    }
    assert not wrong, "\n".join([*(f"rank {r}: {text}" for r, text in wrong.items()), logs])


# Looks for a daemon where there is none, and may start none.
_NOBODY_THERE = """
import os, sys
from epd.torch import EpError, Group
os.environ.update(EPD_AUTOSTART="0", XDG_RUNTIME_DIR=sys.argv[1])
for socket in ("", sys.argv[1] + "/none.sock"):
    os.environ["EPD_SOCKET"] = socket
    try:
        Group.join("g", 1, 0, num_experts=1, max_tokens_per_rank=1, recv_capacity_per_rank=1, hidden_dim=8)
    except EpError as error:
        print(error.code, error.retry, error)
"""


def test_where_there_is_no_daemon_the_remedy_comes_first():
    with harness.short_folder() as folder:
        command = [PYTHON, "-c", _NOBODY_THERE, str(folder)]
        environment = Ranks(folder, "").environment()
        said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    words = "UNAVAILABLE call again [epd:UNAVAILABLE] "
    forbidden, absent = said.stdout.splitlines()
    assert forbidden.startswith(f"{words}unset EPD_AUTOSTART"), said
    assert absent.startswith(f"{words}start one there with 'epd --socket={folder}/none.sock'"), said


def _reached(fleet: Ranks, processes: list[subprocess.Popen], ranks: list[int], line: str) -> None:
    def all_said() -> bool:
        assert not any(process.poll() for process in processes), fleet.logs()
        return all(f"{line}\n" in fleet.log(rank).read_text() for rank in ranks)

    wait.until(all_said, f"ranks {ranks} to say {line!r}", 60)


def test_a_training_that_retries_nothing_outlives_stops_of_its_daemon():
    with daemon_and_ranks() as (daemon, fleet):
        processes = [fleet.start("training", rank, 4, STEPS="120") for rank in range(4)]
        for step in (20, 60):
            _reached(fleet, processes, [0, 1, 2, 3], f"step {step}")
            assert daemon.stop() == 0, daemon.log_tail()
            daemon.start()
        assert wait_all(processes) == [0] * 4, fleet.logs()
        assert "failed" not in fleet.logs()


def test_a_killed_rank_is_named_and_another_process_takes_its_place():
    with daemon_and_ranks() as (daemon, fleet):
        given = {"STEPS": "1000000", "RETRY": "1"}
        processes = [fleet.start("training", rank, 4, **given) for rank in range(4)]
        _reached(fleet, processes, [0, 1, 2, 3], "step 20")
        killed = processes.pop(1)
        killed.kill()
        assert killed.wait() == -9
        for rank in (0, 2, 3):
            said = fleet.log(rank)
            wait.until(lambda said=said: "failed UNAVAILABLE" in said.read_text(), "to hear of it")
            assert f"pid={killed.pid}" in said.read_text() and "rank=1" in said.read_text()
        steps = fleet.log(0).read_text().count("step")
        processes.append(fleet.start("training", 1, 4, **given))
        _reached(fleet, processes, [0, 2, 3], f"step {steps + 20}")
        for process in processes:
            process.kill()
            process.wait()


def test_the_example_trains_as_the_dense_layer_does():
    with daemon_and_ranks() as (daemon, fleet):
        ended = subprocess.run(
            [PYTHON, str(harness.ROOT / "client" / "torch" / "example" / "train_moe.py")],
            env=fleet.environment(),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr + daemon.log_tail()
    assert "equal those of the dense layer" in ended.stdout


def test_the_snippet_of_the_readme_runs():
    text = (harness.ROOT / "client" / "torch" / "README.md").read_text()
    snippet = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[
        0
    ]  # The others say what runs them.
    with daemon_and_ranks() as (daemon, fleet):
        ranks = [
            subprocess.Popen([PYTHON, "-c", snippet], env=fleet.environment(RANK=str(rank)))
            for rank in range(2)
        ]
        assert wait_all(ranks, 120) == [0, 0], daemon.log_tail()


_PACKAGE = harness.ROOT / "client" / "python" / "epd"
_OF_A_RANK = """
import os, torch
from epd.torch import Group
rank = int(os.environ["RANK"])
def group_of(ranks, **sizes):
    return Group.join("static", ranks=ranks, rank=rank, num_experts=4, max_tokens_per_rank=8, hidden_dim=8,
                      max_token_dtype=torch.float32, **sizes)
"""
_HEAD = (
    "topk_idx, tokens, topk_weights = torch.zeros(8, 2, dtype=torch.long), torch.ones(8, 2048), torch.ones(8, 2)\n"
    "experts = [torch.nn.Linear(2048, 2048) for _ in range(2)]\n"
)
_STATIC = (
    "topk_idx, tokens, topk_weights = torch.zeros(8, 2, dtype=torch.long), torch.ones(8, 8), torch.ones(8, 2)\n"
    "group = group_of(2, recv_capacity_per_rank=256)\n"
)


@pytest.mark.parametrize(
    ("word", "ranks", "before", "behind"),
    [
        ("plan.zones", 4, _HEAD, "assert out.shape == (8, 2048)"),
        (
            "torch.bucketize",
            2,
            _STATIC,
            "assert local.shape == (256,) and recv.shape == (256, 8)\ngroup.finalize()",
        ),
    ],
)
def test_a_snippet_runs_as_it_stands(word: str, ranks: int, before: str, behind: str) -> None:
    """Of the package's docstring and of the README; test_docstrings.py sees to it that there are no others."""
    snippets = docstring_snippets.of_docstrings(_PACKAGE / "torch")
    snippets += docstring_snippets.of_readmes(harness.ROOT, ["client/torch/README.md"])[1:]
    (snippet,) = [snippet.text for snippet in snippets if word in snippet.text]
    program = f"{_OF_A_RANK}\n{before}\n{snippet}\n{behind}\n"
    with daemon_and_ranks() as (daemon, fleet):
        started = [
            subprocess.Popen([PYTHON, "-c", program], env=fleet.environment(RANK=str(rank)))
            for rank in range(ranks)
        ]
        assert wait_all(started, 120) == [0] * ranks, daemon.log_tail()
