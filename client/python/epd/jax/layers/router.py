"""The router: from logits to experts, weights and losses. Plain functions of one shard; ``moe`` maps them over the mesh."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from epd.jax._checks import of_kind
from epd.jax.layers.config import RouterConfig


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Routing:
    """``chosen`` int32 ``[.., K]``, -1 for a masked token; ``weights`` float32 ``[.., K]``; ``shares`` float32 ``[.., E]``, of
    each expert its score over the sum of all scores."""

    chosen: jax.Array
    weights: jax.Array
    shares: jax.Array


def _scores(config: RouterConfig, logits: jax.Array) -> jax.Array:
    if config.scoring == "softmax":
        return jax.nn.softmax(logits)
    if config.scoring == "sigmoid":
        return jax.nn.sigmoid(logits)
    return jnp.exp(
        _log_scores(config, logits)
    )  # The root of a softplus that underflows has no gradient.


def _log_scores(config: RouterConfig, logits: jax.Array) -> jax.Array:
    """Up to a constant per token, which no quotient of scores sees."""
    if config.scoring == "softmax":
        return logits
    if config.scoring == "sigmoid":
        return jax.nn.log_sigmoid(logits)
    # Below -16 the softplus is the exponential, to float32's last bit.
    inner = jnp.log(jax.nn.softplus(jnp.maximum(logits, -16.0)))
    return 0.5 * jnp.where(logits < -16.0, logits, inner)


def _within_groups(config: RouterConfig, scores: jax.Array) -> jax.Array:
    """``scores``, -inf outside of the groups that the token may use."""
    size = config.num_experts // config.num_groups
    grouped = scores.reshape(*scores.shape[:-1], config.num_groups, size)
    best = 1 if config.group_score == "max" else 2
    of_groups = jax.lax.top_k(grouped, best)[0].sum(-1)
    kept = jax.lax.top_k(of_groups, config.groups_kept)[1]
    allowed = jax.nn.one_hot(kept, config.num_groups, dtype=bool).any(-2)
    return jnp.where(allowed[..., None], grouped, -jnp.inf).reshape(scores.shape)


def _choose(config: RouterConfig, logits: jax.Array, selection_bias: jax.Array | None) -> jax.Array:
    # Logits order the experts as scores do, and still tell them apart where scores underflow.
    need_scores = selection_bias is not None or (
        config.num_groups > 1 and config.group_score == "top2"
    )
    ranked = _scores(config, logits) if need_scores else logits
    if selection_bias is not None:
        ranked = ranked + jnp.broadcast_to(selection_bias.astype(jnp.float32), ranked.shape)
    if config.groups_kept < config.num_groups:
        ranked = _within_groups(config, ranked)
    return jax.lax.top_k(jax.lax.stop_gradient(ranked), config.top_k)[1].astype(jnp.int32)


def _check(
    config: RouterConfig,
    logits: jax.Array,
    selection_bias: jax.Array | None,
    token_mask: jax.Array | None,
) -> None:
    experts, wrong = config.num_experts, []
    if logits.ndim < 1 or logits.shape[-1] != experts:
        wrong.append(f"logits have shape {list(logits.shape)}, expected [..., {experts}]")
    if not jnp.issubdtype(logits.dtype, jnp.floating):
        wrong.append(f"logits have dtype {logits.dtype}, expected a floating one")
    if selection_bias is not None and selection_bias.shape != (experts,):
        wrong.append(f"selection_bias has shape {list(selection_bias.shape)}, expected [{experts}]")
    leading = logits.shape[:-1]
    if token_mask is not None and (token_mask.shape != leading or token_mask.dtype != bool):
        wrong.append(
            f"token_mask is {token_mask.dtype}{list(token_mask.shape)}, expected bool{list(leading)}"
        )
    if wrong:
        raise ValueError("route: " + "; ".join(wrong))


def route(
    config: RouterConfig,
    logits: jax.Array,
    selection_bias: jax.Array | None = None,
    token_mask: jax.Array | None = None,
) -> Routing:
    """Chooses experts and weighs them. No communication; differentiable in ``logits`` alone.

    Call it inside a ``shard_map``: XLA gathers the whole operand of ``top_k`` otherwise.

    Args:
        config: static.
        logits: floating ``[.., E]``, traced; taken as float32.
        selection_bias: floating ``[E]``, traced, or None; added to the scores for the choice alone.
        token_mask: bool ``[..]``, traced, or None; tokens where it is False go nowhere.

    Returns:
        Routing. Neither values nor gradients are NaN while the logits are finite, also when all scores underflow.

    Raises:
        TypeError: ``config`` is no RouterConfig.
        ValueError: while tracing, shapes and dtypes that do not fit; all of them in one error.
    """
    of_kind("route", "config", config, RouterConfig)
    _check(config, logits, selection_bias, token_mask)
    logits = logits.astype(jnp.float32)
    chosen = _choose(config, logits, selection_bias)
    log_scores = _log_scores(config, logits)
    if config.normalize:
        # s / sum(s) is a softmax of log(s): nothing is divided by a sum that may be 0.
        weights = jax.nn.softmax(jnp.take_along_axis(log_scores, chosen, axis=-1))
    else:
        weights = jnp.take_along_axis(_scores(config, logits), chosen, axis=-1)
    weights = weights * config.scale
    if token_mask is not None:
        live = token_mask[..., None]
        chosen, weights = jnp.where(live, chosen, -1), jnp.where(live, weights, 0)
    return Routing(chosen, weights, jax.nn.softmax(log_scores))


def loads(config: RouterConfig, chosen: jax.Array) -> jax.Array:
    """Routes of each expert, int32 ``[.., E]``, of ``chosen`` int32 ``[.., T, K]``."""
    is_route = jax.nn.one_hot(chosen, config.num_experts, dtype=bool)  # -1 is none.
    return is_route.sum((-3, -2), dtype=jnp.int32)


def balance_loss(load: jax.Array, shares_sum: jax.Array, num_tokens: jax.Array) -> jax.Array:
    """``E * sum_e f_e P_e``: 1 for an even load, more for an uneven one, 0 without tokens.

    Args:
        load: int ``[.., E]``, routes of each expert.
        shares_sum: float32 ``[.., E]``, ``Routing.shares`` summed over the tokens.
        num_tokens: ``[..]``, tokens summed over.
    """
    load = load.astype(jnp.float32)
    parts = load / jnp.maximum(load.sum(-1, keepdims=True), 1)
    means = shares_sum / jnp.maximum(num_tokens.astype(jnp.float32), 1e-9)[..., None]
    return load.shape[-1] * jnp.sum(parts * means, axis=-1)


def updated_selection_bias(bias: jax.Array, load: jax.Array, rate: float) -> jax.Array:
    """Balances without a loss: raises the bias of experts with less than the mean load, lowers it for the others.

    Call it after an optimizer's step, on the load of all ranks.

    Args:
        bias: float32 ``[E]``, traced.
        load: ``[E]``, traced; ``MoeAux.load.sum(0)``.
        rate: what to add or subtract.

    Returns:
        float32 ``[E]``.

    Raises:
        ValueError: shapes that differ.
    """
    if bias.shape != load.shape:
        raise ValueError(
            f"updated_selection_bias: load has shape {list(load.shape)}, expected bias's {list(bias.shape)};"
            " sum MoeAux.load over its first dimension"
        )
    bias, load = bias.astype(jnp.float32), load.astype(jnp.float32)
    return bias + jnp.asarray(rate, jnp.float32) * jnp.sign(load.mean() - load)
