"""Goal: tests/gpu/run says so where there is no GPU; where there is one no part passes that did not do its work, and a visit
that is cut short leaves a report to go on from."""

import importlib
import json
import os
import pathlib
import subprocess
import sys
import time
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


def test_without_a_gpu_every_part_says_so_and_it_ends_with_77(tmp_path: pathlib.Path) -> None:
    """Nor does it take make, a compiler or JAX to say it."""
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "dirname", "git"):
        (tmp_path / "bin" / tool).symlink_to(f"/usr/bin/{tool}")
    ended = subprocess.run(
        [_RUN, "--budget", "540", "--out", tmp_path / "out"],
        check=False,
        text=True,
        capture_output=True,
        env={
            "PATH": str(tmp_path / "bin"),
            "CUDA_VISIBLE_DEVICES": "",
            "EPD_GPU_PYTHON": sys.executable,
        },
    )
    assert ended.returncode == 77, ended.stderr
    assert "no GPU here, so nothing ran" in ended.stdout
    entries = json.loads((tmp_path / "out" / "report.json").read_text())["parts"]
    assert entries[0]["name"] == "api streams worker 2 vmm"
    assert all(entry["reason"].startswith("no GPU here: ") for entry in entries)


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


def test_every_part_has_all_hardware_queues_from_its_start(suite: types.ModuleType) -> None:
    code = (
        "import json, os; print(json.dumps({'queues': os.environ['CUDA_DEVICE_MAX_CONNECTIONS']}))"
    )
    assert _python(suite, code)["result"] == {"queues": "32"}


def _visit(
    suite: types.ModuleType, monkeypatch: pytest.MonkeyPatch, made: list, *arguments: object
) -> tuple[int, dict]:
    """Runs these parts as on a machine with a GPU; the status and the report."""
    monkeypatch.setattr(suite.machine, "why_no_gpu", lambda: None)
    monkeypatch.setattr(suite.machine, "describe", lambda root: {"gpus": ["none"]})
    monkeypatch.setattr(suite.programs, "provide", lambda out: suite.programs.Programs(out, {}))
    monkeypatch.setattr(suite.parts, "parts", lambda built, divide: made)
    status = suite.main([str(argument) for argument in arguments])
    report = pathlib.Path(arguments[arguments.index("--report") + 1])
    return status, json.loads(report.read_text())


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
    made = [
        suite.Part("first", [sys.executable, "-c", code], 20),
        suite.Part("second", [], 20, skip="why not"),
    ]
    report = tmp_path / "deep" / "report.json"
    ended, document = _visit(suite, monkeypatch, made, "--report", report)
    assert ended == status
    assert [entry["name"] for entry in document["parts"]] == ["first", "second"]
    assert document["machines"][0]["gpus"] == ["none"]


