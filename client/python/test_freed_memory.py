"""Goal: a process keeps the memory of what it freed for its next results, as much as it was told, and a user's own word goes before."""

import os
import subprocess
import sys

import pytest

_BLOCKS, _BYTES = 6, 8 << 20
# Writes blocks that are not the heap's last, frees them, and counts the page faults of writing as many again.
_PROGRAM = f"""
import ctypes, resource
from epd import _freed_memory
print(_freed_memory.keep())
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def step():
    blocks = [libc.malloc({_BYTES}) for _ in range({_BLOCKS})]
    for block in blocks:
        ctypes.memset(block, 1, {_BYTES})
    for block in blocks:
        libc.free(block)
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
_PAGES = _BLOCKS * _BYTES // 4096
_OF_THE_HEAP = ("MALLOC_", "GLIBC_TUNABLES", "EPD_KEEP_FREED_MIB", "LD_PRELOAD")


def _run(**environment: str) -> subprocess.CompletedProcess:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OF_THE_HEAP)}
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env=kept | environment,
        text=True,
        capture_output=True,
        timeout=60,
    )


def _kept_and_faults(**environment: str) -> tuple[str, int]:
    kept, faults = _run(**environment).stdout.split()
    return kept, int(faults)


def test_freed_memory_is_there_for_the_next_step() -> None:
    kept, faults = _kept_and_faults()
    assert kept == "True" and faults < _PAGES / 10


@pytest.mark.parametrize(
    "said",
    [
        {"EPD_KEEP_FREED_MIB": "0"},
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"},
    ],
    ids=lambda said: next(iter(said)),
)
def test_what_the_user_says_of_the_heap_stands(said: dict[str, str]) -> None:
    kept, faults = _kept_and_faults(**said)
    assert kept == "False" and faults > _PAGES / 2


def test_what_is_more_is_given_back() -> None:
    kept, faults = _kept_and_faults(EPD_KEEP_FREED_MIB="16")
    assert kept == "True" and faults > _PAGES / 10


@pytest.mark.parametrize("text", ["much", "-1", "1.5", "2048"])
def test_a_word_that_is_no_number_is_refused(text: str) -> None:
    ended = _run(EPD_KEEP_FREED_MIB=text)
    assert ended.returncode != 0
    assert (
        f"EPD_KEEP_FREED_MIB='{text}' is not a number of MiB; give 0 to 2047, or unset it"
        in ended.stderr
    )
