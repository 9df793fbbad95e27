"""How clang compiles each C++ source: read from Bazel, for clang-tidy, and written for editors (.ci/compile_commands)."""

import argparse
import json
import pathlib
import re
import subprocess
import sys

import tree

# Source, relative to the root -> the arguments of its compilation, to be run in the root.
Commands = dict[str, list[str]]

# Every folder with C++ code. Not "//...": it would walk into the bazel-* links.
PRODUCT = ["//client/...", "//daemon/...", "//kernels/...", "//proto/..."]
TESTS = ["//tests/..."]
ALL = [*PRODUCT, *TESTS]

_QUIETLY = ("--config=clang", "--noshow_progress", "--ui_event_filters=-info")
_BAZELS_OWN = re.compile(r"^(-I)?(bazel-out|external)/")
# g++'s options that clang does not know, and those that name outputs.
_DROP = {"-MD", "-c", "-fno-canonical-system-headers", "-Wno-free-nonheap-object"}
_DROP_WITH_VALUE = {"-MF", "-o"}


def _bazel(root: pathlib.Path, *arguments: str) -> str:
    ended = subprocess.run(
        ["bazel", *arguments], cwd=root, check=True, text=True, stdout=subprocess.PIPE
    )
    return ended.stdout


def parse(aquery: str, folders: dict[str, str]) -> Commands:
    """Reads Bazel's jsonproto of CppCompile actions.

    `folders` says where the folders are that Bazel's own paths begin with: they do not lie in the repository.
    """

    def absolute(argument: str) -> str:
        return _BAZELS_OWN.sub(lambda found: f"{found[1] or ''}{folders[found[2]]}/", argument)

    commands: Commands = {}
    for action in json.loads(aquery).get("actions", []):
        arguments = action["arguments"]
        source = arguments[arguments.index("-c") + 1]
        if not _BAZELS_OWN.match(source):
            commands.setdefault(source, [absolute(argument) for argument in arguments])
    return commands


def read(root: pathlib.Path, targets: list[str]) -> Commands:
    """Returns how clang compiles the sources of `targets`, whose generated headers it makes."""
    union = " + ".join(targets)
    headers = _bazel(
        root,
        *("query", "--noshow_progress", "--output=label"),
        f'filter("^//.*\\.(h|inc)$", kind("generated file", deps({union})))',
    ).split()
    if headers:
        _bazel(root, "build", *_QUIETLY, *headers)
    info = dict(
        line.split(": ", 1)
        for line in _bazel(root, "info", "execution_root", "output_base").splitlines()
    )
    printed = _bazel(
        root,
        *("aquery", *_QUIETLY, "--output=jsonproto"),
        f'mnemonic("CppCompile", {union})',
    )
    folders = {
        "bazel-out": f"{info['execution_root']}/bazel-out",
        "external": f"{info['output_base']}/external",
    }
    return parse(printed, folders)


def options(command: list[str]) -> list[str]:
    """Returns what follows `clang-tidy FILE --`: no compiler, no source, no outputs."""
    kept = []
    arguments = iter(command[1:])
    for argument in arguments:
        if argument in _DROP_WITH_VALUE:
            next(arguments)
        elif argument not in _DROP and not argument.endswith((".cc", ".d", ".o")):
            kept.append(argument)
    return kept


def database(root: pathlib.Path, commands: Commands) -> str:
    """Returns the text of compile_commands.json, which clangd reads."""
    entries = [
        {
            "directory": str(root),
            "file": source,
            "arguments": ["clang++", *options(commands[source]), "-c", source],
        }
        for source in sorted(commands)
    ]
    return json.dumps(entries, indent=1) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog=".ci/compile_commands",
        usage=".ci/compile_commands [--help]",
        description="Writes compile_commands.json, which git ignores, for clangd and other tools.",
    )
    parser.parse_args(arguments)
    commands = read(tree.ROOT, ALL)
    (tree.ROOT / "compile_commands.json").write_text(database(tree.ROOT, commands))
    print(f"compile_commands.json: {len(commands)} sources")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
