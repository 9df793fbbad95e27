"""Rules of style that no formatter knows: how headers begin, how long files get, names that say nothing."""

import re

import tree

_MAX_LINES = 400
_MAX_TEST_LINES = 600
# A file may be longer if it says why: "Long because ..." in a comment.
_EXCUSE = re.compile(r"^\s*(//|/\*|#|\").*\bLong because\b", re.MULTILINE)
_EMPTY_NAME = re.compile(
    r"^\s*(?:class|struct)\s+(?:\[\[\w+\]\]\s+)?(\w*(?:Manager|Helper|Util|Utils|Info|Data))\b\s*(?:final\s*)?[:{]"
)
# The C header may guard itself in the older way.
_GUARD = re.compile(r"^#pragma once$|^#ifndef EPD_\w+_H_?$", re.MULTILINE)
_CODE = (*tree.CPP_SUFFIXES, ".py")


def _is_test(path: str) -> bool:
    return path.startswith("tests/") or "/test_" in path or "_test." in path


def _length(path: str, text: str) -> list[str]:
    limit = _MAX_TEST_LINES if _is_test(path) else _MAX_LINES
    lines = text.count("\n")
    if lines <= limit or _EXCUSE.search(text):
        return []
    return [f"{path}:1: {lines} lines, more than {limit}: split it, or say 'Long because ...'"]


def _header(path: str, text: str) -> list[str]:
    complaints = []
    if not text.startswith(("//", "/*")):
        complaints.append(f"{path}:1: a header's first line says what the file is for")
    if not _GUARD.search(text):
        complaints.append(f"{path}:1: no #pragma once")
    if re.search(r"^\s*using namespace\b", text, re.MULTILINE):
        complaints.append(f"{path}:1: 'using namespace' in a header")
    return complaints


def _names(path: str, text: str) -> list[str]:
    return [
        f"{path}:{number}: '{found[1]}' says nothing; name what it does"
        for number, line in enumerate(text.splitlines(), start=1)
        if (found := _EMPTY_NAME.match(line))
    ]


def check(files: tree.Tree) -> list[str]:
    complaints = []
    for path, text in files.items():
        if path.endswith(_CODE):
            complaints += _length(path, text)
        if path.endswith((".h", ".cuh")):
            complaints += _header(path, text)
        if path.endswith(tree.CPP_SUFFIXES) and not _is_test(path):
            complaints += _names(path, text)
    return complaints


if __name__ == "__main__":
    tree.run(check)
