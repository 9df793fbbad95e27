"""Runs a libFuzzer target until its coverage has stopped growing, and says when it did last.

usage: fuzz.py PROGRAM CORPUS [--still=S] [--most=S] [LIBFUZZER_OPTION...]

Ends the target once S seconds have passed without a block of code that no input had reached before, at the latest after --most.
Exit status 0 only if no input failed and coverage has stopped growing.
"""

import argparse
import dataclasses
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

# libFuzzer's line for an input that is new, or for a power of two of inputs: "#4711 NEW    cov: 815 ft: 2000 ...".
_STATUS = re.compile(r"^#\d+\s+\w+\s+cov: (\d+) ft: \d+")
# What libFuzzer exits with when it is told to stop.
_INTERRUPTED = 72
_LOOK_EVERY_S = 1.0
_NOT_HANDED_ON = ("#", "\tNEW_FUNC", "INFO: ")


@dataclasses.dataclass
class Coverage:
    """What the lines of a target say, each with the second in which it came."""

    blocks: int = 0
    grew_at: float = 0.0

    def saw(self, line: str, now: float) -> None:
        found = _STATUS.match(line)
        if found and int(found[1]) > self.blocks:
            self.blocks = int(found[1])
            self.grew_at = now

    def still_for(self, now: float) -> float:
        return now - self.grew_at


def verdict(coverage: Coverage, now: float, still: float, ended: int) -> tuple[str, int]:
    """Returns the closing line and the exit status of a run that ended at `now`, with libFuzzer's status."""
    if ended not in (0, _INTERRUPTED):
        return f"an input failed: libFuzzer ended with {ended}", 1
    grew = f"coverage: {coverage.blocks} blocks, the last of them new after {coverage.grew_at:.0f} s of {now:.0f} s"
    if not coverage.blocks:
        return "libFuzzer said nothing of coverage", 1
    if coverage.still_for(now) < still:
        return f"{grew}: it grows still; give it more time", 1
    return grew, 0


def _lines(fd: int) -> Iterator[list[str]]:
    """Yields what has come since, at least once in _LOOK_EVERY_S, until the end."""
    rest = b""
    while True:
        ready, _, _ = select.select([fd], [], [], _LOOK_EVERY_S)
        read = os.read(fd, 1 << 16) if ready else b""
        *whole, rest = (rest + read).split(b"\n")
        if ready and not read:
            yield [rest.decode(errors="replace")]
            return
        yield [line.decode(errors="replace") for line in whole]


def watch(
    target: "subprocess.Popen[bytes]", still: float, most: float, say: Callable[[str], None]
) -> tuple[Coverage, float]:
    """Reads what the target says to its end, and interrupts it when it is time. Hands on what is no status line."""
    coverage = Coverage()
    started = time.monotonic()
    told_at: float | None = None
    now = 0.0
    assert target.stderr is not None
    for lines in _lines(target.stderr.fileno()):
        now = time.monotonic() - started
        for line in lines:
            coverage.saw(line, now)
            if not line.startswith(_NOT_HANDED_ON):
                say(line)
        if told_at is None and (coverage.still_for(now) >= still or now >= most):
            target.send_signal(signal.SIGINT)
            told_at = now
    return coverage, told_at if told_at is not None else now


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="fuzz.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("program")
    parser.add_argument("corpus")
    parser.add_argument("--still", type=float, default=120.0)
    parser.add_argument("--most", type=float, default=1800.0)
    options, passed_on = parser.parse_known_args(arguments)
    if options.still >= options.most:
        parser.error(
            f"--still={options.still:g} never passes within --most={options.most:g}; give more"
        )
    target = subprocess.Popen([options.program, *passed_on, options.corpus], stderr=subprocess.PIPE)
    coverage, now = watch(target, options.still, options.most, lambda line: print(line, flush=True))
    said, status = verdict(coverage, now, options.still, target.wait())
    print(said, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
