"""No two modules of one name on the path that one run of pytest searches: the later would silently get the earlier one.

That path is pytest.ini's `pythonpath` and every folder of the repository that a file under tests/ puts on `sys.path`.
pytest finds test files and conftest.py by themselves (import-mode importlib), so those may share a name.
"""

import ast
import collections
import configparser
import os.path
import pathlib
import sys
import types
from collections.abc import Iterator

import tree

_PYTEST_INI = "tests/pytest.ini"
_ROOT = pathlib.PurePosixPath("/repository")
_PATH_METHODS = {"insert", "append", "extend"}


class _Path(pathlib.PurePosixPath):
    """A path that touches no disk."""

    def resolve(self) -> "_Path":
        return self


def _value(expression: ast.expr, names: dict[str, object]) -> object:
    """Returns what `expression` is at run time, or None if that cannot be told from paths and constants."""
    known = {"__builtins__": {}, "pathlib": types.SimpleNamespace(Path=_Path), "str": str, **names}
    try:
        return eval(compile(ast.Expression(expression), "expression", "eval"), known)
    except Exception:  # noqa: BLE001 - any expression may stand there; one that needs more is none of a path's.
        return None


def _is_sys_path(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.path"


def _put_on_path(node: ast.AST) -> list[ast.expr]:
    """Returns the expressions that `node` puts on sys.path."""
    if isinstance(node, ast.Assign):
        target = node.targets[0]
        if isinstance(target, ast.Subscript):
            target = target.value
        return [node.value] if _is_sys_path(target) else []
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
        return []
    if node.func.attr == "syspath_prepend":
        return [node.args[0]]
    named = node.func.attr in _PATH_METHODS and _is_sys_path(node.func.value)
    return [node.args[-1]] if named else []


def _inserted_folders(path: str, text: str) -> Iterator[str]:
    names: dict[str, object] = {"__file__": str(_ROOT / path)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names[node.targets[0].id] = _value(node.value, names)
        for expression in _put_on_path(node):
            # A list may hold entries that only the running program knows, beside those that are known here.
            entries = expression.elts if isinstance(expression, ast.List) else [expression]
            for entry in entries:
                folder = _value(entry, names)
                if folder and pathlib.PurePosixPath(str(folder)).is_relative_to(_ROOT):
                    yield str(pathlib.PurePosixPath(str(folder)).relative_to(_ROOT))


def searched_folders(files: tree.Tree) -> list[str]:
    """Returns the folders that one run of pytest searches for modules, relative to the root, "." for the root."""
    ini = configparser.ConfigParser()
    ini.read_string(files[_PYTEST_INI])
    entries = ini["pytest"]["pythonpath"].split()
    folders = {os.path.normpath(os.path.join("tests", entry)) for entry in entries}
    for path, text in files.items():
        if path.startswith("tests/") and path.endswith(".py"):
            folders.update(_inserted_folders(path, text))
    return sorted(folders)


def _modules(files: tree.Tree, folders: list[str]) -> dict[str, list[str]]:
    """Returns module -> the files that have its name, among `folders`."""
    found = collections.defaultdict(list)
    for path in sorted(files):
        folder, name = os.path.split(path)
        if name == "__init__.py":
            folder, module = os.path.split(folder)
        elif name.endswith(".py") and not name.startswith("test_") and name != "conftest.py":
            module = name.removesuffix(".py")
        else:
            continue
        if (folder or ".") in folders:
            found[module].append(path)
    return found


def check(files: tree.Tree) -> list[str]:
    complaints = []
    for module, paths in _modules(files, searched_folders(files)).items():
        if module in sys.stdlib_module_names:
            complaints.append(f"{paths[0]}:1: hides Python's own module {module}")
        complaints += [
            f"{path}:1: module {module} is also {paths[0]}, and both folders are on one path"
            for path in paths[1:]
        ]
    return complaints


if __name__ == "__main__":
    tree.run(check)
