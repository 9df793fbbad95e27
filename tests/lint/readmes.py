"""What the READMEs say is there: every path that they name exists, and every command is run by a test or marked.

A path stands in backticks, in a link, or in a map: a fenced block without a language whose first word ends with a slash. It counts from the
root or from the README's folder; its last parts are enough (`programs/faults.py`). `*` and `{a,b}` mean what a shell makes of
them. What is made later (out/, .venv/), and what has a `<placeholder>`, is left alone.

A command is a line of a fenced block without a language, or of sh, bash or console, that begins with a file of this
repository or with a program of epd's, Bazel, git, pip or Python. The targets that it names exist. Before its block stands, on a line of its own,
`<!-- run by PATH -->`, a file in which every word of the commands occurs, or `<!-- not run: why -->`.
"""

import fnmatch
import itertools
import pathlib
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass

import tree

_SUFFIXES = (
    *(".h", ".cc", ".cu", ".cuh", ".c", ".py", ".md", ".proto", ".bzl", ".json", ".txt", ".toml"),
    *(".ini", ".yaml", ".service", ".conf", ".sbatch", ".lds", ".textproto"),
)
_MADE_LATER = ("out/", ".venv/", "bazel-", "compile_commands.json")
_PROGRAMS = {
    *(
        "epd",
        "epctl",
        "epd-worker",
        "bazel",
        "python",
        "python3",
        "pip",
        "git",
        "gdb",
        "sudo",
        "kubectl",
        "sbatch",
    ),
}
_SHELLS = ("", "sh", "bash", "console")
# In backticks, or the target of a link.
_TOKEN = re.compile(r"`([^`\s]+)`|\]\(([^)\s#:]+)(?:#[^)]*)?\)")
_PATH = re.compile(r"[\w.*{},+@-]+(?:/[\w.*{},+@-]+)*/?")
_MARK = re.compile(r"<!-- (run by (?P<file>\S+)|not run: \S.*) -->")
_BRACES = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class _Block:
    """A fenced block: its language, the line before it, the number of its first line, its lines."""

    language: str
    before: str
    first: int
    lines: list[str]

    @property
    def is_map(self) -> bool:
        words = self.lines[0].split() if self.lines else []
        return self.language == "" and bool(words) and words[0].endswith("/")


def _expanded(text: str) -> list[str]:
    """`a/{b,c}` -> a/b, a/c."""
    found = _BRACES.search(text)
    if not found:
        return [text]
    middles = found[1].split(",")
    ends = [_expanded(text[: found.start()] + middle + text[found.end() :]) for middle in middles]
    return list(itertools.chain.from_iterable(ends))


def _is_path(word: str) -> bool:
    return (
        _PATH.fullmatch(word) is not None
        and ("/" in word or word.endswith(_SUFFIXES))
        and not word.startswith(_MADE_LATER)
        and not re.fullmatch(r"[\d./,-]*", word)
    )


class _Paths:
    """Files and folders of the repository."""

    def __init__(self, files: tree.Tree) -> None:
        folders = {
            str(parent) for path in files for parent in pathlib.PurePosixPath(path).parents
        } - {"."}
        self._all = set(files) | folders
        self._ends = {"/" + path for path in self._all}

    def has(self, path: str, folder: str) -> bool:
        path = path.rstrip("/")
        if "*" in path:
            return bool(fnmatch.filter(self._ends, "*/" + path))
        from_here = posixpath.normpath(posixpath.join(folder, path))
        return from_here in self._all or any(known.endswith("/" + path) for known in self._ends)


def _split(text: str) -> tuple[list[tuple[int, str]], list[_Block]]:
    """Returns the lines outside of fenced blocks, numbered, and the blocks."""
    prose: list[tuple[int, str]] = []
    blocks: list[_Block] = []
    block: _Block | None = None
    before = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("```"):
            if block is None:
                block = _Block(line[3:].strip(), before, number + 1, [])
            else:
                blocks.append(block)
                block, before = None, ""
        elif block is not None:
            block.lines.append(line)
        else:
            prose.append((number, line))
            before = line.strip() or before
    return prose, blocks


def _words(prose: list[tuple[int, str]], blocks: list[_Block]) -> Iterator[tuple[int, str]]:
    """Every word that may be a path, with the number of its line."""
    for number, line in prose:
        for quoted, target in _TOKEN.findall(line):
            yield number, quoted or target
    for block in blocks:
        if block.is_map:
            for number, line in enumerate(block.lines, start=block.first):
                for word in line.split():
                    yield number, word.strip("(),;:").removesuffix(".")


def _command(line: str, files: tree.Tree) -> list[str] | None:
    """The words of a command, without the comment after it; None if the line is none."""
    words = line.split(" #")[0].strip().removeprefix("$ ").split()
    if not words or line.startswith("#"):
        return None
    return words if words[0] in files or words[0] in _PROGRAMS else None


def _missing_target(label: str, files: tree.Tree) -> bool:
    """Whether there is no such target: a package without BUILD, or a name that its BUILD does not have."""
    package, _, name = label.removeprefix("//").removesuffix("...").rstrip("/").partition(":")
    if label.endswith("..."):
        return not any(path.startswith(package) for path in files)
    name = name or package.rpartition("/")[2]
    return f'"{name}"' not in files.get(f"{package}/BUILD", "")


def _check_block(path: str, block: _Block, files: tree.Tree) -> list[str]:
    numbered = enumerate(block.lines, start=block.first)
    commands = [(number, words) for number, line in numbered if (words := _command(line, files))]
    if block.language not in _SHELLS or block.is_map or not commands:
        return []
    complaints = [
        f"{path}:{number}: there is no target {word}"
        for number, words in commands
        for word in words
        if word.startswith("//") and _missing_target(word, files)
    ]
    mark = _MARK.fullmatch(block.before)
    if not mark:
        return complaints + [
            f"{path}:{number}: say who runs '{' '.join(words)}': <!-- run by PATH --> or <!-- not run: why -->"
            for number, words in commands
        ]
    runner = mark["file"]
    if runner is None:
        return complaints
    if runner not in files:
        return complaints + [
            f"{path}:{block.first}: {runner}, which should run the commands, does not exist"
        ]
    return complaints + [
        f"{path}:{number}: {runner} should run this, but '{word}' does not occur in it"
        for number, words in commands
        for word in words
        if word not in files[runner]
    ]


def check(files: tree.Tree) -> list[str]:
    paths = _Paths(files)
    complaints = []
    for readme, text in files.items():
        folder, _, name = readme.rpartition("/")
        if name != "README.md":
            continue
        prose, blocks = _split(text)
        complaints += [
            f"{readme}:{number}: there is no {word}"
            for number, token in _words(prose, blocks)
            for word in _expanded(token)
            if _is_path(word) and not paths.has(word, folder)
        ]
        for block in blocks:
            complaints += _check_block(readme, block, files)
    return complaints


if __name__ == "__main__":
    tree.run(check)
