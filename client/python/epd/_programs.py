"""The programs that the wheel carries, in bin, with their libraries in lib/epd. As commands: epd, epd-worker, epctl."""

import errno
import os
import sys
from pathlib import Path

_BIN = Path(__file__).resolve().parent / "bin"


def path(name: str) -> Path | None:
    """The wheel's own program; None: this is no wheel with programs, or it was unpacked without their permissions."""
    program = _BIN / name
    return program if os.access(program, os.X_OK) else None


def write_out(program: str, text: str) -> None:
    """Writes a program's answer to its standard output, all of it; one that takes none ends the program with one line, and not
    with 0."""
    try:
        if sys.stdout is None:  # It was closed when the program began.
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        print(f"{program}: cannot write to standard output: {error.strerror}", file=sys.stderr)
        sys.stdout = None  # Python would try again at its end, and say so in its own words.
        sys.exit(1)


def main() -> None:
    """Becomes the program as which this was called."""
    name = Path(sys.argv[0]).name
    program = path(name)
    if program is None:
        sys.exit(
            f"pip install --force-reinstall epd: there is no program {name} that can be run in {_BIN}"
        )
    os.execv(program, [str(program), *sys.argv[1:]])
