"""Remembers which C++ sources a check has found clean, so that it looks again only at what has changed since.

What counts is the text of the source and of everything that it includes in quotes, from the tree or made by Bazel, how it is
compiled, and which compilers and packages with headers are installed. The folder is the user's, so a new clone begins with what others found.
"""

import functools
import hashlib
import os
import pathlib
import re
import subprocess
import time
from collections.abc import Callable, Iterator

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)
_SEARCHED = ("-iquote", "-I")
_KEPT_SECONDS = 30 * 24 * 3600


def folder(check: str) -> pathlib.Path:
    """Where `check` remembers, without what was of no use for a month."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    found = pathlib.Path(caches).expanduser() / "epd" / check
    found.mkdir(parents=True, exist_ok=True)
    for stamp in found.iterdir():
        if time.time() - stamp.stat().st_mtime > _KEPT_SECONDS:
            stamp.unlink(missing_ok=True)
    return found


@functools.cache
def installed() -> bytes:
    """Versions of the compilers and of all packages with headers, as Debian's dpkg knows them."""
    names = ["clang*", "g++*", "gcc*", "lib*-dev", "protobuf-compiler*", "linux-libc-dev"]
    listed = subprocess.run(["dpkg-query", "-W", *names], check=False, stdout=subprocess.PIPE)
    if not listed.stdout:
        raise RuntimeError("dpkg-query lists no package with headers")
    return listed.stdout


class Clean:
    """A file in `folder` for each source that was clean; `salt` is what else the check's verdict depends on."""

    def __init__(self, root: pathlib.Path, folder: pathlib.Path, salt: bytes) -> None:
        self._root = root
        self._folder = folder
        self._salt = salt + installed()
        self._read = functools.cache(self._read_anew)

    def stamp(self, source: str, options: list[str]) -> pathlib.Path:
        """The file that is there if `source`, compiled with `options`, was clean as it is now."""
        hashed = hashlib.sha256(self._salt + "\0".join([source, *options]).encode())
        for path in read_by(self._root, source, options, lambda path: self._read(path)[1]):
            hashed.update(self._read(path)[0])
        return self._folder / hashed.hexdigest()

    def check(self, source: str, options: list[str], look: Callable[[], list[str]]) -> list[str]:
        """Returns the complaints of `look`, which is not called where it is known that there are none."""
        stamp = self.stamp(source, options)
        if stamp.exists():
            stamp.touch()
            return []
        complaints = look()
        if not complaints:
            stamp.parent.mkdir(parents=True, exist_ok=True)
            stamp.touch()
        return complaints

    @staticmethod
    def _read_anew(path: pathlib.Path) -> tuple[bytes, list[str]]:
        text = path.read_bytes()
        return hashlib.sha256(text).digest(), quoted_includes(path)


def quoted_includes(path: pathlib.Path) -> list[str]:
    return _INCLUDE.findall(path.read_text(errors="replace"))


def read_by(
    root: pathlib.Path,
    source: str,
    options: list[str],
    includes: Callable[[pathlib.Path], list[str]] = quoted_includes,
) -> Iterator[pathlib.Path]:
    """The source, and each file that it includes in quotes, directly or not."""
    searched = _folders(options)
    seen: set[pathlib.Path] = set()
    todo = [root / source]
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        yield path
        for name in includes(path):
            found = _find(root, name, [str(path.parent), *searched])
            todo += [found] if found else []


def _find(root: pathlib.Path, name: str, folders: list[str]) -> pathlib.Path | None:
    for folder in folders:
        path = root / folder / name
        if path.is_file():
            return path
    return None


def _folders(options: list[str]) -> list[str]:
    """Where the compiler looks for what is included in quotes, in its order."""
    found = []
    for at, option in enumerate(options):
        for flag in _SEARCHED:
            if option == flag and at + 1 < len(options):
                found.append(options[at + 1])
            elif option.startswith(flag) and option != flag:
                found.append(option.removeprefix(flag))
    return found
