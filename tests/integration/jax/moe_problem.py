"""A mixture-of-experts layer with random parameters and tokens, and how it is compared with the dense one."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from dense_moe import dense_moe, relative_error
from epd.jax.layers import MoeConfig, RouterConfig, moe, partition_specs, recv_capacity
from epd.jax.layers.parameters import shapes
from jax.sharding import Mesh, NamedSharding
from world import World

HIDDEN, FFN, EXPERTS, TOKENS = 16, 12, 8, 8  # TOKENS: of a rank.
_TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}


def config_of(router: dict, **options) -> MoeConfig:
    return MoeConfig(HIDDEN, FFN, RouterConfig(EXPERTS, **{"top_k": 2, **router}), **options)


SOFTMAX = config_of({"balance_loss": 0.7, "z_loss": 0.1})
# As DeepSeek-V3 routes, with everything else that a layer can have.
SIGMOID = config_of(
    {
        "top_k": 3,
        "scoring": "sigmoid",
        "scale": 2.5,
        "selection_bias": True,
        "num_groups": 4,
        "groups_kept": 2,
        "group_score": "top2",
        "balance_loss": 0.5,
    },
    shared_ffn_dim=20,
    shared_gate=True,
    use_bias=True,
)


def bootstrap(world: World, **changed) -> None:
    sizes = {"num_experts": EXPERTS, "max_tokens": TOKENS, "hidden": HIDDEN}
    sizes["capacity"] = recv_capacity(SIGMOID, TOKENS, world.ep, jnp.bfloat16)
    world.bootstrap(**{**sizes, **changed})


def parameters_of(config: MoeConfig) -> dict:
    """Of the whole layer, as NumPy; random biases, too."""
    rng = np.random.default_rng(7)

    def draw(shape):
        scale = 1 / np.sqrt(shape.fan_in) if shape.fan_in else 0.3
        return (rng.standard_normal(shape.sizes) * scale).astype(np.float32)

    return jax.tree.map(draw, shapes(config), is_leaf=lambda node: hasattr(node, "fan_in"))


def tokens_of(leading: tuple[int, ...]) -> np.ndarray:
    """float32 that bfloat16 holds exactly."""
    drawn = np.random.default_rng(3).standard_normal((*leading, HIDDEN))
    return np.asarray(drawn.astype(jnp.bfloat16), np.float32)


def put_parameters(mesh: Mesh, config: MoeConfig, params: dict) -> dict:
    """Where ``partition_specs`` says."""

    def put(array, spec):
        sharding = NamedSharding(mesh, spec)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(put, params, partition_specs(config))


def value(layer, params, tokens, *rest):
    """A number that every element of the result moves otherwise, and what is compared beside its gradients."""
    out, loss = layer(params, tokens, *rest)
    factors = jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)
    return (factors * out.astype(jnp.float32)).sum() + loss, (out, loss)


def layer_of(config: MoeConfig, group=None):
    def layer(params, tokens, token_mask=None):
        out, aux = moe(config, params, tokens, token_mask, group=group)
        return out, aux.loss.mean()

    return layer


def on_one_device(function, *operands):
    """The function of NumPy operands, compiled for this process's first device, with no mesh."""
    device = jax.local_devices()[0]
    with jax.set_mesh(Mesh(np.array([device]), ("one",))):
        return jax.tree.map(np.asarray, jax.jit(function)(*jax.device_put(operands, device)))


@functools.cache
def _dense(config: MoeConfig, leading: tuple[int, ...], masked: bool, ranks: int):
    """(result, loss), (gradients of the parameters, of the tokens), of the dense layer."""
    dense = functools.partial(dense_moe, config, ranks=ranks)
    graded = jax.value_and_grad(functools.partial(value, dense), (0, 1), has_aux=True)
    mask = mask_of(leading) if masked else None
    (_, values), grads = on_one_device(graded, parameters_of(config), tokens_of(leading), mask)
    return values, grads


def mask_of(leading: tuple[int, ...]) -> np.ndarray:
    """Sequences [B, S] of 1 to 4 tokens."""
    return np.arange(leading[1]) < np.arange(leading[0])[:, None] % 4 + 1


def expect_dense(
    world: World,
    config: MoeConfig,
    dtypes=("float32",),
    mesh=None,
    leading=None,
    masked=False,
    wrap=None,
    spec=None,
    group=None,
) -> None:
    """Result, loss and all gradients of the layer equal the dense layer's."""
    mesh, leading = mesh or world.mesh, leading or (world.num_ranks * TOKENS,)
    params = put_parameters(mesh, config, parameters_of(config))
    layer = (wrap or (lambda layer: layer))(layer_of(config, group))
    graded = jax.jit(jax.value_and_grad(functools.partial(value, layer), (0, 1), has_aux=True))
    same = dataclasses.replace(config, apply_weights="late", alignment=None)
    want = _dense(same, leading, masked, world.num_ranks)

    def put(array):
        sharding = NamedSharding(mesh, spec or world.spec)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    for dtype in dtypes:
        mask = (put(mask_of(leading)),) if masked else ()
        (_, values), grads = graded(params, put(tokens_of(leading).astype(dtype)), *mask)
        expect_near((values, grads), want, dtype, f"{config}")


def expect_near(got, want, dtype: str, what: str) -> None:
    """Each local shard of ``got`` is within the dtype's tolerance of ``want``, both trees."""
    leaves = jax.tree_util.tree_leaves_with_path(got)
    for (path, have), expected in zip(leaves, jax.tree.leaves(want), strict=True):
        errors = [relative_error(s.data, expected, s.index) for s in have.addressable_shards]
        where = f"{jax.tree_util.keystr(path)} of {what} in {dtype}"
        assert max(errors) <= _TOLERANCE[dtype], f"relative error {max(errors):.1e} in {where}"
