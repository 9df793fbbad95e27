"""client/jax/example/deepseek_v3_moe.py: result and gradients against a dense block, straight from its description."""

import sys
from collections.abc import Mapping

import deepseek_v3_moe as example
import jax
import jax.numpy as jnp
import numpy as np

_TOLERANCE = 1e-5


def _dense_block(published: Mapping, weights: Mapping, layer: int, tokens):
    """The block's result [B, S, H], straight from its description and the published names, on one device."""
    block = f"model.layers.{layer}.mlp"

    def swiglu(name: str, x):
        gate, up, down = (
            weights[f"{block}.{name}.{n}_proj.weight"] for n in ("gate", "up", "down")
        )
        return (jax.nn.silu(x @ gate.T) * (x @ up.T)) @ down.T

    x = tokens.reshape(-1, tokens.shape[-1])
    groups, experts = published["n_group"], published["n_routed_experts"]
    scores = jax.nn.sigmoid(x @ weights[f"{block}.gate.weight"].T)
    biased = scores + weights[f"{block}.gate.e_score_correction_bias"]
    best_two = jnp.sort(biased.reshape(len(x), groups, -1))[..., -2:].sum(-1)
    least_group = jnp.sort(best_two)[:, -published["topk_group"], None]
    kept = jnp.repeat(best_two >= least_group, experts // groups, axis=1)
    candidates = jnp.where(kept, biased, -jnp.inf)
    least = jnp.sort(candidates)[:, -published["num_experts_per_tok"], None]
    weight = jnp.where(candidates >= least, scores, 0)
    weight = published["routed_scaling_factor"] * weight / weight.sum(-1, keepdims=True)
    out = swiglu("shared_experts", x)
    for e in range(experts):
        out += weight[:, e, None] * swiglu(f"experts.{e}", x)
    return out.reshape(tokens.shape)


def _relative_error(got, want) -> float:
    """Largest difference over the largest value."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return float(np.abs(got - want).max() / np.abs(want).max())


def _check(published: Mapping, weights: Mapping, layer: int, tokens, out, grads) -> bool:
    def value(weights, tokens):
        out = _dense_block(published, weights, layer, tokens)
        return (out**2).mean(), out

    graded = jax.jit(jax.value_and_grad(value, (0, 1), has_aux=True))
    with jax.set_mesh(jax.sharding.Mesh(np.array(jax.devices()[:1]), ("one",))):
        (_, want), (by_name, want_tokens) = graded(weights, jnp.asarray(tokens))
    want_params = example.from_published(by_name, layer, published["n_routed_experts"])
    errors = {
        "result": _relative_error(out, want),
        "tokens": _relative_error(grads[1], want_tokens),
    }
    for part, named in grads[0].items():
        for name in set(named) - {"selection_bias"}:
            errors[f"{part} {name}"] = _relative_error(named[name], want_params[part][name])
    worst = max(errors, key=errors.__getitem__)
    print(f"largest relative error {errors[worst]:.1e}, in {worst}, of {len(errors)} arrays")
    untouched = np.abs(np.asarray(grads[0]["router"]["selection_bias"])).max() == 0
    return errors[worst] <= _TOLERANCE and untouched


if __name__ == "__main__":
    sys.exit(example.main(_check))
