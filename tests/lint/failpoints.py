"""The failpoints: each name is of one place, and proto/failpoint/README.md holds the table of all, as the sources have them.

With --write the table is written.
"""

import re
import sys

import tree

README = "proto/failpoint/README.md"
HEADER = "proto/failpoint/failpoint.h"
_HEAD = "| failpoint | can also | where |\n|---|---|---|\n"
_USE = re.compile(r'\bEPD_FAILPOINT(?:_(?P<kind>[A-Z]+))?\(\s*"(?P<name>[^"]*)"')
_NAME = re.compile(r"(epd|worker|client)(\.[a-z][a-z_]*)+")
_LEAST = 60
_CAN = {
    None: "",
    "FAILS": "error",
    "CALL": "error",
    "SEND": "drop, duplicate",
    "REORDER": "reorder",
    "FLIP": "flip",
    "JUMPED": "jump",
}


def _uses(files: tree.Tree) -> list[tuple[str, str, str | None]]:
    """Name, path and kind of each failpoint."""
    return [
        (found["name"], path, found["kind"])
        for path, text in files.items()
        if path.endswith(tree.CPP_SUFFIXES) and path.startswith(("daemon/", "client/"))
        for found in _USE.finditer(text)
    ]


def table(files: tree.Tree) -> str:
    """The table, in Markdown."""
    rows = [
        f"| `{name}` | {_CAN.get(kind, '?')} | `{path}` |\n"
        for name, path, kind in sorted(_uses(files))
    ]
    return _HEAD + "".join(rows)


def check(files: tree.Tree) -> list[str]:
    seen: dict[str, str] = {}
    complaints = []
    for name, path, kind in _uses(files):
        if not _NAME.fullmatch(name):
            complaints.append(
                f"{path}: failpoint '{name}': expected epd, worker or client, then .words"
            )
        if kind not in _CAN:
            complaints.append(f"{path}: failpoint '{name}': there is no EPD_FAILPOINT_{kind}")
        if name in seen:
            complaints.append(f"{path}: failpoint '{name}' stands in {seen[name]}, too")
        seen[name] = path
    if len(seen) < _LEAST:
        complaints.append(f"{README}: got {len(seen)} failpoints, expected at least {_LEAST}")
    if table(files) not in files.get(README, ""):
        complaints.append(f"{README}: the table is old; run tests/lint/failpoints.py --write")
    return complaints


def _write() -> None:
    files = tree.read()
    path = tree.ROOT / README
    before = path.read_text(encoding="utf-8")
    path.write_text(before[: before.index(_HEAD)] + table(files), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        _write()
    tree.run(check)
