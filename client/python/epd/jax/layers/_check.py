"""Checks of a layer's arguments while it is traced: all mismatches of a call, in one ValueError."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from epd.jax.config import GroupSpec
from epd.jax.layers import parameters
from epd.jax.layers._mesh_mapping import Shards, shards_of
from epd.jax.layers.config import MoeConfig
from epd.jax.mesh import Layout


def checked_shards(
    config: MoeConfig,
    params: parameters.Parameters,
    tokens: jax.Array,
    token_mask: jax.Array | None,
    layout: Layout,
    group: GroupSpec,
) -> Shards:
    """How the layer lies on the mesh; ValueError with all that does not fit."""
    shards, wrong = shards_of(config.axes, layout, group.config.ep_size)
    wrong += _wrong_for_group(config, group)
    if tokens.ndim < 2 or tokens.shape[-1] != config.hidden_dim:
        wrong.append(
            f"tokens have shape {list(tokens.shape)}, expected [..., {config.hidden_dim}] with 1 leading dimension or more"
        )
    elif tokens.shape[0] % layout.num_shards:
        wrong.append(
            f"tokens have {tokens.shape[0]} rows in the first dimension, which is not a multiple of the {layout.num_shards} ranks"
        )
    if not jnp.issubdtype(tokens.dtype, jnp.floating):
        wrong.append(f"tokens have dtype {tokens.dtype}, expected a floating one")
    if config.router.balance_over == "sequence" and tokens.ndim < 3:
        wrong.append(
            f"tokens have shape {list(tokens.shape)}, but balance_over 'sequence' needs [B, S, {config.hidden_dim}]"
        )
    if token_mask is not None and (
        token_mask.shape != tokens.shape[:-1] or token_mask.dtype != bool
    ):
        wrong.append(
            f"token_mask is {token_mask.dtype}{list(token_mask.shape)}, expected bool{list(tokens.shape[:-1])}"
        )
    if shards.mlp in layout.axis_names:
        wrong += _wrong_split(config, shards, shards.mlp)
    wrong = wrong or _wrong_parameters(config, params, shards)
    if wrong:
        raise ValueError("moe: " + "; ".join(wrong))
    return shards


def _wrong_for_group(config: MoeConfig, group: GroupSpec) -> list[str]:
    sizes, wrong = group.config, []
    if config.hidden_dim != sizes.hidden_dim:
        wrong.append(
            f"config.hidden_dim is {config.hidden_dim}, but the group's is {sizes.hidden_dim}"
        )
    if config.router.num_experts != sizes.num_experts:
        wrong.append(
            f"config.router.num_experts is {config.router.num_experts}, but the group's is {sizes.num_experts}"
        )
    if group.expert_owner is not None:
        wrong.append(
            "the group has an expert_owner, but the layer splits its parameters into contiguous blocks of experts; make"
            " the group without one"
        )
    over_all = config.wants_losses and config.router.balance_over == "global"
    if group.joined_by_rank and over_all:
        wrong.append(
            "balance_over is 'global', but the group was joined by rank, so no mesh spans it; use 'rank' or 'sequence'"
        )
    return wrong


def _wrong_split(config: MoeConfig, shards: Shards, mlp: str) -> list[str]:
    parts = shards.layout.sizes[mlp]
    return [
        f"config.{name} {size} is not a multiple of the {parts} devices of axis {mlp!r}"
        for name, size in (("ffn_dim", config.ffn_dim), ("shared_ffn_dim", config.shared_ffn_dim))
        if size % parts
    ]


def _wrong_parameters(config: MoeConfig, params: object, shards: Shards) -> list[str]:
    want = {
        (part, name): shards.sizes(shape)
        for part, shapes in parameters.shapes(config).items()
        for name, shape in shapes.items()
    }
    if not isinstance(params, Mapping) or not all(isinstance(p, Mapping) for p in params.values()):
        return [f"params must be a dict of dicts of arrays, got {type(params).__name__}"]
    have = {
        (part, name): np.shape(a) for part, named in params.items() for name, a in named.items()
    }
    wrong = [f"params[{p!r}][{n!r}] is missing" for p, n in want if (p, n) not in have]
    wrong += [f"params[{p!r}][{n!r}] is not of this config" for p, n in have if (p, n) not in want]
    return wrong + [
        f"params[{p!r}][{n!r}] has shape {list(have[p, n])}, expected {list(want[p, n])}"
        for p, n in want
        if (p, n) in have and have[p, n] != want[p, n]
    ]
