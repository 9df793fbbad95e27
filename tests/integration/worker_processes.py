"""Which of epd's children are its workers: others make and give back pages, or ask the machine something."""

import contextlib
import pathlib


def of(epd: int) -> list[int]:
    """The pids of the workers of the epd of this pid; it may have none."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        children = pathlib.Path(f"/proc/{epd}/task/{epd}/children").read_text().split()
        return [int(child) for child in children if _is_worker(child)]
    return []


def _is_worker(pid: str) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return b"--control-fd=" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
