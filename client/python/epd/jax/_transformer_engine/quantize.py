"""``transformer_engine.jax.quantize`` without quantisation: the set of quantisers that does nothing, and refusals by name."""

import enum
from dataclasses import dataclass
from typing import Any, NoReturn

REMEDY = "epd quantises nothing; ask for no quantisation, or install transformer_engine"


def refused(what: str) -> NotImplementedError:
    """The error for ``what`` of Transformer Engine, which only exists to quantise."""
    return NotImplementedError(f"epd does not offer {what}: {REMEDY}")


class _OnlyUnscaled(enum.EnumMeta):
    """Names the member that is missing, and what to do."""

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(f"epd does not offer {cls.__name__}.{name}: {REMEDY}")


class ScalingMode(enum.Enum, metaclass=_OnlyUnscaled):
    """How numbers are scaled: not at all."""

    NO_SCALING = "no_scaling"


@dataclass(frozen=True)
class QuantizerSet:
    """The quantisers of a product's operands and gradient, each of which is None here."""

    x: Any = None
    kernel: Any = None
    dgrad: Any = None

    def __post_init__(self) -> None:
        for name in ("x", "kernel", "dgrad"):
            if (quantizer := getattr(self, name)) is not None:
                raise refused(f"QuantizerSet({name}={type(quantizer).__name__})")


noop_quantizer_set = QuantizerSet()


class QuantizerFactory:
    """Makes the set that does nothing."""

    @staticmethod
    def create_set(scaling_mode: Any = None, **options: Any) -> QuantizerSet:
        """``noop_quantizer_set``; the options say how to quantise, which nothing does here.

        Raises:
            NotImplementedError: a ``scaling_mode`` other than None and NO_SCALING.
        """
        del options
        if scaling_mode not in (None, ScalingMode.NO_SCALING):
            raise refused(f"QuantizerFactory.create_set(scaling_mode={scaling_mode!r})")
        return noop_quantizer_set


def check_none(what: str, quantizer_set: Any) -> None:
    """NotImplementedError naming ``what`` if the set quantises."""
    if quantizer_set is not None and not isinstance(quantizer_set, QuantizerSet):
        raise refused(f"{what}={type(quantizer_set).__name__}")
