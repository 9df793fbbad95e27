"""epd where few threads and processes can be had: it serves, or ends at once with a line that says which limit is in the way."""

import os
import re
import resource
import signal
import subprocess
import time

import epd_process
import pytest

_USER = 61001
# Of a user who has no other process; epd with its worker takes some 16 on two cores.
_LIMITS = (1, 2, 3, 5, 8, 10, 11, 12, 13, 14, 16, 18, 19, 24, 40)


def _become_limited(most: int) -> None:
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    os.setgroups([])
    os.setgid(_USER)
    os.setuid(_USER)


@pytest.fixture
def folder():
    with epd_process.open_folder() as path:
        os.chown(path, _USER, _USER)
        yield path


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user without processes")
@pytest.mark.parametrize("limit", _LIMITS)
def test_it_serves_or_ends_with_the_limit_in_its_words(folder, limit: int):
    log = folder / "log"
    with log.open("w") as out:
        epd = subprocess.Popen(
            [epd_process.binary("epd"), f"--socket={folder}/epd.sock"],
            stdout=out,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: _become_limited(limit),
        )
    try:
        until = time.monotonic() + 20
        while epd.poll() is None and "worker ready" not in log.read_text():
            assert time.monotonic() < until, f"it does neither: {log.read_text()}"
            time.sleep(0.02)
        if epd.poll() is None:
            epd.send_signal(signal.SIGTERM)
            assert epd.wait(timeout=15) == 0, log.read_text()
            return
        assert epd.returncode == 1, log.read_text()
        assert re.search(
            rf"epd: this process may start \d+ more threads, .*ulimit -u {limit}\b", log.read_text()
        ), log.read_text()
    finally:
        epd.kill()
        epd.wait()
