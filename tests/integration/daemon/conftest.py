"""Every test of this folder has its own epd."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import epd_process  # noqa: E402


def _not_started(folder: pathlib.Path):
    """It is stopped at the end, and must then exit with 0."""
    made = epd_process.Daemon(folder)
    yield made
    alive = made.process is not None and made.process.poll() is None
    status = made.stop()
    assert not alive or status == 0, made.log()


@pytest.fixture
def daemon(tmp_path: pathlib.Path):
    """An epd that is not started yet."""
    yield from _not_started(tmp_path)


@pytest.fixture
def open_daemon():
    """An epd that is not started yet, whose folder others than its user may enter."""
    with epd_process.open_folder() as folder:
        yield from _not_started(folder)
