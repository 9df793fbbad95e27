"""Processes that a control group holds to a share of the machine's CPU time, as a container's limit does."""

import contextlib
import os
import pathlib
import time
import uuid
from collections.abc import Iterable, Iterator

_ROOT = pathlib.Path("/sys/fs/cgroup")
_PERIOD_US = 100_000  # The kernel's default, and containers'.
_LEAVE_SECONDS = 5


def _limits(quota_us: int) -> tuple[pathlib.Path, dict[str, str]]:
    """Where groups are made, and what is written into one: of cgroup v2, else of v1."""
    if (_ROOT / "cgroup.controllers").exists():
        return _ROOT, {"cpu.max": f"{quota_us} {_PERIOD_US}"}
    return _ROOT / "cpu", {
        "cpu.cfs_period_us": str(_PERIOD_US),
        "cpu.cfs_quota_us": str(quota_us),
    }


@contextlib.contextmanager
def held_to(share: float, pids: Iterable[int]) -> Iterator[str]:
    """Holds processes together to ``share`` of all cores inside. Yields why they are not; "": they are."""
    quota_us = int(share * len(os.sched_getaffinity(0)) * _PERIOD_US)
    parent, limits = _limits(quota_us)
    group = parent / f"epd-bench-{uuid.uuid4().hex[:6]}"
    moved: list[int] = []
    why = ""
    try:
        group.mkdir()
        for name, value in limits.items():
            (group / name).write_text(value)
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
            moved.append(pid)
    except OSError as error:
        why = f"no control group that limits CPU time: {error}"
    try:
        yield why
    finally:
        for pid in moved:
            with contextlib.suppress(OSError):  # It may have ended.
                (parent / "cgroup.procs").write_text(str(pid))
        deadline = time.monotonic() + _LEAVE_SECONDS
        while group.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # Until the last one has left.
                group.rmdir()
