"""Goal: tests/gpu/run says so where there is no GPU, and where there is one no part passes that did not do its work."""

import importlib
import json
import os
import pathlib
import subprocess
import sys
import types

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_RUN = _ROOT / "tests" / "gpu" / "run"


@pytest.fixture(name="suite")
def _suite(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    monkeypatch.syspath_prepend(str(_ROOT / "tests" / "gpu"))
    return importlib.import_module("suite")


def _python(suite: types.ModuleType, code: str, seconds: int = 20) -> dict:
    return suite.run_part(suite.Part("part", [sys.executable, "-c", code], seconds))


def test_without_a_gpu_it_says_so_and_ends_with_77(tmp_path: pathlib.Path) -> None:
    report = tmp_path / "report.json"
    ended = subprocess.run(
        [_RUN, "--report", report],
        check=False,
        text=True,
        capture_output=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "EPD_GPU_PYTHON": sys.executable},
    )
    assert ended.returncode == 77, ended.stderr
    assert "no GPU here, so nothing ran" in ended.stdout
    assert not report.exists()


def test_wrong_usage_is_another_status() -> None:
    ended = subprocess.run([_RUN, "--nothing"], check=False, capture_output=True)
    assert ended.returncode == 2


def test_a_part_passes_only_with_status_0_and_a_result(suite: types.ModuleType) -> None:
    good = _python(suite, "print('tool says hello'); print('{\"passed\": true}')")
    assert (good["status"], good["result"]) == ("passed", {"passed": True})
    assert _python(suite, "print('{}')")["status"] == "failed"
    assert _python(suite, "print('no result')")["status"] == "failed"
    crashed = _python(suite, "import sys; print('{\"passed\": true}'); sys.exit('why')")
    assert crashed["status"] == "failed"
    assert "why" in crashed["messages"]
    assert _python(suite, "import time; time.sleep(60)", seconds=1)["exit"] == "timeout"
    missing = suite.run_part(suite.Part("part", ["/nothing/here"], 5))
    assert (missing["status"], missing["exit"]) == ("failed", "not started")


def test_what_cannot_run_is_skipped_with_its_reason(suite: types.ModuleType) -> None:
    part = suite.Part("part", ["/nothing/here"], 5, skip="no tool")
    assert suite.run_part(part) == {"name": "part", "status": "skipped", "reason": "no tool"}
    inside = _python(suite, 'print(\'{"skipped": "no library"}\')')
    assert inside["status"] == "skipped"


@pytest.mark.parametrize(
    ("code", "status"), [("print('{\"x\": 1}')", 0), ("raise SystemExit(3)", 1)]
)
def test_the_report_has_every_part_and_the_status_says_whether_all_passed(
    suite: types.ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    code: str,
    status: int,
) -> None:
    monkeypatch.setattr(suite.machine, "why_no_gpu", lambda: None)
    monkeypatch.setattr(suite.machine, "describe", lambda root: {"gpus": ["none"]})
    monkeypatch.setattr(suite, "_build", lambda out: None)
    made = [
        suite.Part("first", [sys.executable, "-c", code], 20),
        suite.Part("second", [], 20, skip="why not"),
    ]
    monkeypatch.setattr(suite, "parts", lambda out: made)
    report = tmp_path / "deep" / "report.json"
    assert suite.main(["--report", str(report)]) == status
    document = json.loads(report.read_text())
    assert [entry["name"] for entry in document["parts"]] == ["first", "second"]
    assert document["machine"]["gpus"] == ["none"]


def test_nothing_that_ran_is_no_success(
    suite: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(suite.machine, "why_no_gpu", lambda: None)
    monkeypatch.setattr(suite.machine, "describe", lambda root: {})
    monkeypatch.setattr(suite, "_build", lambda out: None)
    assert suite.main(["--report", str(tmp_path / "r.json"), "--only", "no such part"]) == 1


def test_every_program_of_the_makefile_is_a_part(suite: types.ModuleType) -> None:
    makefile = (_ROOT / "tests" / "gpu" / "Makefile").read_text()
    line = next(line for line in makefile.splitlines() if line.startswith("PROGRAMS :="))
    out = pathlib.Path("/out")
    run = {pathlib.Path(part.command[0]).name for part in suite.parts(out) if part.command[0]}
    assert set(line.split(":=")[1].split()) <= run
