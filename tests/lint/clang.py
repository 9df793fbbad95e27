"""Runs clang over sources in C and C++: its warnings and its thread-safety analysis are errors. Nothing is generated from them.

Each time it first proves that it can fail: a field read without its lock must be refused with the options of a real source.
"""

import pathlib

import clean
import compile_commands
import tools

_UNGUARDED = """
struct __attribute__((capability("mutex"))) Lock {};
struct Counter {
  Lock lock;
  int count __attribute__((guarded_by(lock)));
  int Next() { return ++count; }
};
"""


def _parse(root: pathlib.Path, source: str, options: list[str]) -> list[str]:
    compiler = "clang" if source.endswith(".c") else "clang++"
    command = [compiler, "-fsyntax-only", "-fno-caret-diagnostics", "-fno-color-diagnostics"]
    printed = tools.run([*command, *options, source], root)
    return [line for line in printed if "error:" in line] or printed


def check(root: pathlib.Path, commands: compile_commands.Commands) -> list[str]:
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
    known = clean.Clean(root, folder, b"")

    def one(source: str) -> list[str]:
        return known.check(source, options[source], lambda: _parse(root, source, options[source]))

    return tools.over_all(sorted(options), one)
