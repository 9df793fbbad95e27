"""The programs that the wheel carries, in bin, with their libraries in lib/epd. As commands: epd, epd-worker, epctl."""

import os
import sys
from pathlib import Path

_BIN = Path(__file__).resolve().parent / "bin"


def path(name: str) -> Path | None:
    """The wheel's own program; None: this is no wheel with programs, or it was unpacked without their permissions."""
    program = _BIN / name
    return program if os.access(program, os.X_OK) else None


def main() -> None:
    """Becomes the program as which this was called."""
    name = Path(sys.argv[0]).name
    program = path(name)
    if program is None:
        sys.exit(
            f"pip install --force-reinstall epd: there is no program {name} that can be run in {_BIN}"
        )
    os.execv(program, [str(program), *sys.argv[1:]])
