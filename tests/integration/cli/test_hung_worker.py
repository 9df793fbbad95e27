"""Goal: what a worker's exec thread hangs in is in the support archive while its epd is dead, and stays there once the worker has
ended, too."""

import contextlib
import json
import pathlib
import subprocess

import pytest
import wait
from hung_rank import HungRank
from running_epd import RunningEpd

_SOURCE = pathlib.Path(__file__).with_name("hanging_pages.c")
# The exec thread, which makes the pages of op slots before it touches them, in the call that does not return.
_FUNCTIONS = ("madvise", "epd::SessionSlots::", "epd::ExecLoop::")
# From epd's death on a worker that does not move is there for so long at most.
_END_SECONDS = 40


@pytest.fixture
def hang(tmp_path, monkeypatch) -> pathlib.Path:
    """Once this file is there, who asks the kernel for pages hangs."""
    library = tmp_path / "hanging_pages.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-g", "-o", library, _SOURCE], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("EPD_TEST_HANG", str(tmp_path / "hang"))
    return tmp_path / "hang"


def _stacks(epctl, path: pathlib.Path, pid: int) -> dict:
    assert epctl("support-archive", str(path)).returncode == 7  # No epd.
    archive = json.loads(path.read_text())
    (stacks,) = [one for one in archive["stacks"] if one["pid"] == pid]
    return stacks


def _check(stacks: dict) -> None:
    hung = [
        "\n".join(frame.get("function", "") for frame in thread.get("frames", ()))
        for thread in stacks["threads"]
    ]
    (thread,) = [text for text in hung if "epd::ExecLoop::" in text]
    for function in _FUNCTIONS:
        assert function in thread, thread


def test_what_a_worker_hangs_in_is_told_while_its_epd_is_dead_and_after_its_own_end(
    hang, epctl_of, tmp_path, monkeypatch
):
    with contextlib.ExitStack() as stack:
        epd = stack.enter_context(RunningEpd())
        monkeypatch.delenv("LD_PRELOAD")
        worker = epd.worker_pid()
        ranks = [HungRank(epd.socket, rank) for rank in (0, 1)]
        for rank in ranks:
            stack.callback(rank.close)
        for rank in ranks:
            rank.expect("joined")
        hang.touch()
        for rank in ranks:
            rank.begin("a")
        reached = hang.with_name("hang.reached")
        wait.until(reached.exists, "the worker to hang")
        epd.process.kill()
        epd.process.wait()
        nowhere = epctl_of("/nonexistent/epd.sock")
        hangs = _stacks(nowhere, tmp_path / "hangs.json", worker)
        assert not hangs.get("ended"), "the worker has ended before it was asked"
        _check(hangs)
        gone = pathlib.Path(f"/proc/{worker}")
        wait.until(lambda: not gone.exists(), "the worker to be ended", _END_SECONDS)
        ended = _stacks(nowhere, tmp_path / "ended.json", worker)
        assert ended["ended"]
        _check(ended)
