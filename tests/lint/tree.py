"""What the checks of this folder share: reading the repository's files, and printing what was found."""

import pathlib
import subprocess
import sys
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# Path relative to the root -> text. A check is a pure function from this to a list of complaints, "path:line: what".
Tree = dict[str, str]
Check = Callable[[Tree], list[str]]

CPP_SUFFIXES = (".h", ".cc", ".cu", ".cuh")


def paths(root: pathlib.Path = ROOT) -> list[str]:
    """Returns the files that git has or would add, relative to `root`."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return sorted(p for p in set(listed.stdout.splitlines()) if (root / p).is_file())


def read(root: pathlib.Path = ROOT) -> Tree:
    """Returns all text files; a file that is not UTF-8 (a picture) is left out."""
    tree = {}
    for path in paths(root):
        try:
            tree[path] = (root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    return tree


def main(check: Check) -> int:
    """Runs one check on the repository from the command line."""
    complaints = check(read())
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


def run(check: Check) -> None:
    sys.exit(main(check))
