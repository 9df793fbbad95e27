"""Goal: a fuzz target runs until its coverage has stopped growing, and no longer; what failed or still grew has not passed."""

import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "long"))
import fuzz

_GROWING = "#8\tNEW    cov: {} ft: 12 corp: 1/1b exec/s: 0 rss: 27Mb"


def _run(script: str, still: float, most: float) -> tuple[str, int, list[str]]:
    """What is said of a target that is `script`, in Python."""
    target = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE)
    said: list[str] = []
    coverage, now = fuzz.watch(target, still, most, said.append)
    line, status = fuzz.verdict(coverage, now, still, target.wait(timeout=30))
    return line, status, [text for text in said if text]


_TARGET = """
import os, signal, time
def say(line):
    os.write(2, line.encode() + bytes([10]))  # Whole, as libFuzzer does: print writes the end of a line by itself.
def stop(*_):
    say("stat::number_of_executed_units: 99")
    os._exit(72)
signal.signal(signal.SIGINT, stop)
for cov in range(1, 100000):
    if cov <= {blocks}:
        say("#%d\tNEW    cov: %d ft: 12 corp: 1/1b" % (cov, cov))
    else:
        say("#%d\tREDUCE cov: {blocks} ft: 99 corp: 1/1b" % cov)
    time.sleep(0.05)
"""


def test_it_ends_when_no_block_is_new() -> None:
    line, status, said = _run(_TARGET.format(blocks=3), still=1.0, most=60.0)
    assert line.startswith("coverage: 3 blocks, the last of them new after ")
    assert status == 0 and said == ["stat::number_of_executed_units: 99"]


def test_what_still_grows_at_the_end_has_not_passed() -> None:
    line, status, _ = _run(_TARGET.format(blocks=100000), still=1.0, most=2.0)
    assert status == 1 and line.endswith("it grows still; give it more time")


@pytest.mark.parametrize(
    ("blocks", "ended", "said"),
    [
        (3, 77, "an input failed: libFuzzer ended with 77"),
        (0, 72, "libFuzzer said nothing of coverage"),
    ],
)
def test_what_failed_has_not_passed(blocks: int, ended: int, said: str) -> None:
    assert fuzz.verdict(fuzz.Coverage(blocks), 500.0, 120.0, ended) == (said, 1)


def test_only_new_blocks_count() -> None:
    coverage = fuzz.Coverage()
    for second, blocks in enumerate((5, 5, 7, 6, 7)):
        coverage.saw(_GROWING.format(blocks), float(second))
    coverage.saw("an input of its own: cov: 99", 9.0)
    assert (coverage.blocks, coverage.grew_at) == (7, 2.0)
