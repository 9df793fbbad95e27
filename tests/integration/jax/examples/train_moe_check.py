"""client/jax/example/train_moe.py: forward and gradients against a dense model on one device, then the training.

train_moe_check.py                          checked, then trained; the arguments are the example's
train_moe_check.py --corrupt --steps 0      one row is corrupted in transit: the check must fail
"""

import functools
import sys

import experts
import jax
import jax.numpy as jnp
import model
import numpy as np
import train_moe
import training
from jax.sharding import NamedSharding, PartitionSpec

_TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}


def _relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """Largest difference over the largest value."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    scale = np.abs(want).max()
    return float(np.abs(got - want).max() / scale) if scale > 0 else float(np.abs(got).max())


def _flip_one_row(recv: jax.Array, index: int) -> jax.Array:
    """In the first block the first row that the first rank received has its signs flipped."""
    if index != 0:
        return recv

    def shard(recv):
        first = (jax.lax.axis_index("dp") == 0) & (jax.lax.axis_index("ep") == 0)
        return recv.at[:, 0].multiply(jnp.where(first, -1, 1).astype(recv.dtype))

    return jax.shard_map(shard, in_specs=experts.TOKENS, out_specs=experts.TOKENS)(recv)


def _dense_moe(sizes: model.Sizes, routes: jax.Array) -> model.Moe:
    """Every expert on every token, on one device: the reference. The experts are those of ``routes`` [blocks, B, S, K]:
    two experts that score alike may be chosen differently by programs that round differently."""

    def moe(block: dict, x: jax.Array, index: int):
        scores = jax.nn.softmax(
            x.astype(jnp.float32) @ block["router"].astype(jnp.float32), axis=-1
        )
        weights = jnp.take_along_axis(scores, routes[index], axis=-1)
        weights = weights / jnp.sum(weights, -1, keepdims=True)

        def product(formula: str, rows: jax.Array, weights: jax.Array) -> jax.Array:
            return jnp.einsum(formula, rows.astype(jnp.float32), weights.astype(jnp.float32))

        hidden = jax.nn.gelu(product("bsd,edf->besf", x, block["experts"]["up"])).astype(x.dtype)
        outs = product("besf,efd->bsed", hidden, block["experts"]["down"])
        picked = jnp.take_along_axis(outs, routes[index][..., None], axis=2)
        mixed = (picked * weights[..., None]).astype(x.dtype).astype(jnp.float32).sum(2)
        load = jnp.zeros((sizes.experts,), jnp.int32).at[routes[index].reshape(-1)].add(1)
        return mixed.astype(x.dtype), routes[index], load

    return moe


def _whole(job, tree):
    """The tree's arrays on every process, as NumPy."""
    replicate = jax.jit(lambda t: t, out_shardings=NamedSharding(job.mesh, PartitionSpec()))
    return jax.tree.map(np.asarray, replicate(tree))


def _check(job, corrupt: bool) -> bool:
    """Forward and gradients equal the dense reference's, in float32 and bfloat16."""
    params, sequences = model.init(job.sizes, job.seed), model.batch(job.sizes, 0, job.seed)
    return all([_check_dtype(job, name, params, sequences, corrupt) for name in _TOLERANCE])


def _check_dtype(job, dtype: str, params: dict, sequences: np.ndarray, corrupt: bool) -> bool:
    moe = experts.epd_moe(
        job.sizes, job.slots, training.ALIGNMENT, *([_flip_one_row] if corrupt else [])
    )
    graded = jax.jit(
        jax.value_and_grad(
            functools.partial(model.loss, sizes=job.sizes, moe=moe, dtype=jnp.dtype(dtype)),
            has_aux=True,
        )
    )
    (_, (logits, routes, _)), grads = graded(job.params(params), job.put(sequences, experts.TOKENS))
    logits, routes, grads = _whole(job, (logits, routes, grads))
    good = True
    if jax.process_index() == 0:  # The others wait in _agree.
        good = _compare(
            job, dtype, (logits, grads), _reference(job, dtype, params, sequences, routes)
        )
    return _agree(job, good)


def _compare(job, dtype: str, got, want) -> bool:
    """Whether all arrays are near enough; says which one is the farthest."""
    errors = {
        jax.tree_util.keystr(path): _relative_error(array, expected)
        for (path, array), expected in zip(
            jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True
        )
    }
    errors = {
        ("logits" if key == "[0]" else "gradient of " + key[3:]): error
        for key, error in errors.items()
    }
    worst = max(errors, key=errors.__getitem__)
    good = errors[worst] <= _TOLERANCE[dtype]
    training.say(
        f"check {dtype}: {'passed' if good else 'FAILED'}; largest relative error {errors[worst]:.1e} in {worst},"
        f" allowed {_TOLERANCE[dtype]:.0e}, of {len(errors)} arrays"
    )
    return good


def _agree(job, good: bool) -> bool:
    """True if it is so on every process."""
    flags = jax.make_array_from_callback(
        (job.mesh.size,),
        NamedSharding(job.mesh, experts.TOKENS),
        lambda index: np.array([good]),
    )
    return bool(_whole(job, flags).all())


def _reference(job, dtype: str, params: dict, sequences: np.ndarray, routes: np.ndarray):
    """The dense model on this process's first device, with no mesh."""
    moe = _dense_moe(job.sizes, jnp.asarray(routes))
    device = jax.local_devices()[0]
    local = jax.sharding.SingleDeviceSharding(device)

    def step(params, sequences):
        value = functools.partial(model.loss, sizes=job.sizes, moe=moe, dtype=jnp.dtype(dtype))
        (_, (logits, _, _)), grads = jax.value_and_grad(value, has_aux=True)(params, sequences)
        return logits, grads

    with jax.set_mesh(jax.sharding.Mesh(np.array([device]), ("one",))):
        return jax.jit(step)(*jax.device_put((params, sequences), local))


def _check_and_train(job, args) -> bool:
    return _check(job, args.corrupt) and (not args.steps or train_moe.train(job, args))


if __name__ == "__main__":
    parser = train_moe.arguments(__doc__)
    parser.add_argument("--corrupt", action="store_true", help="flip one received row")
    sys.exit(train_moe.main(__file__, parser, _check_and_train))
