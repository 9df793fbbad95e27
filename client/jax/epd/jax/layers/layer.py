"""moe: a mixture-of-experts layer as a plain function of its parameters and tokens."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from epd.jax._call import layout_for
from epd.jax.combine import checked_combine
from epd.jax.config import EpLayerConfig, GroupSpec, bootstrapped
from epd.jax.dispatch import checked_dispatch
from epd.jax.group import Group
from epd.jax.layers import _shard, parameters
from epd.jax.layers._shards import Shards, shards_of
from epd.jax.layers.config import MoeConfig
from epd.jax.mesh import Layout


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MoeAux:
    """What a layer says of itself, a row per rank, so that nothing is communicated which nobody reads.

    ``loss`` float32 ``[R]``: the configured losses times their coefficients; add ``loss.mean()`` to yours. ``balance_loss``
    and ``z_loss`` float32 ``[R]``: the same before the coefficients, zeros where both of those are 0. ``load`` int32
    ``[R, E]``: routes that the rank's tokens took to each expert. ``demand`` int32 ``[R]``: receive slots that the rank needed, padding
    included; more than ``capacity`` (static) means that routes were dropped.
    """

    loss: jax.Array
    balance_loss: jax.Array
    z_loss: jax.Array
    load: jax.Array
    demand: jax.Array
    capacity: int = field(metadata={"static": True})


def recv_capacity(config: MoeConfig, tokens_per_rank: int, ep_size: int, dtype) -> int:
    """Receive slots of a rank that are enough for any routing: what to give to ep_bootstrap. All arguments are static.

    Args:
        config: the layer; ``recv_capacity``, where it is set, is the answer.
        tokens_per_rank: of one call.
        ep_size: ranks of a domain.
        dtype: of the tokens.
    """
    if config.recv_capacity is not None:
        return config.recv_capacity
    local = config.router.num_experts // ep_size
    padding = local * (max(1, config.alignment_for(dtype)) - 1)
    # The experts of a token differ, so at most min(K, local) of them are on one rank.
    return max(1, ep_size * tokens_per_rank * min(config.router.top_k, local) + padding)


def _check(
    config: MoeConfig, params, tokens, token_mask, layout: Layout, group: GroupSpec
) -> Shards:
    """ValueError with all that does not fit."""
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
        wrong += _wrong_split(config, shards)
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
    if group.ranks_here is not None and _shard.wants_losses(config):
        if config.router.balance_over == "global":
            wrong.append(
                "balance_over is 'global', but the group was joined by rank, so no mesh spans it; use 'rank' or 'sequence'"
            )
    return wrong


def _wrong_split(config: MoeConfig, shards: Shards) -> list[str]:
    parts = shards.axis_size(shards.mlp)
    return [
        f"config.{name} {size} is not a multiple of the {parts} devices of axis {shards.mlp!r}"
        for name, size in (("ffn_dim", config.ffn_dim), ("shared_ffn_dim", config.shared_ffn_dim))
        if size % parts
    ]


def _wrong_parameters(config: MoeConfig, params, shards: Shards) -> list[str]:
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


def _losses(config: MoeConfig, shards: Shards, routed: _shard.Routed):
    """-> loss, balance loss, z loss, each [R]."""
    if not _shard.wants_losses(config):
        return (jnp.zeros_like(routed.load[:, 0], jnp.float32),) * 3
    over_all = config.router.balance_over == "global"
    return shards.run(
        functools.partial(_shard.losses, config, shards.num_carriers),
        (shards.tokens, PartitionSpec()),
        shards.tokens,
        routed.statistics,
        shards.total(routed.load) if over_all else None,
    )


def moe(
    config: MoeConfig,
    params: parameters.Parameters,
    tokens: jax.Array,
    token_mask: jax.Array | None = None,
    *,
    group: Group | None = None,
    name: str | None = None,
) -> tuple[jax.Array, MoeAux]:
    """Routes tokens to experts on all ranks of the domain and sums what they make of them. Collective; differentiable.

    The router and the products with scores are in float32, matrices and rows in the tokens' dtype with sums in float32.
    Forward, XLA communicates nothing but, with a global balance loss, the load of the experts (E integers); backward, the
    gradients of parameters that several ranks hold, over those; with ``axes.mlp`` the rows of split experts, over that axis.
    For policies of ``jax.checkpoint`` the received rows and the layer's result are named "epd_recv" and "epd_moe".

    Args:
        config: static; see MoeConfig.
        params: arrays of ``init_moe``'s shapes, traced; experts split over ep (``partition_specs``), all else on every
            rank. Inside a shard_map of the caller's that is manual over ep, the rank's own experts.
        tokens: float32, bfloat16 or float16 ``[leading, H]``, traced; the first dimension is split over the ranks.
        token_mask: bool ``[leading]``, traced, or None; tokens where it is False (padding of sequences) go to no routed
            expert and count in no loss.
        group: static; None: the default group, of ep_bootstrap.
        name: static; by which ranks of different programs meet, see Group. Once per program.

    Returns:
        ``[leading, H]`` in the tokens' dtype, and a MoeAux.

    Raises:
        RuntimeError: not bootstrapped.
        TypeError: ``config`` is no MoeConfig, ``group`` no Group.
        ValueError: while tracing, sizes, shapes, dtypes and names of axes that do not fit, each with got and wanted; no mesh.
        At run time, on every rank, what ep_dispatch and ep_combine raise.
    """
    if not isinstance(config, MoeConfig):
        raise TypeError(f"moe: config must be a MoeConfig, got {type(config).__name__}")
    if not isinstance(group, Group | None):
        raise TypeError(f"moe: group must be a Group or None, got {type(group).__name__}")
    spec, tokens = bootstrapped() if group is None else group.spec, jnp.asarray(tokens)
    token_mask = None if token_mask is None else jnp.asarray(token_mask)
    layout = layout_for(spec, tokens)
    shards = _check(config, params, tokens, token_mask, layout, spec)
    sizes, leading = spec.config, tokens.shape[:-1]
    params = {part: dict(named) for part, named in params.items()}
    layer = EpLayerConfig(config.router.top_k, config.alignment_for(tokens.dtype))
    enough = recv_capacity(
        config, math.prod(leading) // layout.num_shards, sizes.ep_size, tokens.dtype
    )
    capacity = enough if config.recv_capacity else min(enough, sizes.recv_capacity_per_rank)

    shapes = parameters.shapes(config)
    specs = jax.tree.map(shards.spec, shapes, is_leaf=lambda n: isinstance(n, parameters.Shape))
    routed = shards.run(
        functools.partial(_shard.route_tokens, config),
        (specs["router"], shards.tokens, shards.tokens),
        shards.tokens,
        params["router"],
        tokens,
        token_mask,
    )
    recv, weights, handle, counts, total = checked_dispatch(
        spec, "moe", layer, routed.chosen, tokens, routed.weights, capacity, name
    )
    rows = shards.run(
        functools.partial(_shard.apply_experts, config, shards),
        (specs["experts"], shards.tokens, shards.tokens, shards.tokens),
        shards.tokens,
        params["experts"],
        checkpoint_name(recv, "epd_recv"),
        weights,
        counts,
    )
    out = checked_combine(spec, "moe", layer, handle, rows, leading, None, name)
    if config.shared_ffn_dim:
        out = shards.run(
            functools.partial(_shard.add_shared_experts, config, shards),
            (specs["shared"], shards.tokens, shards.tokens),
            shards.tokens,
            params["shared"],
            tokens,
            out,
        )
    loss, balance, z = _losses(config, shards, routed)
    aux = MoeAux(loss, balance, z, routed.load, demand=total[:, 0], capacity=capacity)
    return checkpoint_name(out, "epd_moe"), aux
