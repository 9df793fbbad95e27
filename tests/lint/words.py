"""No file names one person's machine: home folders, scratch folders, or where a package mirror lives."""

import re

import tree

# Written in pieces, so that this file passes its own check.
_FORBIDDEN = [
    (
        "a folder of one machine",
        re.compile(r"(?<![\w.$}/-])/(" + "work|" + "root|" + r"home/\w+)/"),
    ),
    ("a scratch folder", re.compile(r"/tmp/" + r"(epd|bz)/")),
    (
        "a package mirror",
        re.compile(r"--(extra-)?" + "index-url|" + r"--find-" + "links|" + "PIP_" + "INDEX"),
    ),
    (
        "a package registry's host",
        re.compile(
            r"\b(pypi|files\.pythonhosted|deb\.debian|registry-1\.docker)\." + r"(org|io)\b"
        ),
    ),
]


def check(files: tree.Tree) -> list[str]:
    return [
        f"{path}:{number}: names {what}: {line.strip()[:100]}"
        for path, text in files.items()
        for number, line in enumerate(text.splitlines(), start=1)
        for what, pattern in _FORBIDDEN
        if pattern.search(line)
    ]


if __name__ == "__main__":
    tree.run(check)
