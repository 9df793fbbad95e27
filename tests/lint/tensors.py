"""Arrays that epd makes say their dtype, and torch's their device: a program may have set another default of either.

``torch.set_default_dtype``, ``torch.device`` as a context, JAX's x64. What is made like a given array (``new_empty``, ``zeros_like``,
``asarray`` of a name) takes both from it. A function that makes arrays is known by whatever name it was imported or assigned to; it is only
called, since what is handed on is called where nobody looks.
"""

import ast
from collections.abc import Iterator

import tree

_TORCH = "client/python/epd/torch/"
_JAX = "client/python/epd/jax/"
# Functions that make an array of nothing but sizes and Python's numbers.
_OF_TORCH = {
    *("empty", "zeros", "ones", "full", "tensor", "scalar_tensor", "as_tensor", "asarray"),
    *("arange", "range", "linspace", "logspace", "eye", "rand", "randn", "randint", "randperm"),
    *("normal", "empty_strided", "empty_permuted", "tril_indices", "triu_indices", "complex"),
}
# torch.Tensor(2), torch.FloatTensor(2): of the default dtype, or of the CPU whatever a context says.
_CLASSES = "Tensor"
# The same of JAX -> the position of dtype among their arguments.
_OF_JAX = {
    **{f"jax.numpy.{name}": 1 for name in ("zeros", "ones", "empty", "identity", "indices")},
    **{f"jax.numpy.{name}": 3 for name in ("arange", "eye", "tri")},
    **{f"jax.numpy.{name}": 5 for name in ("linspace", "logspace", "geomspace")},
    **{f"jax.random.{name}": 2 for name in ("normal", "uniform", "truncated_normal", "gumbel")},
    **{"jax.numpy.full": 2, "jax.lax.full": 2, "jax.nn.one_hot": 2, "jax.random.bits": 2},
}
# What takes the dtype of an array, and a default for Python's numbers.
_LIKE_ITS_ARGUMENT = {"jax.numpy.array": 1, "jax.numpy.asarray": 1}
_NUMBERS = (
    *(ast.Constant, ast.List, ast.Tuple, ast.ListComp, ast.GeneratorExp),
    *(ast.UnaryOp, ast.BinOp),
)


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Names and what they stand for, with all modules before it."""
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            yield alias.asname or alias.name, f"{node.module or ''}.{alias.name}"
        else:
            yield (alias.asname, alias.name) if alias.asname else (alias.name.split(".")[0],) * 2


class _File:
    """What the names of a file stand for, wherever in it they were given."""

    def __init__(self, text: str):
        self.nodes = list(ast.walk(ast.parse(text)))
        self._names: dict[str, str] = {}
        self._aliased: set[ast.expr] = set()  # What assignments give another name.
        for node in self.nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._names.update(_imported(node))
        for node in self.nodes:
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
                continue
            if meaning := self.meaning(node.value):
                self._names[node.targets[0].id] = meaning
                self._aliased.add(node.value)

    def meaning(self, node: ast.expr) -> str:
        """``torch.zeros`` of whatever stands for it; "" of what comes from no module."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, "")
        if isinstance(node, ast.Attribute) and (module := self.meaning(node.value)):
            return f"{module}.{node.attr}"
        return ""

    def handed_on(self) -> Iterator[tuple[ast.expr, str]]:
        """What stands for something of a module, and is neither called nor given another name."""
        used = self._aliased | {node.func for node in self.nodes if isinstance(node, ast.Call)}
        for node in self.nodes:
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                if node not in used and (meaning := self.meaning(node)):
                    yield node, meaning


def _missing(call: ast.Call, meaning: str, path: str) -> list[str]:
    """What the call does not say."""
    said = {keyword.arg for keyword in call.keywords}
    module, _, name = meaning.rpartition(".")
    if path.startswith(_TORCH) and module == "torch":
        if name.endswith(_CLASSES):
            return ["dtype", "device"]
        return [one for one in ("dtype", "device") if name in _OF_TORCH and one not in said]
    if not path.startswith(_JAX):
        return []
    position = _OF_JAX.get(meaning)
    if position is None and call.args and isinstance(call.args[0], _NUMBERS):
        position = _LIKE_ITS_ARGUMENT.get(meaning)
    return [] if position is None or "dtype" in said or len(call.args) > position else ["dtype"]


def _makes(meaning: str, path: str) -> bool:
    module, _, name = meaning.rpartition(".")
    return meaning in _OF_JAX if path.startswith(_JAX) else module == "torch" and name in _OF_TORCH


def _complaints(path: str, text: str) -> Iterator[str]:
    file = _File(text)
    for node in file.nodes:
        if isinstance(node, ast.Call):
            if missing := " and ".join(_missing(node, file.meaning(node.func), path)):
                yield f"{path}:{node.lineno}: {ast.unparse(node.func)} without {missing}: a program may have set another default"
        elif isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            yield f"{path}:{node.lineno}: from {node.module} import *: name what is imported, else nobody sees which calls make arrays"
    for node, meaning in file.handed_on():
        if _makes(meaning, path):
            yield f"{path}:{node.lineno}: {ast.unparse(node)} is handed on, not called: nobody sees whether its calls say their dtype"


def check(files: tree.Tree) -> list[str]:
    return [
        complaint
        for path, text in files.items()
        if path.endswith(".py") and path.startswith((_TORCH, _JAX))
        for complaint in _complaints(path, text)
    ]


if __name__ == "__main__":
    tree.run(check)
