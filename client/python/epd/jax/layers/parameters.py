"""The parameters of a layer: their names, shapes, where they lie, and how they begin.

``{"router": {"kernel": [H, E], "selection_bias": [E]},
"experts": {"gate": [E, H, F], "up": [E, H, F], "down": [E, F, H], "gate_bias": [E, F], "up_bias": [E, F], "down_bias": [E, H]},
"shared": {"gate": [H, S], "up": [H, S], "down": [S, H], "mix": [H, 1]}}``, with S for ``shared_ffn_dim``; without what the
configuration leaves out.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from epd.jax._checks import of_kind
from epd.jax.group import Group
from epd.jax.layers.config import MoeConfig, floating
from epd.jax.mesh import active_resource

Parameters = dict[str, dict[str, jax.Array]]


@dataclass(frozen=True)
class Shape:
    """One parameter: sizes, and of each dimension its role: "expert", "embed", "mlp", or None."""

    sizes: tuple[int, ...]
    roles: tuple[str | None, ...]

    @property
    def fan_in(self) -> int:
        """Terms of a sum that the matrix makes; 0 for a bias."""
        inner = [s for s, role in zip(self.sizes, self.roles, strict=True) if role != "expert"]
        return inner[-2] if len(inner) > 1 else 0


def shapes(config: MoeConfig) -> dict[str, dict[str, Shape]]:
    """What the layer's parameters look like as a whole. Static."""
    hidden, ffn, shared = config.hidden_dim, config.ffn_dim, config.shared_ffn_dim
    experts = config.router.num_experts
    into = Shape((experts, hidden, ffn), ("expert", "embed", "mlp"))
    tree = {
        "router": {"kernel": Shape((hidden, experts), ("embed", None))},
        "experts": {
            "up": into,
            "down": Shape((experts, ffn, hidden), ("expert", "mlp", "embed")),
        },
    }
    if config.router.selection_bias:
        tree["router"]["selection_bias"] = Shape((experts,), (None,))
    if config.gated:
        tree["experts"]["gate"] = into
    if config.use_bias:
        for name in ("gate", "up") if config.gated else ("up",):
            tree["experts"][f"{name}_bias"] = Shape((experts, ffn), ("expert", "mlp"))
        tree["experts"]["down_bias"] = Shape((experts, hidden), ("expert", None))
    if shared:
        into = Shape((hidden, shared), ("embed", "mlp"))
        tree["shared"] = {"up": into, "down": Shape((shared, hidden), ("mlp", "embed"))}
        if config.gated:
            tree["shared"]["gate"] = into
        if config.shared_gate:
            tree["shared"]["mix"] = Shape((hidden, 1), ("embed", None))
    return tree


def _is_shape(node: object) -> bool:
    return isinstance(node, Shape)


def names(
    config: MoeConfig, group: Group | None = None, function: str = "Moe"
) -> dict[str, dict[str, tuple[str | None, ...]]]:
    """The names of each parameter's dimensions, as ``config.axes`` gives them: logical or of the mesh.

    Raises:
        TypeError: ``config`` is no MoeConfig, ``group`` no Group.
        ValueError: ``config.axes.expert`` is None, the group (None: the default one) has no MeshResource of its own, and
            none with an ep_resource is active.
    """
    axes = of_kind(function, "config", config, MoeConfig).axes
    if group is not None:
        of_kind(function, "group", group, Group)
    by_role = {None: None, "mlp": axes.mlp, "embed": axes.embed}
    own = None if group is None else group.spec.resource
    by_role["expert"] = axes.expert or (own or active_resource()).ep_resource
    return jax.tree.map(
        lambda shape: tuple(by_role[role] for role in shape.roles),
        shapes(config),
        is_leaf=_is_shape,
    )


def partition_specs(
    config: MoeConfig, group: Group | None = None
) -> dict[str, dict[str, PartitionSpec]]:
    """Where the parameters should lie: a PartitionSpec of mesh axes for each.

    Raises:
        ValueError: as ``names``.
    """
    return jax.tree.map(
        lambda dims: PartitionSpec(*map(config.axes.resolve, dims)),
        names(config, group, "partition_specs"),
        is_leaf=lambda node: isinstance(node, tuple),
    )


def initializer(shape: Shape) -> jax.nn.initializers.Initializer:
    """``(key, sizes, dtype) -> array`` as Flax's initializers are: matrices normal with variance 1 / fan-in, biases 0."""
    if not shape.fan_in:
        return jax.nn.initializers.zeros
    return jax.nn.initializers.normal(1 / math.sqrt(shape.fan_in))


def init_moe(config: MoeConfig, key: jax.Array, dtype: DTypeLike = jnp.float32) -> Parameters:
    """Parameters to begin with: matrices normal with variance 1 / fan-in, biases 0.

    Args:
        config: static.
        key: a key of ``jax.random``, traced.
        dtype: static; of all but ``selection_bias``, which is float32. The layer computes in the tokens' dtype, the router
            in float32.

    Returns:
        The tree above. Inside ``jax.jit(..., out_shardings=...)`` with ``partition_specs`` each process makes only its own part.

    Raises:
        TypeError: ``config`` is no MoeConfig, ``key`` no key, ``dtype`` no dtype.
        ValueError: a dtype that is not floating.
    """
    of_kind("init_moe", "config", config, MoeConfig)
    dtype = floating("init_moe", "dtype", dtype)
    keys = iter(jax.random.split(key, len(jax.tree.leaves(shapes(config), is_leaf=_is_shape))))

    def make(name: str, shape: Shape) -> jax.Array:
        wide = name == "selection_bias"
        return initializer(shape)(next(keys), shape.sizes, jnp.float32 if wide else dtype)

    return {
        part: {name: make(name, shape) for name, shape in named.items()}
        for part, named in shapes(config).items()
    }
