"""The reference of epd.jax.layers: every expert on every token, in float32 on one device, written down from the formulas.

It shares nothing with the layer but the parameters' names: quotients of scores as in the papers, top-k by sorting, experts
by dense products.
"""

import jax
import jax.numpy as jnp
import numpy as np

_ACTIVATIONS = {"silu": lambda v: v / (1 + jnp.exp(-v)), "relu": lambda v: jnp.maximum(v, 0)}


def _scores(cfg, logits):
    exps = jnp.exp(logits - logits.max(-1, keepdims=True))
    softmax = exps / exps.sum(-1, keepdims=True)
    root = jnp.sqrt(jnp.log(1 + jnp.exp(logits)))
    sigmoid = 1 / (1 + jnp.exp(-logits))
    return {"softmax": softmax, "sigmoid": sigmoid, "sqrtsoftplus": root}[cfg.scoring]


def _best(values, count):
    """bool like ``values``: whether it is among the ``count`` largest of its row."""
    return jnp.argsort(jnp.argsort(-values, -1), -1) < count


def _chosen(cfg, scores, bias):
    """bool [T, E]."""
    size = cfg.num_experts // cfg.num_groups
    ranked = scores + (0 if bias is None else bias[None])
    grouped = jnp.sort(ranked.reshape(-1, cfg.num_groups, size), -1)
    of_groups = grouped[..., -1] if cfg.group_score == "max" else grouped[..., -2:].sum(-1)
    allowed = jnp.repeat(_best(of_groups, cfg.groups_kept), size, axis=1)
    return _best(jnp.where(allowed, ranked, -jnp.inf), cfg.top_k)


def _ffn(config, params, x, into, out_of):
    """``into`` and ``out_of``: the products' formulas."""

    def linear(name):
        out = jnp.einsum(into, x, params[name])
        return out + jnp.broadcast_to(params.get(f"{name}_bias", jnp.float32(0)), out.shape)

    act = _ACTIVATIONS[config.activation]
    inner = act(linear("gate")) * linear("up") if config.gated else act(linear("up"))
    out = jnp.einsum(out_of, inner, params["down"])
    return out + jnp.broadcast_to(params.get("down_bias", jnp.float32(0)), out.shape)


def dense_moe(config, params, tokens, token_mask=None, *, ranks=1):
    """-> out [leading, H], loss (a number). ``ranks`` share the tokens; only ``balance_over`` "rank" looks at them."""
    cfg, leading = config.router, tokens.shape[:-1]
    x = tokens.reshape(-1, config.hidden_dim)
    mask = jnp.ones(len(x), bool) if token_mask is None else token_mask
    live = mask.reshape(-1).astype(jnp.float32)
    logits = x @ params["router"]["kernel"]
    scores = _scores(cfg, logits)
    bias = params["router"].get("selection_bias")
    chosen = _chosen(cfg, *jax.lax.stop_gradient((scores, bias)))
    weights = jnp.where(chosen, scores, 0)
    if cfg.normalize:
        weights = weights / weights.sum(-1, keepdims=True)
    weights = cfg.scale * weights * live[:, None]
    experts = {n: p[:, None] if n.endswith("bias") else p for n, p in params["experts"].items()}
    out = jnp.einsum("te,eth->th", weights, _ffn(config, experts, x, "th,ehf->etf", "etf,efh->eth"))
    if config.shared_ffn_dim:
        rows = _ffn(config, params["shared"], x, "th,hf->tf", "tf,fh->th")
        if config.shared_gate:
            rows = rows / (1 + jnp.exp(-(x @ params["shared"]["mix"])))
        out += rows
    rows = {"sequence": leading[0], "rank": ranks, "global": 1}[cfg.balance_over]
    return out.reshape(*leading, -1), _loss(cfg, rows, logits, scores, chosen, live)


def _loss(cfg, rows, logits, scores, chosen, live):
    """Over ``rows`` sets of tokens, and of these the mean."""

    def parts(values):
        return (values * live[:, None]).reshape(rows, -1, cfg.num_experts).sum(1)

    load, shares = parts(chosen.astype(jnp.float32)), parts(scores / scores.sum(-1, keepdims=True))
    tokens = live.reshape(rows, -1).sum(1)
    fraction = load / load.sum(-1, keepdims=True)
    balance = (cfg.num_experts * (fraction * shares / tokens[:, None]).sum(-1)).mean()
    squares = (live * jnp.log(jnp.exp(logits).sum(-1)) ** 2).reshape(rows, -1)
    return cfg.balance_loss * balance + cfg.z_loss * (squares.sum(1) / tokens).mean()


def relative_error(got, want, where=...) -> float:
    """Largest difference from ``want[where]``, over the largest value of all of ``want``."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    scale = np.abs(want).max()
    return float(np.abs(got - want[where]).max(initial=0) / (scale or 1))
