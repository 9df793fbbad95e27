"""epd in a control group of this machine: the lowest limit of its group and those above it counts, as it is at the moment."""

import concurrent.futures
import contextlib
import os
import pathlib
import subprocess
from collections.abc import Iterator

import c_client
import epd_process
import pytest
import running_epd
import wait

_ROOT = pathlib.Path("/sys/fs/cgroup")
_GIB = 1 << 30


def _hierarchy() -> tuple[pathlib.Path, str]:
    """Where a group of memory can be made, and the file of its limit."""
    if (_ROOT / "cgroup.controllers").exists():
        return _ROOT, "memory.max"
    return _ROOT / "memory", "memory.limit_in_bytes"


@contextlib.contextmanager
def _groups() -> Iterator[tuple[pathlib.Path, pathlib.Path]]:
    """A group with a limit of 1 GiB, and one in it without."""
    root, limit = _hierarchy()
    outer = root / f"epd-test-{os.getpid()}"
    inner = outer / "inner"
    made = []
    try:
        try:
            outer.mkdir()
            made.append(outer)
            if limit == "memory.max":
                (root / "cgroup.subtree_control").write_text("+memory")
                (outer / "cgroup.subtree_control").write_text("+memory")
            inner.mkdir()
            made.append(inner)
            (outer / limit).write_text(str(_GIB))
        except OSError as error:
            pytest.skip(f"no control groups of memory can be made here: {error}")
        yield outer, inner
    finally:
        for group in reversed(made):
            group.rmdir()


def _staging_default(group: pathlib.Path) -> str:
    done = subprocess.run(
        [
            "sh",
            "-c",
            'echo $$ > "$0/cgroup.procs" && exec "$@"',
            str(group),
            epd_process.binary("epd"),
            "--print-config",
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("staging_bytes ")]
    return line


def test_the_default_of_staging_follows_the_limit_of_its_group_and_of_those_above():
    with _groups() as (outer, inner):
        groups = [inner] if (_ROOT / "cgroup.controllers").exists() else [outer, inner]
        for group in groups:
            assert _staging_default(group).split()[2] == "256MiB", group


# Rows of 4 MiB: a rank stages 32 MiB.
_HIDDEN = 1 << 20
_MIB = 1 << 20


def _exchange(socket: str, group: str) -> str:
    """What a new group of two ranks says of a large dispatch: "", or its error."""

    def rank(number: int) -> str:
        try:
            member = c_client.Rank(socket, group, number, 2, hidden=_HIDDEN)
        except c_client.Refused as error:
            return str(error)
        try:
            member.prepare("plan")
            member.dispatch("rows")
        except c_client.Refused as error:
            return str(error)
        finally:
            member.close()
        return ""

    with concurrent.futures.ThreadPoolExecutor(2) as ranks:
        first, second = ranks.map(rank, range(2))
    assert bool(first) == bool(second), (first, second)
    return first


def _used(group: pathlib.Path, limit: str) -> int:
    name = "memory.current" if limit == "memory.max" else "memory.usage_in_bytes"
    return int((group / name).read_text())


def test_a_new_group_takes_no_memory_that_a_lowered_limit_does_not_leave():
    limit = _hierarchy()[1]
    with _groups() as (outer, inner), running_epd.RunningEpd("--staging_bytes=512MiB") as epd:
        worker = epd.worker_pid()
        for pid in (epd.process.pid, worker):
            (inner / "cgroup.procs").write_text(str(pid))
        assert _exchange(epd.socket, "before") == ""
        wait.until(lambda: _used(outer, limit) < 32 * _MIB, "the first group's staging is back")
        (outer / limit).write_text(str(_used(outer, limit) + 48 * _MIB))
        refused = _exchange(epd.socket, "lowered")
        assert f"{outer / limit} allows" in refused, refused
        assert "raise that limit" in refused
        assert "[EPD-1105]" in refused
        findings = {one.what: one.found for one in epd.api.call("GetDoctor").findings}
        assert str(outer / limit) in findings["memory limit"]
        assert epd.worker_pid() == worker, epd.log()
        assert epd.process.poll() is None
        assert str(outer / limit) in epd.log()
        (outer / limit).write_text(str(_GIB))
        assert _exchange(epd.socket, "raised") == ""
