"""Backends have one registry, proto/epd/v1/backends.h: their names are compared nowhere else but in daemon/backend.

Python's list of those that run on GPUs repeats what the registry says, and is compared with it.
"""

import re

import tree

_REGISTRY = "proto/epd/v1/backends.h"
_MAY_COMPARE = (_REGISTRY, "daemon/backend/", "tests/")
_ROW = re.compile(r'\{\s*\.name = "(?P<name>\w+)"(?P<rest>[^}]*)\}', re.DOTALL)
_PYTHON = "client/python/epd/_environment.py"
_PYTHON_LIST = re.compile(r"^_GPU_BACKENDS = \((?P<names>[^)]*)\)", re.MULTILINE)


def _rows(files: tree.Tree) -> dict[str, str]:
    """Name -> the rest of its row."""
    return {row["name"]: row["rest"] for row in _ROW.finditer(files.get(_REGISTRY, ""))}


def _comparisons(files: tree.Tree, names: list[str]) -> list[str]:
    name = rf'"(?:{"|".join(names)})"'
    # "x == "cuda"", ""cuda" == x", and Python's "x in ("cuda", ...)".
    compared = re.compile(rf"(?:[=!]=|\bin)\s*[(\[{{]?\s*{name}|{name}\s*[=!]=")
    return [
        f"{path}:{number}: the name of a backend is compared; ask {_REGISTRY} for what is true of it"
        for path, text in files.items()
        if path.endswith((*tree.CPP_SUFFIXES, ".py")) and not path.startswith(_MAY_COMPARE)
        for number, line in enumerate(text.splitlines(), start=1)
        if compared.search(line)
    ]


def check(files: tree.Tree) -> list[str]:
    rows = _rows(files)
    if not rows:
        return [f"{_REGISTRY}:1: no rows of backends are found here"]
    # "auto", which leaves the choice, is a word of other settings, too.
    complaints = _comparisons(files, [name for name in rows if name != "auto"])
    on_device = {name for name, rest in rows.items() if ".on_device = true" in rest}
    listed = _PYTHON_LIST.search(files.get(_PYTHON, ""))
    if listed and set(re.findall(r'"(\w+)"', listed["names"])) != on_device:
        complaints.append(
            f"{_PYTHON}:1: _GPU_BACKENDS is not {sorted(on_device)}, as {_REGISTRY} has it"
        )
    return complaints


if __name__ == "__main__":
    tree.run(check)
