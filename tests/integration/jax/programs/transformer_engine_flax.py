"""What epd offers of Transformer Engine around Flax: its module, and experts that Flax's rules for logical names split."""

import re

import epd.jax as ep
import jax
import jax.numpy as jnp
from flax import linen
from jax.sharding import Mesh, PartitionSpec
from moe_problem import EXPERTS, HIDDEN, TOKENS, config_of, expect_dense
from world import World, raises

ep.as_transformer_engine()
import transformer_engine.jax  # noqa: E402
from transformer_engine.common import recipe  # noqa: E402
from transformer_engine.jax import moe  # noqa: E402

_RULES = (("exp", "ep"), ("mlp", "tp"), ("embed", None))


def check_module_that_quantises_nothing(world: World):
    del world

    class Product(transformer_engine.jax.flax.module.TransformerEngineBase):
        recipe: object = None

        @linen.compact
        def __call__(self, x, kernel):
            chosen = self.generate_quantizer_set(postfix="_a", fp8_recipe=self.recipe)
            return transformer_engine.jax.dense.dense(x, kernel, quantizer_set=chosen)

    x, kernel = jnp.ones((2, 3)), jnp.full((3, 4), 2.0)
    variables = Product().init(jax.random.key(0), x, kernel)
    assert not variables, variables
    assert (Product().apply(variables, x, kernel) == 6).all()
    with raises(NotImplementedError, "fp8_recipe=str", "quantises nothing"):
        Product(recipe="mxfp8").apply({}, x, kernel)
    with raises(NotImplementedError, "MXFP8BlockScaling"):
        recipe.MXFP8BlockScaling()


def check_the_layer_as_a_module(world: World):
    """Its parameters by Transformer Engine's names, and the layer's result and loss."""
    sizes = {"num_experts": EXPERTS, "num_experts_per_tok": 2}
    slots = moe.get_moe_recv_capacity_per_rank(
        **sizes, max_tokens_per_rank=TOKENS, ep_size=world.ep
    )
    world.bootstrap(
        num_experts=EXPERTS, max_tokens=TOKENS, capacity=slots, hidden=HIDDEN, dtype=jnp.float32
    )
    block = transformer_engine.jax.flax._MoEBlock(
        **sizes,
        intermediate_size=12,
        score_function="sqrtsoftplus",
        use_expert_routing_bias=True,
        use_ffn_bias=True,
        aux_loss_coeff=0.5,
        data_parallelism_axes=("dp",),
    )
    assert transformer_engine.jax.flax.moe._MoEBlock is type(block)
    x = jnp.ones((world.num_ranks, TOKENS, HIDDEN), jnp.float32)
    with world.context():
        variables = jax.jit(block.init)(jax.random.key(0), x)
        out, loss, slots_needed = jax.jit(block.apply)(variables, x)
        params = linen.unbox(variables)["params"]
        biases = ("wi_0_bias", "wi_1_bias", "wo_bias", "expert_bias")
        same, same_loss, _ = jax.jit(
            lambda params, x: moe.moe(
                x,
                *(params[name] for name in ("gate_kernel", "wi", "wo", *biases)),
                **sizes,
                score_function="sqrtsoftplus",
                aux_loss_coeff=0.5,
            )
        )(params, x)
    assert {name: array.shape for name, array in params.items()} == {
        "gate_kernel": (HIDDEN, EXPERTS),
        "wi": (EXPERTS, HIDDEN, 24),
        "wo": (EXPERTS, 12, HIDDEN),
        "wi_0_bias": (EXPERTS, 12),
        "wi_1_bias": (EXPERTS, 12),
        "wo_bias": (EXPERTS, HIDDEN),
        "expert_bias": (EXPERTS,),
    }
    assert variables["params"]["wi"].names == ("exp", "embed", "mlp")
    assert (out == same).all() and loss == same_loss and slots_needed.shape == (world.num_ranks, 1)
    with raises(ValueError, "_MoEBlock", "[batch, sequence, hidden]"):
        block.init(jax.random.key(0), x[0])
    with raises(NotImplementedError, "fp8_recipe=str"):
        transformer_engine.jax.flax._MoEBlock(quantization_recipe="mxfp8").init(
            jax.random.key(0), x
        )


def check_experts_split_by_rules(world: World):
    """``mlp`` means the axis tp: each rank multiplies its part of the inner dimension, and tp sums the rows."""
    mesh = Mesh(world.mesh.devices, ("ep", "tp"))
    ep.ep_finalize()
    world.sizes = {}
    sizes = {"num_experts": EXPERTS, "num_experts_per_tok": 2}
    capacity = moe.get_moe_recv_capacity_per_rank(
        **sizes, max_tokens_per_rank=2 * TOKENS, ep_size=2
    )
    config = config_of({"balance_loss": 0.7}, use_bias=True)

    def layer(params, tokens):
        experts = params["experts"]
        out, loss, _ = moe.moe(
            tokens,
            params["router"]["kernel"],
            jnp.concatenate([experts["gate"], experts["up"]], axis=-1),
            experts["down"],
            experts["gate_bias"],
            experts["up_bias"],
            experts["down_bias"],
            **sizes,
            ep_axis="ep",
            aux_loss_coeff=0.7,
            apply_topk_weights_early=True,
            recv_capacity_per_rank=capacity,
        )
        return out, loss

    with jax.set_mesh(mesh), ep.global_shard_guard(ep.MeshResource(ep_resource="ep")):
        ep.ep_bootstrap(
            world_size=4,
            rank=jax.process_index(),
            num_experts=EXPERTS,
            max_tokens_per_rank=2 * TOKENS,
            recv_capacity_per_rank=capacity,
            hidden_dim=HIDDEN,
            max_token_dtype=jnp.float32,
        )
        leading, spec = (8, TOKENS // 2), PartitionSpec("ep")
        shapes = {
            "router": {"kernel": (HIDDEN, EXPERTS)},
            "experts": {
                "gate": (EXPERTS, HIDDEN, config.ffn_dim),
                "up": (EXPERTS, HIDDEN, config.ffn_dim),
                "down": (EXPERTS, config.ffn_dim, HIDDEN),
                "gate_bias": (EXPERTS, config.ffn_dim),
                "up_bias": (EXPERTS, config.ffn_dim),
                "down_bias": (EXPERTS, HIDDEN),
            },
        }
        zeros = jax.tree.map(jnp.zeros, shapes, is_leaf=lambda node: isinstance(node, tuple))
        for rules, sums in ((_RULES, 1), ((), 0)):
            with linen.logical_axis_rules(rules):
                anew = lambda *given: layer(*given)  # noqa: E731 - a trace is kept by its function, whatever the rules.
                program = str(jax.make_jaxpr(anew)(zeros, jnp.zeros((*leading, HIDDEN))))
                found = re.findall(r"psum\w*\[[^\]]*'tp'[^\]]*\]", program)
                assert len(found) == sums, (rules, found)
                expect_dense(
                    world, config, mesh=mesh, leading=leading, spec=spec, wrap=lambda _: layer
                )
    ep.ep_finalize()
