"""``transformer_engine.common.recipe``: the recipes' names, so that code may list them. To make one is refused."""

from typing import Any, NoReturn

from epd.jax._transformer_engine.quantize import refused


class Recipe:
    """A recipe for quantisation."""

    def __new__(cls, *arguments: Any, **options: Any) -> NoReturn:
        del arguments, options
        raise refused(f"the recipe {cls.__name__}")


class DelayedScaling(Recipe):
    """Refused."""


class Float8CurrentScaling(Recipe):
    """Refused."""


class MXFP8BlockScaling(Recipe):
    """Refused."""


class NVFP4BlockScaling(Recipe):
    """Refused."""
