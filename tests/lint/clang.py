"""Runs clang over sources in C and C++: its warnings and its thread-safety analysis are errors. Nothing is generated from them.

.ci/run does so with those of the tests that have to do with a lock; by itself this looks at all of them, for ten minutes. Each time it first proves that it can fail: a field read without its lock must be refused with the options of a real source.
"""

import pathlib
import re
import sys

import clean
import compile_commands
import tools
import tree

_UNGUARDED = """
struct __attribute__((capability("mutex"))) Lock {};
struct Counter {
  Lock lock;
  int count __attribute__((guarded_by(lock)));
  int Next() { return ++count; }
};
"""


_LOCK = re.compile(r"[mM]utex")


def with_locks(
    root: pathlib.Path, commands: compile_commands.Commands
) -> compile_commands.Commands:
    """Those of `commands` whose source names a lock, or a header does that is included from the source's own top-level folder."""

    def has_lock(source: str) -> bool:
        top = root / source.split("/", 1)[0]
        files = clean.read_by(root, source, compile_commands.options(commands[source]))
        return any(path.is_relative_to(top) and _LOCK.search(path.read_text()) for path in files)

    return {source: commands[source] for source in commands if has_lock(source)}


def _parse(root: pathlib.Path, source: str, options: list[str]) -> list[str]:
    compiler = "clang" if source.endswith(".c") else "clang++"
    command = [compiler, "-fsyntax-only", "-fno-caret-diagnostics", "-fno-color-diagnostics"]
    printed = tools.run([*command, *options, source], root)
    return [line for line in printed if "error:" in line] or printed


def check(
    root: pathlib.Path, commands: compile_commands.Commands, cache: pathlib.Path
) -> list[str]:
    """Returns the complaints of clang++ about the sources of `commands`."""
    if not commands:
        return ["clang++ has no source to check"]
    folder = root / "out" / "clang"
    folder.mkdir(parents=True, exist_ok=True)
    fault = folder / "planted.cc"
    fault.write_text(_UNGUARDED)
    options = {source: compile_commands.options(command) for source, command in commands.items()}
    refused = _parse(root, str(fault), options[min(options)])
    if not any("requires holding" in line for line in refused):
        return [f"clang++ does not refuse a field read without its lock, but says: {refused}"]
    known = clean.Clean(root, cache, b"")

    def one(source: str) -> list[str]:
        return known.check(source, options[source], lambda: _parse(root, source, options[source]))

    return tools.over_all(sorted(options), one)


if __name__ == "__main__":
    every = compile_commands.read(tree.ROOT, compile_commands.TESTS)
    found = check(tree.ROOT, every, clean.folder("clang"))
    print(*found, sep="\n")
    sys.exit(1 if found else 0)
