"""Runs clang-tidy over the C++ sources of the product, and proves each time that it can fail.

clang-tidy looks for its configuration above a source file, and finds nothing to complain about where there is none. So the
configuration is named to it, and before a run counts, the same function must complain about faults planted in a
real source and a real header of the tree.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess

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
        self._cache = cache
        self._config = (root / _CONFIG).read_bytes()

    def check(
        self, source: str, command: list[str], overlay: pathlib.Path | None = None
    ) -> list[str]:
        """Returns the complaints about `source`; `overlay` puts other text in the place of files."""
        options = compile_commands.options(command)
        stamp = None if overlay else self._stamp(source, options)
        if stamp and stamp.exists():
            return []
        run = ["clang-tidy", f"--config-file={self._root / _CONFIG}", "--quiet"]
        run += [f"--vfsoverlay={overlay}"] if overlay else []
        printed = tools.run([*run, source, "--", *options], self._root)
        if stamp and not printed:
            stamp.parent.mkdir(parents=True, exist_ok=True)
            stamp.touch()
        return [line for line in printed if "error:" in line] or printed

    def _stamp(self, source: str, options: list[str]) -> pathlib.Path | None:
        """Returns the file that says that what the compiler sees of `source`, comments too, was clean."""
        if self._cache is None:
            return None
        text = subprocess.run(
            ["clang++", "-E", "-C", *options, source],
            cwd=self._root,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        if text.returncode != 0:
            return None
        return self._cache / hashlib.sha256(self._config + text.stdout).hexdigest()


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


def check(root: pathlib.Path, commands: compile_commands.Commands) -> list[str]:
    """Checks each source of `commands`, once it is proven that what is wrong in one would be found."""
    to_plant_in = _one_of_each_folder(root, commands)
    if not to_plant_in:
        return ["clang-tidy has no source to check that has a header"]
    linter = Linter(root, root / "out" / "tidy")
    complaints = unknown_checks(root)
    for source in to_plant_in:
        complaints += planted(linter, root, source, commands[source])

    def one(source: str) -> list[str]:
        return linter.check(source, commands[source])

    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        found = {line for lines in pool.map(one, sorted(commands)) for line in lines}
    return complaints + sorted(found)
