"""Runs clang-tidy over the C++ sources of the product, and proves each time that it can fail.

clang-tidy looks for its configuration above a source file, and finds nothing to complain about where there is none. So the
configuration is named to it, and before a run counts, the same function must complain about faults planted in a
real source and a real header of the tree.
"""

import json
import pathlib
import re
import subprocess

import clean
import compile_commands
import tools

_CONFIG = ".clang-tidy"
_CHECK_NAME = re.compile(r"^\s+([a-z]+-[a-z0-9-]+),?$", re.MULTILINE)
# A class that converts from an int in silence: google-explicit-constructor.
_FAULT = "\nnamespace epd { struct PlantedFault%s { PlantedFault%s(int value); }; }\n"


def unknown_checks(root: pathlib.Path) -> list[str]:
    """Returns complaints about checks that .clang-tidy names and clang-tidy does not run, or runs unasked."""
    asked = set(_CHECK_NAME.findall((root / _CONFIG).read_text()))
    listed = subprocess.run(
        ["clang-tidy", f"--config-file={root / _CONFIG}", "--list-checks"],
        cwd=root,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    )
    runs = set(_CHECK_NAME.findall(listed.stdout))
    complaints = [f"{_CONFIG}: clang-tidy does not run {name}" for name in sorted(asked - runs)]
    complaints += [f"{_CONFIG}: clang-tidy runs {name} unasked" for name in sorted(runs - asked)]
    return complaints if asked else [f"{_CONFIG}: names no check"]


class Linter:
    """clang-tidy with the configuration of `root`, run in `root`. Remembers in `cache` what was clean."""

    def __init__(self, root: pathlib.Path, cache: pathlib.Path | None = None) -> None:
        self._root = root
        self._clean = clean.Clean(root, cache, (root / _CONFIG).read_bytes()) if cache else None

    def check(
        self, source: str, command: list[str], overlay: pathlib.Path | None = None
    ) -> list[str]:
        """Returns the complaints about `source`; `overlay` puts other text in the place of files."""
        options = compile_commands.options(command)

        def look() -> list[str]:
            run = ["clang-tidy", f"--config-file={self._root / _CONFIG}", "--quiet"]
            run += [f"--vfsoverlay={overlay}"] if overlay else []
            printed = tools.run([*run, source, "--", *options], self._root)
            return [line for line in printed if "error:" in line] or printed

        if overlay or not self._clean:
            return look()
        return self._clean.check(source, options, look)


def planted(linter: Linter, root: pathlib.Path, source: str, command: list[str]) -> list[str]:
    """Returns complaints unless `linter` finds a fault in `source` and one in its own header."""
    header = source.removesuffix(".cc") + ".h"
    folder = root / "out" / "tidy"
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for path, kind in ((source, "Source"), (header, "Header")):
        copy = folder / f"planted_{pathlib.Path(path).name}"
        copy.write_text((root / path).read_text() + _FAULT % (kind, kind))
        files.append({"type": "file", "name": str(root / path), "external-contents": str(copy)})
    overlay = folder / "planted.yaml"
    overlay.write_text(json.dumps({"version": 0, "use-external-names": False, "roots": files}))
    found = linter.check(source, command, overlay)
    return [
        f"{path}: clang-tidy does not find the fault planted there"
        for path, kind in ((source, "Source"), (header, "Header"))
        if not any(path in line and "google-explicit-constructor" in line for line in found)
    ]


def _one_of_each_folder(root: pathlib.Path, commands: compile_commands.Commands) -> list[str]:
    """Returns the first source of each top-level folder that has a header of its own."""
    chosen: dict[str, str] = {}
    for source in sorted(commands):
        if (root / source).with_suffix(".h").is_file():
            chosen.setdefault(source.split("/", 1)[0], source)
    return list(chosen.values())


def check(
    root: pathlib.Path, commands: compile_commands.Commands, cache: pathlib.Path
) -> list[str]:
    """Checks each source of `commands`, once it is proven that what is wrong in one would be found."""
    to_plant_in = _one_of_each_folder(root, commands)
    if not to_plant_in:
        return ["clang-tidy has no source to check that has a header"]
    linter = Linter(root, cache)
    complaints = unknown_checks(root)
    for source in to_plant_in:
        complaints += planted(linter, root, source, commands[source])

    return complaints + tools.over_all(
        sorted(commands), lambda source: linter.check(source, commands[source])
    )
