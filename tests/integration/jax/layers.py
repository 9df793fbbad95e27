"""A small layer through epd that programs wrap in JAX's transformations, and the plain function that it equals."""

import functools

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from world import COLLECTIVES, World

CFG = ep.EpLayerConfig(top_k=2, dispatch_output_per_expert_alignment=4)


def layer(capacity: int, idx, tokens, weights):
    """sum over k of weight * sin(token): dispatch, "experts", combine."""
    recv, recv_weights, handle, counts, _ = ep.ep_dispatch(CFG, idx, tokens, weights, capacity)
    rows = jnp.sin(recv) * recv_weights[..., None]
    return ep.ep_combine(CFG, handle, counts, rows, idx.shape[:-1])


def dense(idx, tokens, weights):
    """What ``layer`` computes."""
    live = (idx >= 0)[..., None]
    return sum(
        jnp.where(live[..., k, :], jnp.sin(tokens) * weights[..., k : k + 1], 0)
        for k in range(idx.shape[-1])
    )


def loss(function, idx, tokens, weights):
    """A scalar of ``function``'s result."""
    return (function(idx, tokens, weights) ** 2).sum()


def value_and_gradients(function):
    """(idx, tokens, weights) -> the result, and the gradients in tokens and weights."""
    gradient = jax.grad(functools.partial(loss, function), argnums=(1, 2))
    return lambda *operands: (function(*operands), *gradient(*operands))


def inputs(seed: int, rows: int, experts: int, hidden: int = 8) -> list[np.ndarray]:
    """topk_idx, tokens, weights of ``rows`` tokens; a fifth of the routes are -1."""
    print(f"seed {seed}", flush=True)
    rng = np.random.default_rng(seed)
    idx = rng.integers(0, experts, (rows, 2)).astype(np.int32)
    idx[rng.random(idx.shape) < 0.2] = -1
    tokens = rng.standard_normal((rows, hidden)).astype(np.float32)
    return [idx, tokens, rng.random((rows, 2)).astype(np.float32)]


def put(mesh, spec: PartitionSpec, arrays) -> list[jax.Array]:
    """Global arrays of which every process knows the whole."""
    sharding = NamedSharding(mesh, spec)
    return [
        jax.make_array_from_callback(a.shape, sharding, functools.partial(lambda a, i: a[i], a))
        for a in arrays
    ]


def expect_results(world: World, got, arrays, what: str = "") -> None:
    """``got``, of value_and_gradients of a wrapped layer, is the dense function's."""
    want = value_and_gradients(dense)(*map(jnp.asarray, arrays))
    for array, expected, name in zip(got, want, ("out", "d_tokens", "d_weights"), strict=True):
        world.expect_close(array, np.asarray(expected), 1e-4, f"{what}: {name}")


def collectives_in(compiled) -> list[str]:
    """The words for XLA's collectives in an executable's text."""
    text = compiled.as_text()
    assert ep.FFI_TARGET_NAMES[0] in text
    return [word for word in COLLECTIVES if word in text]
