"""Moe as a module of flax.linen."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from epd.jax._checks import of_kind
from epd.jax.group import Group
from epd.jax.layers import parameters
from epd.jax.layers.config import MoeConfig, floating
from epd.jax.layers.layer import MoeAux, moe

try:
    from flax import linen as nn
except ImportError as error:
    raise ImportError(
        "epd.jax.layers.linen needs Flax: pip install flax, or use epd.jax.layers.moe, the same layer as a function"
    ) from error


class Moe(nn.Module):
    """``epd.jax.layers.moe`` with parameters of its own::

        layer = Moe(config)
        variables = layer.init(key, tokens)
        out, aux = layer.apply(variables, tokens)

    Collection "params" holds ``init_moe``'s tree, each array boxed with the names of its dimensions (``nn.get_partition_spec``
    shows them): logical where ``config.axes`` or ``nn.logical_axis_rules`` has rules, else mesh axes. ``selection_bias`` is in
    the collection "router_state", where no optimizer meets it; see ``updated_selection_bias``.

    Args:
        config: static; see MoeConfig. Without rules of its own it takes those of an enclosing ``nn.logical_axis_rules``.
        param_dtype: of the parameters.
        group: static; None: the default group.

    Raises:
        As ``moe``, and for a ``param_dtype`` that is not floating, when it is called; both ``init`` and ``apply`` run the layer, so all ranks must call them.
    """

    config: MoeConfig
    param_dtype: Any = jnp.float32
    group: Group | None = None

    @nn.compact
    def __call__(
        self, tokens: jax.Array, token_mask: jax.Array | None = None
    ) -> tuple[jax.Array, MoeAux]:
        """Arguments, results and errors as ``moe``'s."""
        of_kind("Moe", "config", self.config, MoeConfig)
        floating("Moe", "param_dtype", self.param_dtype)
        config = self._config_here()
        names = parameters.names(config, self.group)
        params = {
            part: self.param(part, self._boxed(config, named, names[part]))
            for part, named in _trained(config).items()
        }
        if config.router.selection_bias:
            shape = (config.router.num_experts,)
            bias = self.variable(
                "router_state", "selection_bias", lambda: jnp.zeros(shape, jnp.float32)
            )
            params["router"] = {**params["router"], "selection_bias": bias.value}
        return moe(config, params, tokens, token_mask, group=self.group)

    def _config_here(self) -> MoeConfig:
        axes = self.config.axes
        rules: tuple[Any, ...] = tuple(nn.get_logical_axis_rules())
        if axes.rules or not rules:
            return self.config
        return dataclasses.replace(self.config, axes=dataclasses.replace(axes, rules=rules))

    def _boxed(
        self,
        config: MoeConfig,
        shapes: dict[str, parameters.Shape],
        names: dict[str, tuple[str | None, ...]],
    ) -> Callable[[jax.Array], dict[str, Any]]:
        """Makes one part of the parameters from a key."""
        rules = config.axes.rules

        def box(value: jax.Array, dims: tuple[str | None, ...]) -> nn.Partitioned[jax.Array]:
            if rules:
                return nn.LogicallyPartitioned(value, dims, rules=rules)
            return nn.Partitioned(value, dims)

        def make(key: jax.Array) -> dict[str, Any]:
            keys = dict(zip(shapes, jax.random.split(key, len(shapes)), strict=True))
            return {
                name: box(
                    parameters.initializer(shape)(keys[name], shape.sizes, self.param_dtype),
                    names[name],
                )
                for name, shape in shapes.items()
            }

        return make


def _trained(config: MoeConfig) -> dict[str, dict[str, parameters.Shape]]:
    """The shapes of what an optimizer moves."""
    tree = parameters.shapes(config)
    tree["router"].pop("selection_bias", None)
    return tree
