"""The Flax modules are the plain layer: the same results from the same parameters, and names that place them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from epd.jax.layers import Axes, init_moe, moe, partition_specs
from epd.jax.layers import linen as moe_linen
from epd.jax.layers import nnx as moe_nnx
from flax import linen as nn
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from moe_problem import SIGMOID, TOKENS, bootstrap, tokens_of
from world import World

_RULES = (("experts", "ep"), ("inner", None), ("model", "dp"))
_LOGICAL = dataclasses.replace(SIGMOID, axes=Axes(expert="experts", mlp="inner", embed="model"))
_WITH_RULES = dataclasses.replace(_LOGICAL, axes=dataclasses.replace(_LOGICAL.axes, rules=_RULES))


def _graded(apply):
    """Losses, results and gradients of ``apply(parameters, tokens)``, a layer."""

    def loss(params, tokens):
        out, aux = apply(params, tokens)
        return (out**2).sum() + aux.loss.mean(), (out, aux)

    return jax.value_and_grad(loss, has_aux=True)


def _expect_plain(world: World, config, results, params, tokens) -> None:
    """The results are the plain layer's of the same ``params``, which include the selection bias."""
    (value, (out, aux)), grads = results
    plain = jax.jit(_graded(lambda p, t: moe(config, p, t)))
    (want, (want_out, want_aux)), want_grads = plain(params, tokens)
    want_grads["router"].pop("selection_bias")
    got, expected = (value, out, aux, grads), (want, want_out, want_aux, want_grads)
    for have, wanted in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        world.expect_close(have, np.asarray(wanted), 1e-5)


def check_linen_module_with_logical_names(world: World):
    bootstrap(world)
    tokens = world.put(tokens_of((world.num_ranks * TOKENS,)))
    layer = moe_linen.Moe(_LOGICAL)
    with world.context(), nn.logical_axis_rules(_RULES):
        shapes = jax.eval_shape(layer.init, jax.random.key(1), tokens)
        placed = nn.logical_to_mesh_sharding(nn.get_partition_spec(shapes), world.mesh, _RULES)
        variables = jax.jit(layer.init, out_shardings=placed)(jax.random.key(1), tokens)
        params, state = nn.unbox(variables)["params"], variables["router_state"]
        up = params["experts"]["up"]
        assert up.sharding.spec == PartitionSpec("ep", "dp", None), up.sharding
        apply = lambda p, t: layer.apply({"params": p, "router_state": state}, t)  # noqa: E731
        results = jax.jit(_graded(apply))(variables["params"], tokens)
        (values, grads), bias = results, state["selection_bias"]
        plain = {**params, "router": {**params["router"], "selection_bias": bias}}
        _expect_plain(world, _WITH_RULES, (values, nn.unbox(grads)), plain, tokens)


def check_linen_module_with_mesh_axes(world: World):
    bootstrap(world)
    tokens = world.put(tokens_of((world.num_ranks * TOKENS,)))
    with world.context():
        shapes = jax.eval_shape(moe_linen.Moe(SIGMOID).init, jax.random.key(1), tokens)
    specs = nn.get_partition_spec(shapes["params"])
    assert specs["experts"]["up"] == PartitionSpec("ep", None, None), specs
    sizes = nn.unbox(shapes["params"]) | {"router": {**nn.unbox(shapes["params"])["router"]}}
    sizes["router"]["selection_bias"] = shapes["router_state"]["selection_bias"]
    plain = jax.eval_shape(lambda: init_moe(SIGMOID, jax.random.key(1)))
    assert jax.tree.map(np.shape, sizes) == jax.tree.map(np.shape, plain)


def check_nnx_module(world: World):
    bootstrap(world)
    tokens = world.put(tokens_of((world.num_ranks * TOKENS,)))
    with world.context():
        layer = nnx.jit(lambda: moe_nnx.Moe(_WITH_RULES, rngs=nnx.Rngs(2)))()
        up = layer.experts["up"][...]
        wanted = NamedSharding(world.mesh, partition_specs(_WITH_RULES)["experts"]["up"])
        assert up.sharding.is_equivalent_to(wanted, 3), up.sharding
        assert isinstance(layer.router["selection_bias"], moe_nnx.RouterState)
        params = {
            part: {name: v[...] for name, v in getattr(layer, part).items()}
            for part in ("router", "experts", "shared")
        }

        @nnx.jit
        def graded(module, tokens):
            def loss(module):
                out, aux = module(tokens)
                return (out**2).sum() + aux.loss.mean(), (out, aux)

            return nnx.value_and_grad(loss, has_aux=True)(module)

        values, grads = graded(layer, tokens)
        grads = nnx.to_pure_dict(grads)
        _expect_plain(world, _WITH_RULES, (values, grads), params, tokens)


def check_parameters_in_bfloat16(world: World):
    """Matrices and biases in the dtype asked for; the router's selection bias, which is added to scores, in float32."""
    del world
    make = jax.jit(lambda key: init_moe(SIGMOID, key, jnp.bfloat16))
    for part, named in make(jax.random.key(0)).items():
        for name, array in named.items():
            wanted = jnp.float32 if name == "selection_bias" else jnp.bfloat16
            assert array.dtype == wanted, (part, name, array.dtype)
            matrix = "bias" not in name
            assert (np.abs(np.asarray(array, np.float32)).max() > 0) == matrix, (part, name)
