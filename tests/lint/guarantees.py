"""What daemon/README.md lets a client rely on, and the bugs of tests/track_record.md: each line of these tables names files and,
behind each, tests that are in it.
"""

import re

import tree

README = "daemon/README.md"
HEADING = "## What a client may rely on"
_TABLES = ((README, HEADING), ("tests/track_record.md", "## Bugs that were found"))
_TOKEN = re.compile(r"`([^`]+)`")


def _rows(text: str, heading: str) -> list[tuple[int, str]]:
    """The table's lines below the heading, with their numbers."""
    lines = text.splitlines()
    if heading not in lines:
        return []
    first = lines.index(heading) + 1
    rows = []
    for number, line in enumerate(lines[first:], start=first + 1):
        if line.startswith("## "):
            break
        if line.startswith("| ") and not line.startswith(("| what happens ", "| bug |")):
            rows.append((number, line))
    return rows


def _proofs(line: str) -> dict[str, list[str]]:
    """Files, and the tests named behind each, in a row's last cell."""
    proofs: dict[str, list[str]] = {}
    path = ""
    for word in _TOKEN.findall(line.rstrip(" |").rpartition(" | ")[2]):
        if "/" in word:
            path = word
            proofs[path] = []
        elif path:
            proofs[path].append(word)
    return proofs


def check(files: tree.Tree) -> list[str]:
    complaints = []
    for readme, heading in _TABLES:
        complaints += _check_table(files, readme, heading)
    return complaints


def _check_table(files: tree.Tree, readme: str, heading: str) -> list[str]:
    rows = _rows(files.get(readme, ""), heading)
    complaints = [] if rows else [f"{readme}: no table below '{heading}'"]
    for number, line in rows:
        proofs = _proofs(line)
        where = f"{readme}:{number}"
        if not proofs:
            complaints.append(f"{where}: names no test")
        for path, tests in proofs.items():
            if path not in files:
                complaints.append(f"{where}: there is no {path}")
            elif not tests:
                complaints.append(f"{where}: names no test of {path}")
            complaints += [
                f"{where}: {path} has no test {test}"
                for test in tests
                if not re.search(rf"\b{re.escape(test)}\b", files.get(path, test))
            ]
    return complaints


if __name__ == "__main__":
    tree.run(check)
