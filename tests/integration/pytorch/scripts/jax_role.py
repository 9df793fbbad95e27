"""A rank that runs epd.jax: ``jax_role.py tokens|experts DTYPE FOLDER``. Its peer runs epd.jax or epd.torch."""

import sys

import jax
import jax.numpy as jnp
import roles_problem as p
from epd.jax import EpLayerConfig, Group

role, dtype, folder = sys.argv[1:]
cfg = EpLayerConfig(top_k=p.TOP_K)
group = Group.join(
    "roles", 2, ["tokens", "experts"].index(role), max_token_dtype=jnp.dtype(dtype), **p.SIZES
)


def attend(tokens, weights):
    recv, _, handle, *_ = group.dispatch(cfg, jnp.asarray(p.IDX), tokens, weights, 1, name="ffn")
    out = group.combine(cfg, handle, recv, p.TOKENS, name="ffn")
    # Its gradient follows from combine's result: so XLA keeps the exchanges in the order of the other rank.
    return (out.astype(jnp.float32) ** 2 * p.COEFFICIENTS).sum(), out


def serve(scales, tokens, weights):
    idx = jnp.full((1, p.TOP_K), -1, jnp.int32)
    recv, received_weights, handle, *_ = group.dispatch(
        cfg, idx, tokens, weights, p.CAPACITY, name="ffn"
    )
    expert = group.expert_of_slots(handle, p.CAPACITY)
    factors = jnp.where(expert >= 0, scales[expert], 0) * received_weights
    rows = (recv.astype(jnp.float32) * factors[..., None]).astype(recv.dtype)
    out = group.combine(cfg, handle, rows, 1, name="ffn")
    return (out.astype(jnp.float32) ** 2).sum(), recv[0]


with group:
    if role == "tokens":
        step = jax.jit(jax.value_and_grad(attend, (0, 1), has_aux=True))
        given = (jnp.asarray(p.ROWS, dtype), jnp.asarray(p.WEIGHTS))
    else:
        step = jax.jit(jax.value_and_grad(serve, (0, 1, 2), has_aux=True))
        given = (
            jnp.asarray(p.SCALES),
            jnp.zeros((1, p.HIDDEN), dtype),
            jnp.zeros((1, p.TOP_K), jnp.float32),
        )
    for _ in range(p.STEPS):
        (_, out), gradients = jax.block_until_ready(step(*given))
p.save(
    folder,
    role,
    out=out.astype(jnp.float32),
    **{f"grad{i}": g.astype(jnp.float32) for i, g in enumerate(gradients)},
)
