"""A small transformer with a mixture of experts in every block, in plain JAX.

The dispatch to the experts is a parameter of ``forward``: see experts.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

# (block's parameters, tokens [B, S, D]) -> (mixed [B, S, D], routes [B, S, K], routes per expert [E])
Moe = Callable[[dict, jax.Array, int], tuple[jax.Array, jax.Array, jax.Array]]


@dataclass(frozen=True)
class Sizes:
    vocabulary: int = 32
    sequence: int = 16
    batch: int = 32
    model: int = 64
    heads: int = 4
    ffn: int = 128
    experts: int = 8
    top_k: int = 2
    blocks: int = 2


def init(sizes: Sizes, seed: int) -> dict:
    """Parameters in float32, as NumPy arrays: the same on every process."""
    rng = np.random.default_rng(seed)

    def matrix(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[-2])).astype(np.float32)

    def block() -> dict:
        return {
            "qkv": matrix(sizes.model, 3 * sizes.model),
            "out": matrix(sizes.model, sizes.model),
            "router": matrix(sizes.model, sizes.experts),
            "experts": {
                "up": matrix(sizes.experts, sizes.model, sizes.ffn),
                "down": matrix(sizes.experts, sizes.ffn, sizes.model),
            },
        }

    return {
        "embed": matrix(sizes.vocabulary, sizes.model),
        "position": matrix(sizes.sequence, sizes.model),
        "blocks": [block() for _ in range(sizes.blocks)],
        "unembed": matrix(sizes.model, sizes.vocabulary),
    }


def batch(sizes: Sizes, step: int, seed: int) -> np.ndarray:
    """Sequences [B, S + 1]: the first symbol names one of four permutations, by which each symbol follows the last."""
    permutations = np.stack(
        [np.random.default_rng(1000 + mode).permutation(sizes.vocabulary) for mode in range(4)]
    )
    rng = np.random.default_rng((seed, step))
    mode = rng.integers(0, 4, sizes.batch)
    rows = [mode, rng.integers(0, sizes.vocabulary, sizes.batch)]
    while len(rows) < sizes.sequence + 1:
        rows.append(permutations[mode, rows[-1]])
    return np.stack(rows, axis=1).astype(np.int32)


def _norm(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)


def _attention(block: dict, x: jax.Array, sizes: Sizes) -> jax.Array:
    rows, length, width = x.shape
    qkv = (x @ block["qkv"]).reshape(rows, length, 3, sizes.heads, width // sizes.heads)
    q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
    scores = jnp.einsum("bshd,bthd->bhst", q, k) / np.sqrt(width // sizes.heads)
    causal = jnp.tril(jnp.ones((length, length), bool))
    mix = jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1)
    return jnp.einsum("bhst,bthd->bshd", mix, v).reshape(rows, length, width) @ block["out"]


def forward(params: dict, symbols: jax.Array, sizes: Sizes, moe: Moe, dtype=jnp.float32):
    """Logits float32 [B, S, V], routes [blocks, B, S, K], routes per expert [blocks, E].

    ``dtype`` is that of the experts and of the rows that travel to them; everything else is float32.
    """
    x = params["embed"][symbols] + params["position"]
    routes, loads = [], []
    for index, block in enumerate(params["blocks"]):
        x = x + _attention(block, _norm(x), sizes)
        narrow = {**block, "experts": jax.tree.map(lambda p: p.astype(dtype), block["experts"])}
        mixed, route, load = moe(narrow, _norm(x).astype(dtype), index)
        x = x + mixed.astype(x.dtype)
        routes.append(route)
        loads.append(load)
    logits = _norm(x) @ params["unembed"]
    return logits, jnp.stack(routes), jnp.stack(loads)


def loss(params: dict, sequences: jax.Array, sizes: Sizes, moe: Moe, dtype=jnp.float32):
    """Mean cross-entropy of the next symbol, where it can be known, and what the forward pass saw."""
    logits, routes, loads = forward(params, sequences[:, :-1], sizes, moe, dtype)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), sequences[:, 1:, None], axis=-1)[
        ..., 0
    ]
    return -jnp.mean(chosen[:, 1:]), (
        logits,
        routes,
        loads,
    )  # The second symbol is anybody's guess.


def route(router: jax.Array, x: jax.Array, top_k: int) -> tuple[jax.Array, jax.Array]:
    """Experts int32 [.., K] and their weights float32 [.., K], which sum to 1."""
    scores = jax.nn.softmax(x.astype(jnp.float32) @ router.astype(jnp.float32), axis=-1)
    weights, chosen = jax.lax.top_k(scores, top_k)
    return chosen.astype(jnp.int32), weights / jnp.sum(weights, -1, keepdims=True)
