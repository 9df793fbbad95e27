"""``transformer_engine.jax.flax.module``: a Flax module that hands out sets of quantisers. Needs Flax."""

from typing import Any

from flax import linen

from epd.jax._transformer_engine.quantize import QuantizerSet, noop_quantizer_set, refused


class TransformerEngineBase(linen.Module):
    """A linen module without state of its own."""

    def generate_quantizer_set(
        self,
        postfix: str = "",
        variable_collection: str | None = None,
        quantization_checkpoint_name: str | None = None,
        fp8_recipe: Any = None,
        n_groups: int | None = None,
    ) -> QuantizerSet:
        """The set that does nothing.

        Raises:
            NotImplementedError: an ``fp8_recipe``.
        """
        del postfix, variable_collection, quantization_checkpoint_name, n_groups
        if fp8_recipe is not None:
            raise refused(f"generate_quantizer_set(fp8_recipe={type(fp8_recipe).__name__})")
        return noop_quantizer_set
