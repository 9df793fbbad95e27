"""epd in a control group of this machine: the lowest limit of its group and those above it counts."""

import contextlib
import os
import pathlib
import subprocess
from collections.abc import Iterator

import epd_process
import pytest

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
