"""Moe as a module of flax.nnx."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from epd.jax._checks import of_kind
from epd.jax.group import Group
from epd.jax.layers import parameters
from epd.jax.layers.config import MoeConfig, floating
from epd.jax.layers.layer import MoeAux, moe

try:
    from flax import nnx
except ImportError as error:
    raise ImportError(
        "epd.jax.layers.nnx needs Flax: pip install flax, or use epd.jax.layers.moe, the same layer as a function"
    ) from error


class RouterState(nnx.Variable[jax.Array]):
    """State of a router that no gradient moves: ``selection_bias``; see ``updated_selection_bias``."""


class Moe(nnx.Module):
    """``epd.jax.layers.moe`` with parameters of its own::

        layer = Moe(config, rngs=nnx.Rngs(0))
        out, aux = layer(tokens)

    ``router``, ``experts`` and ``shared`` hold ``init_moe``'s arrays as nnx.Param with the names of their dimensions
    (``config.axes``; ``nnx.get_partition_spec`` shows them), by which Flax places them where a mesh is active;
    ``router["selection_bias"]`` is a RouterState. In a job of several processes make it inside ``nnx.jit``.

    Args:
        config: static; see MoeConfig.
        rngs: its stream "params" draws the parameters.
        param_dtype: of the parameters.
        group: static; None: the default group.

    Raises:
        TypeError: an argument of another type.
        ValueError: a dtype that is not floating; no ep_resource, see ``partition_specs``.
    """

    def __init__(
        self,
        config: MoeConfig,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
        group: Group | None = None,
    ):
        of_kind("Moe", "rngs", rngs, nnx.Rngs)
        floating("Moe", "param_dtype", param_dtype)
        self.config, self.group = config, group
        names = parameters.names(config, group)
        rules: dict[str, Any] = {"sharding_rules": config.axes.rules} if config.axes.rules else {}

        def variable(
            name: str, array: jax.Array, dims: tuple[str | None, ...]
        ) -> nnx.Variable[jax.Array]:
            kind = RouterState if name == "selection_bias" else nnx.Param
            return kind(array, out_sharding=dims, **rules)

        for part, arrays in parameters.init_moe(config, rngs.params(), param_dtype).items():
            held = {name: variable(name, a, names[part][name]) for name, a in arrays.items()}
            setattr(self, part, nnx.Dict(held))

    def __call__(
        self, tokens: jax.Array, token_mask: jax.Array | None = None
    ) -> tuple[jax.Array, MoeAux]:
        """Arguments, results and errors as ``moe``'s; collective."""
        parts = (
            ("router", "experts", "shared") if self.config.shared_ffn_dim else ("router", "experts")
        )
        params = {
            part: {name: variable[...] for name, variable in getattr(self, part).items()}
            for part in parts
        }
        return moe(self.config, params, tokens, token_mask, group=self.group)
