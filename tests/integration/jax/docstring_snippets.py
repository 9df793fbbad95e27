"""What docstrings and READMEs show as code: where it stands, and its text. Reads sources; imports nothing of them."""

import ast
import pathlib
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

_FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """``place``: the file, from the root of its tree."""

    place: str
    text: str


def literal_blocks(docstring: str) -> list[str]:
    """The indented blocks behind lines that end with two colons."""
    blocks: list[str] = []
    lines = iter([*docstring.splitlines(), ""])
    for line in lines:
        if not line.rstrip().endswith("::"):
            continue
        margin = len(line) - len(line.lstrip())
        block: list[str] = []
        for following in lines:
            if following.strip() and len(following) - len(following.lstrip()) <= margin:
                break
            block.append(following)
        if text := textwrap.dedent("\n".join(block)).strip("\n"):
            blocks.append(text + "\n")
    return blocks


def _docstrings(source: str) -> Iterator[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield text


def of_docstrings(folder: pathlib.Path) -> list[Snippet]:
    return [
        Snippet(str(path.relative_to(folder)), block)
        for path in sorted(folder.rglob("*.py"))
        for docstring in _docstrings(path.read_text())
        for block in literal_blocks(docstring)
    ]


def of_readmes(root: pathlib.Path, paths: list[str]) -> list[Snippet]:
    return [
        Snippet(path, block)
        for path in paths
        for block in _FENCED.findall((root / path).read_text())
    ]