def test_a_part_finds_those_before_it_in_the_report(
    suite: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    report = tmp_path / "report.json"
    read = f"print(open({str(report)!r}).read())"
    good = "print('{\"x\": 1}')"
    made = [
        suite.Part("first", [sys.executable, "-c", good], 20),
        suite.Part("second", [sys.executable, "-c", read], 20),
    ]
    status, document = _visit(suite, monkeypatch, made, "--report", report)
    assert status == 0
    (seen,) = document["parts"][1]["result"]["parts"]
    assert (seen["name"], seen["status"]) == ("first", "passed")


def test_what_the_budget_leaves_over_is_resumed_elsewhere(
    suite: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    count = tmp_path / "count"
    good = f"open({str(count)!r}, 'a').write('x'); print('{{\"x\": 1}}')"
    slow = f"import time; time.sleep(0 if {str(first)!r} in __import__('os').environ.get('SEEN', '') else 60)"
    made = [
        suite.Part("good", [sys.executable, "-c", good], 12),
        suite.Part("cut", [sys.executable, "-c", slow + "; print('{\"x\": 1}')"], 12),
        suite.Part("not begun", [sys.executable, "-c", good], 12),
    ]
    status, document = _visit(suite, monkeypatch, made, "--budget", 4, "--report", first)
    assert [entry["status"] for entry in document["parts"]] == [
        "passed",
        "unfinished",
        "unfinished",
    ]
    assert status == 3
    monkeypatch.setenv("SEEN", str(first))
    status, document = _visit(suite, monkeypatch, made, "--resume", first, "--report", second)
    assert status == 0
    assert [(entry["status"], entry["machine"]) for entry in document["parts"]] == [
        ("passed", 0),
        ("passed", 1),
        ("passed", 1),
    ]
    assert count.read_text() == "xx"  # What had passed did not run again.


def test_what_hangs_takes_no_visit_from_the_others_and_fails_once_it_was_cut_off_twice(
    suite: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    reports = [tmp_path / f"{visit}.json" for visit in range(3)]
    good = [sys.executable, "-c", "print('{\"x\": 1}')"]
    made = [
        suite.Part("hangs", [sys.executable, "-c", "import time; time.sleep(60)"], 12),
        suite.Part("behind it", good, 12),
        suite.Part("also", good, 12),
    ]
    status, document = _visit(suite, monkeypatch, made, "--budget", 4, "--report", reports[0])
    assert status == 3
    assert [entry["status"] for entry in document["parts"]] == ["unfinished"] * 3
    again = ["--resume", reports[0], "--budget", 6, "--report", reports[1]]
    status, document = _visit(suite, monkeypatch, made, *again)
    statuses = {entry["name"]: entry["status"] for entry in document["parts"]}
    assert statuses == {"hangs": "failed", "behind it": "passed", "also": "passed"}
    assert status == 1
    (hung,) = (entry for entry in document["parts"] if entry["name"] == "hangs")
    assert len(hung["cut_off_after"]) == 2 and "cut off after [" in hung["reason"]
    # It has ended, so a third visit does nothing.
    again = ["--resume", reports[1], "--report", reports[2]]
    status, document = _visit(suite, monkeypatch, made, *again)
    assert status == 1 and document["parts"] == json.loads(reports[1].read_text())["parts"]


def test_a_part_is_not_begun_where_it_would_only_be_cut_off(
    suite: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Two visits that end so are no failure."""
    report = tmp_path / "report.json"
    made = [
        suite.Part("long", ["/nothing/here"], 100),
        suite.Part("short", [sys.executable, "-c", "print('{\"x\": 1}')"], 10),
    ]
    for more in ([], ["--resume", report]):
        arguments = ["--budget", 20, "--report", report, *more]
        status, document = _visit(suite, monkeypatch, made, *arguments)
        assert status == 3
        assert [entry["status"] for entry in document["parts"]] == ["unfinished", "passed"]
        assert "s are left" in document["parts"][0]["reason"]


def test_what_was_skipped_runs_on_a_later_visit_that_can(
    suite: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    good = [sys.executable, "-c", "print('{\"x\": 1}')"]
    no_jax = [sys.executable, "-c", 'print(\'{"skipped": "no JAX"}\')']
    without = [
        suite.Part("of JAX", good, 20, skip="no JAX"),
        suite.Part("says so itself", no_jax, 20),
        suite.Part("passes", good, 20),
        suite.Part("still lacks", good, 20, skip="no tool"),
    ]
    _, document = _visit(suite, monkeypatch, without, "--report", first)
    assert [entry["status"] for entry in document["parts"]] == ["skipped", "skipped", "passed"] + [
        "skipped"
    ]
    able = [suite.Part(part.name, good, 20) for part in without[:3]] + without[3:]
    status, document = _visit(suite, monkeypatch, able, "--resume", first, "--report", second)
    assert status == 0
    assert [(entry["status"], entry["machine"]) for entry in document["parts"]] == [
        ("passed", 1),
        ("passed", 1),
        ("passed", 0),
        ("skipped", 1),
    ]


def test_a_part_whose_process_does_not_die_is_left_behind(
    suite: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that waits in the driver, or that has a session of its own and the part's output."""
    monkeypatch.setattr(suite, "_GRACE_SECONDS", 1)
    child = "import subprocess, time; subprocess.Popen(['sleep', '20'], start_new_session=True);"
    began = time.monotonic()
    entry = _python(suite, child + "time.sleep(20)", seconds=2)
    assert time.monotonic() - began < 10
    assert (entry["status"], entry["exit"]) == ("failed", "timeout")
    assert "goes on" in entry["messages"]


def test_a_part_at_its_limit_leaves_no_process_behind(
    suite: types.ModuleType, tmp_path: pathlib.Path
) -> None:
    """A daemon that it started would keep the GPU's memory from the next part."""
    pid = tmp_path / "pid"
    child = "import subprocess, sys, time; p = subprocess.Popen(['sleep', '60']);"
    child += f"open({str(pid)!r}, 'w').write(str(p.pid)); time.sleep(60)"
    assert _python(suite, child, seconds=3)["exit"] == "timeout"
    with pytest.raises(ProcessLookupError):
        for _ in range(100):
            os.kill(int(pid.read_text()), 0)
            time.sleep(0.05)


def test_only_runs_what_it_names_and_may_be_given_again(
    suite: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    made = [
        suite.Part(name, [sys.executable, "-c", "print('{\"x\": 1}')"], 20)
        for name in ("one", "two", "three")
    ]
    arguments = ["--report", tmp_path / "r.json", "--only", "one", "--only", "thr"]
    status, document = _visit(suite, monkeypatch, made, *arguments)
    assert status == 0
    assert [entry["name"] for entry in document["parts"]] == ["one", "three"]
    status, _ = _visit(suite, monkeypatch, made, "--report", tmp_path / "r.json", "--only", "none")
    assert status == 1  # Nothing that ran is no success.


def test_what_does_not_compile_is_skipped_with_what_the_compiler_said(
    suite: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'cannot compile this' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(suite.machine, "nvcc", lambda: None)
    monkeypatch.setattr(suite.machine, "cuda_header", lambda: tmp_path / "cuda.h")
    built = suite.programs.provide(tmp_path / "out")
    assert set(built.missing) >= set(suite.programs.PROGRAMS)
    monkeypatch.setattr(suite.parts, "why_no_jax", lambda: "no JAX")
    parts = {part.name: part for part in suite.parts.parts(built)}
    assert parts["T8 poison"].skip == "no poison: cannot compile this\n"
    assert "no nvcc" in parts["kernels"].skip or "cannot compile" in parts["kernels"].skip
    assert parts["api jax worker command buffers on"].skip in (
        "no JAX",
        "no epd and wheel: unpack a bundle",
    )


def test_nccl_and_nccl_ep_of_wheels_are_found(
    suite: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Of NCCL EP's, which has one for each CUDA, the newest; epd takes it from its environment."""
    libraries = [
        tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2",
        tmp_path / "nccl" / "ep" / "lib" / "cu12" / "libnccl_ep.so",
        tmp_path / "nccl" / "ep" / "lib" / "cu13" / "libnccl_ep.so",
    ]
    for library in libraries:
        library.parent.mkdir(parents=True)
        library.touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ("EPD_LIBNCCL", "EPD_LIBNCCL_EP")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    code = f"import os, json; print(json.dumps({{name: os.environ[name] for name in {names}}}))"
    found = _python(suite, code)["result"]
    assert found == dict(zip(names, map(str, libraries[::2]), strict=True))
    monkeypatch.setenv("EPD_LIBNCCL_EP", "/opt/libnccl_ep.so")
    assert _python(suite, code)["result"]["EPD_LIBNCCL_EP"] == "/opt/libnccl_ep.so"
