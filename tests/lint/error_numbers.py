"""Numbers of errors: what a text says is a line of the table, and each line is said by a text and provoked by a test.

The table is client/cli/error_table.cc, from which `epctl explain` and the runbook's section are made. A line up to 16 is a code; its test
names the code. Any other is provoked by a test that names the number, or that hears it: deploy/faults.md has what tests heard.
"""

import re

import tree

_TABLE = "client/cli/error_table.cc"
_HEARD = "deploy/faults.md"
_SAYERS = ("client/", "daemon/", "kernels/")
_ROW = re.compile(
    r'\{(?P<number>\d+),\s*"(?P<code>\w+)",(?P<rest>(?:\s*"(?:[^"\\]|\\.)*",?)*)\s*\}'
)
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_SAID = re.compile(r"\[EPD-(\d{4})\]")
_TOLD = re.compile(r'\bTold\(\s*"([^"]+)"')
_LAST_CODE = 16


def _names(code: str) -> tuple[str, str]:
    """How a test names a code: INVALID_ARGUMENT, kInvalidArgument."""
    return code, "k" + "".join(word.capitalize() for word in code.split("_"))


def _heard(files: tree.Tree) -> dict[str, set[int]]:
    """Fault -> the numbers that its rows of deploy/faults.md have."""
    heard: dict[str, set[int]] = {}
    for line in files.get(_HEARD, "").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 4 and not cells[1].startswith(("-", "fault")):
            heard.setdefault(cells[1], set()).update(int(n) for n in _SAID.findall(line))
    return heard


def _provokes(files: tree.Tree, path: str, number: int, code: str) -> bool:
    text = files.get(path, "")
    if number <= _LAST_CODE:
        return any(name in text for name in _names(code))
    heard = _heard(files)
    return f"EPD-{number}" in text or any(
        number in heard.get(fault, set()) for fault in _TOLD.findall(text)
    )


def check(files: tree.Tree) -> list[str]:
    rows = [
        (int(row["number"]), row["code"], _TEXT.findall(row["rest"])[-1])
        for row in _ROW.finditer(files.get(_TABLE, ""))
    ]
    if not rows:
        return [f"{_TABLE}:1: no errors are found here"]
    numbers = [number for number, _, _ in rows]
    complaints = [] if numbers == sorted(set(numbers)) else [f"{_TABLE}:1: numbers must only rise"]
    said: set[int] = set()
    for path, text in files.items():
        if path.startswith(_SAYERS) and path.endswith((*tree.CPP_SUFFIXES, ".py")):
            for number in map(int, [] if "error_table" in path else _SAID.findall(text)):
                said.add(number)
                if number not in numbers:
                    complaints.append(f"{path}: says EPD-{number:04}, which {_TABLE} does not have")
    for number, code, test in rows:
        if number > _LAST_CODE and number not in said:
            complaints.append(f"{_TABLE}: no text says EPD-{number:04}")
        if not _provokes(files, test, number, code):
            complaints.append(f"{_TABLE}: {test} does not provoke EPD-{number:04}")
    complaints += [
        f"{_HEARD}: a text about {fault!r} has no number"
        for fault, found in _heard(files).items()
        if not found
    ]
    return complaints


if __name__ == "__main__":
    tree.run(check)
