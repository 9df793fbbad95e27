"""Arrays that epd makes say their dtype, and torch's their device: a program may have set another default of either.

``torch.set_default_dtype``, ``torch.device`` as a context, JAX's x64. What is made like a given array (``new_empty``, ``zeros_like``)
takes both from it.
"""

import ast

import tree

_TORCH = "client/python/epd/torch/"
_JAX = "client/python/epd/jax/"
# Functions that make an array of nothing but sizes and Python's numbers -> the position of dtype among their arguments.
_OF_TORCH = {
    *(
        "empty",
        "zeros",
        "ones",
        "full",
        "tensor",
        "scalar_tensor",
        "as_tensor",
        "asarray",
        "arange",
    ),
    *("range", "linspace", "logspace", "eye", "rand", "randn", "randint", "randperm", "normal"),
    *("empty_strided", "empty_permuted", "tril_indices", "triu_indices", "complex"),
}
_OF_JAX = {"zeros": 1, "ones": 1, "empty": 1, "full": 2, "arange": 3, "eye": 3, "linspace": 5}
# torch.Tensor(2), torch.FloatTensor(2): of the default dtype, or of the CPU whatever a context says.
_CLASSES = "Tensor"


def _missing(call: ast.Call, path: str) -> list[str]:
    """What the call does not say."""
    function = call.func
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return []
    module, name = function.value.id, function.attr
    said = {keyword.arg for keyword in call.keywords}
    if path.startswith(_TORCH) and module == "torch":
        if name.endswith(_CLASSES):
            return ["dtype", "device"]
        return [one for one in ("dtype", "device") if name in _OF_TORCH and one not in said]
    if path.startswith(_JAX) and module == "jnp" and name in _OF_JAX:
        return [] if "dtype" in said or len(call.args) > _OF_JAX[name] else ["dtype"]
    return []


def check(files: tree.Tree) -> list[str]:
    complaints = []
    for path, text in files.items():
        if not path.endswith(".py") or not path.startswith((_TORCH, _JAX)):
            continue
        calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
        for call in calls:
            if missing := " and ".join(_missing(call, path)):
                complaints.append(
                    f"{path}:{call.lineno}: {ast.unparse(call.func)} without {missing}: a program may have set another default"
                )
    return complaints


if __name__ == "__main__":
    tree.run(check)
