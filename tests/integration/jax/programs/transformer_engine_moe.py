"""transformer_engine.jax.moe, as epd offers it, against a dense layer: forward, loss and all gradients; and what it refuses.

``expect_dense`` compares with a reference that knows nothing of Transformer Engine's arguments: which configuration a call
means is written down here.
"""

import itertools
from types import SimpleNamespace

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from dense_moe import dense_moe
from moe_problem import (
    EXPERTS,
    HIDDEN,
    TOKENS,
    config_of,
    expect_dense,
    on_one_device,
    parameters_of,
    put_parameters,
    tokens_of,
)
from world import World, raises

ep.as_transformer_engine()
from transformer_engine.common import recipe  # noqa: E402
from transformer_engine.jax import dense, moe, quantize, version_utils  # noqa: E402
from transformer_engine.jax.cpp_extensions import ep as cpp_extensions_ep  # noqa: E402
from transformer_engine.jax.ep import ep_bootstrap, ep_finalize  # noqa: E402
from transformer_engine.jax.router import ScoreFunction  # noqa: E402
from transformer_engine.jax.sharding import MeshResource, global_shard_guard  # noqa: E402

_TOP_K = 4
_BY_NAME = {"ep_axis": "ep", "data_parallelism_axes": ("dp",)}
_SIZES = {"num_experts": EXPERTS, "num_experts_per_tok": 2}


def _capacity(world: World, **changed) -> int:
    sizes = {"num_experts": EXPERTS, "num_experts_per_tok": _TOP_K, "ep_size": world.ep}
    return moe.get_moe_recv_capacity_per_rank(**{**sizes, "max_tokens_per_rank": TOKENS, **changed})


def _bootstrap(world: World, **changed) -> dict[str, int]:
    sizes = {"num_experts": EXPERTS, "max_tokens_per_rank": TOKENS, "hidden_dim": HIDDEN}
    sizes["recv_capacity_per_rank"] = _capacity(world)
    ep_finalize()
    world.sizes = {}
    resource = MeshResource(dp_resource="dp", ep_resource="ep")
    with jax.set_mesh(world.mesh), global_shard_guard(resource):
        ep_bootstrap(
            world_size=world.num_ranks,
            rank=jax.process_index(),
            max_token_dtype=jnp.float32,
            **{**sizes, **changed},
        )
    return sizes


def _arguments(params: dict, tokens) -> dict:
    """The dense layer's parameters as moe takes them."""
    experts, router = params["experts"], params["router"]
    return {
        "x": tokens,
        "gate_kernel": router["kernel"],
        "wi": jnp.concatenate([experts["gate"], experts["up"]], axis=-1),
        "wo": experts["down"],
        "wi_0_bias": experts.get("gate_bias"),
        "wi_1_bias": experts.get("up_bias"),
        "wo_bias": experts.get("down_bias"),
        "expert_bias": router.get("selection_bias"),
    }


def _layer(**options):
    """(params, tokens) -> (result, loss) of moe, which is called as code written for Transformer Engine calls it."""
    options = {**_SIZES, **_BY_NAME, **options}

    def layer(params, tokens):
        out, loss, total = moe.moe(**_arguments(params, tokens), **options, dtype=tokens.dtype)
        assert (loss is None) == (not options.get("aux_loss_coeff"))
        assert total.dtype == jnp.int32 and total.ndim == 2
        return out, jnp.float32(0) if loss is None else loss

    return layer


def _expect(world: World, config, dtypes=("float32",), **options) -> None:
    leading = (world.num_ranks * 2, TOKENS // 2)
    expect_dense(world, config, dtypes, leading=leading, wrap=lambda _: _layer(**options))


def check_softmax_router(world: World):
    sizes = _bootstrap(world)
    moe.record_ep_bootstrap_signature_for_moe(ep_size=world.ep, **sizes)
    with world.context():
        config = config_of({"balance_loss": 0.7})
        _expect(world, config, ("float32", "bfloat16"), aux_loss_coeff=0.7)
        _expect(
            world,
            config_of({"normalize": False, "scale": 1.5}),
            use_pre_softmax=True,
            scaling_factor=1.5,
        )


def check_weights_early(world: World):
    _bootstrap(world)
    with world.context():
        config = config_of({"balance_loss": 0.7}, use_bias=True)
        _expect(world, config, aux_loss_coeff=0.7, apply_topk_weights_early=True)
        _expect(world, config_of({}), apply_topk_weights_early=True, activation_type="silu")


def check_biases_late(world: World):
    _bootstrap(world)
    with world.context():
        config = config_of({}, use_bias=True, activation="relu")
        _expect(world, config, activation_type="relu")


def check_sigmoid_router_with_bias_and_groups(world: World):
    _bootstrap(world)
    router = {"scoring": "sigmoid", "selection_bias": True, "scale": 2.5, "balance_loss": 0.5}
    groups = {"num_groups": 4, "groups_kept": 2, "group_score": "top2"}
    score = SimpleNamespace(name="SIGMOID")  # A member of the enum that the argument may be.
    with world.context():
        _expect(
            world,
            config_of({**router, **groups, "top_k": _TOP_K}, use_bias=True),
            num_experts_per_tok=_TOP_K,
            score_function=score,
            num_groups=4,
            group_topk=2,
            scaling_factor=2.5,
            aux_loss_coeff=0.5,
            apply_topk_weights_early=True,
        )
        # Of one expert the weight is its score, not 1.
        _expect(
            world,
            config_of({"scoring": "sigmoid", "top_k": 1, "normalize": False}),
            num_experts_per_tok=1,
            score_function="sigmoid",
        )


def check_sqrtsoftplus_router(world: World):
    """With a bias of the choice, normalised; of one expert the weight is its score; by string and by the enum."""
    _bootstrap(world)
    router = {"scoring": "sqrtsoftplus", "selection_bias": True, "balance_loss": 0.5}
    with world.context():
        _expect(
            world,
            config_of(router),
            score_function=ScoreFunction.SQRTSOFTPLUS,
            aux_loss_coeff=0.5,
        )
        _expect(
            world,
            config_of({"scoring": "sqrtsoftplus", "top_k": 1, "normalize": False}),
            num_experts_per_tok=1,
            score_function="sqrtsoftplus",
        )


def check_bootstrap_takes_size_and_rank_from_mesh_and_process(world: World):
    ep_finalize()
    world.sizes = {}
    sizes = {"num_experts": EXPERTS, "max_tokens_per_rank": TOKENS, "hidden_dim": HIDDEN}
    sizes["recv_capacity_per_rank"] = _capacity(world)
    with world.context():
        ep_bootstrap(None, None, **sizes, max_token_dtype=jnp.float32)
        config = cpp_extensions_ep.get_ep_config()
        assert (config.world_size, config.rank) == (world.num_ranks, jax.process_index()), config
        ep_finalize()
        with raises(ValueError, f"has {world.num_ranks} devices", "give that, or None"):
            ep_bootstrap(world.num_ranks + 1, None, **sizes)
        with raises(ValueError, "rank is 99", "or None"):
            ep_bootstrap(None, 99, **sizes)
        with raises(TypeError, "num_experts"):
            ep_bootstrap(None, None, **{**sizes, "num_experts": None})


def check_names_of_the_extensions(world: World):
    """As code for 2.20.2 imports them."""
    del world
    assert cpp_extensions_ep.ep_dispatch_fwd is ep.primitives.ep_dispatch_fwd
    assert not cpp_extensions_ep.use_nccl_comm_from_xla()
    assert version_utils.jax_version_meet_requirement("0.10.1")
    assert version_utils.jax_version_meet_requirement("0.9.2.dev20260317")
    assert not version_utils.jax_version_meet_requirement("999.0")
    assert not version_utils.is_triton_extension_supported()


def check_axes_by_name_alone(world: World):
    """No guard is active, as in code that gives the axes to each call; and a MeshResource as an argument."""
    _bootstrap(world)
    resource = MeshResource(dp_resource="dp", ep_resource="ep")
    leading = (world.num_ranks * 2, TOKENS // 2)
    config = config_of({"balance_loss": 0.7})
    params, tokens = parameters_of(config), tokens_of(leading)
    want = on_one_device(lambda *given: dense_moe(config, *given), params, tokens)
    with world.context():
        placed = put_parameters(world.mesh, config, params)
    for options in (
        _BY_NAME,
        {"ep_axis": None, "data_parallelism_axes": None, "mesh_resource": resource},
    ):
        with jax.set_mesh(world.mesh):
            layer = jax.jit(_layer(aux_loss_coeff=0.7, **options))
            out, loss = layer(placed, world.put(tokens))
        world.expect_close(out, want[0])
        world.expect_close(loss, want[1])


def _padded(world: World, config, params, tokens) -> np.ndarray:
    """[R, 1]: what each rank needs, by NumPy: the routes to each of its experts from its domain, in multiples of 128."""
    logits = tokens.reshape(world.dp, -1, HIDDEN) @ params["router"]["kernel"]
    chosen = np.argsort(-logits, axis=-1)[..., : config.router.top_k]
    counts = np.array([np.bincount(domain.ravel(), minlength=EXPERTS) for domain in chosen])
    zones = -(-counts // 128) * 128
    return zones.reshape(world.num_ranks, -1).sum(1, keepdims=True)


def check_slots_needed_and_dropped(world: World):
    """total_recv_tokens is the need before any drop; with too few slots routes are dropped, and only they."""
    config = config_of({})
    leading = (world.num_ranks * 2, TOKENS // 2)
    params, tokens = parameters_of(config), tokens_of(leading)
    need = _padded(world, config, params, tokens)
    assert (need > 128).all(), need
    experts, local = params["experts"], EXPERTS // world.ep
    kept = (np.arange(EXPERTS) % local == 0)[:, None, None]  # Of each rank the first zone fits.
    first = {**params, "experts": {**experts, "down": np.where(kept, experts["down"], 0)}}
    for capacity, drop in ((_capacity(world), False), (128, True)):
        _bootstrap(world, recv_capacity_per_rank=capacity, drop_on_overflow=drop)
        with world.context():
            call = jax.jit(
                lambda params, tokens, capacity=capacity: moe.moe(
                    **_arguments(params, tokens), **_SIZES, recv_capacity_per_rank=capacity
                )
            )
            out, _, total = call(put_parameters(world.mesh, config, params), world.put(tokens))
            world.expect_equal(total, need)
            left = first if drop else params
            want, _ = on_one_device(lambda *given: dense_moe(config, *given), left, tokens)
            world.expect_close(out, want, what=f"{capacity} slots")
    with world.context(), raises(ValueError, "recv_capacity", "128"):
        _layer()(
            parameters_of(config), tokens
        )  # Enough for any routing is more than the group has.


def check_capacity(world: World):
    """By brute force over what each expert of a rank may get; and the factor."""
    del world
    for experts, top_k, tokens, ranks, alignment in (
        (4, 2, 2, 2, 4),
        (4, 1, 3, 1, 4),
        (8, 3, 1, 4, 8),
        (2, 2, 5, 2, 1),
    ):
        local, senders = experts // ranks, ranks * tokens
        most = max(
            sum(-(-count // alignment) * alignment for count in counts)
            for counts in itertools.product(range(senders + 1), repeat=local)
            if sum(counts) <= senders * min(top_k, local)
        )
        sizes = {
            "num_experts": experts,
            "num_experts_per_tok": top_k,
            "max_tokens_per_rank": tokens,
            "ep_size": ranks,
            "alignment": alignment,
        }
        enough = moe.get_moe_recv_capacity_per_rank(**sizes)
        assert most <= enough and enough % alignment == 0 and enough < most + alignment * local, (
            sizes,
            most,
            enough,
        )
        assert moe.get_moe_recv_capacity_per_rank(**sizes, recv_capacity_factor=1e9) == enough
    two = {"num_experts": 2, "num_experts_per_tok": 2, "max_tokens_per_rank": 128, "ep_size": 1}
    assert moe.get_moe_recv_capacity_per_rank(**two) == 256  # 128 rows of each expert, and no more.
    sizes = {"num_experts": 16, "num_experts_per_tok": 2, "max_tokens_per_rank": 1024, "ep_size": 4}
    assert moe.get_moe_recv_capacity_per_rank(**sizes, recv_capacity_factor=1) == 2048
    assert moe.get_moe_recv_capacity_per_rank(**sizes, recv_capacity_factor=1.5) == 3072
    call = moe.get_moe_recv_capacity_per_rank
    for changed, kind, texts in (
        ({"num_experts": 0}, ValueError, ("num_experts is 0", "1 or more")),
        ({"alignment": 0, "ep_size": -1}, ValueError, ("alignment is 0", "ep_size is -1")),
        ({"ep_size": 3}, ValueError, ("num_experts is 16", "ep_size 3")),
        ({"max_tokens_per_rank": 1.5}, TypeError, ("max_tokens_per_rank", "float")),
        ({"recv_capacity_factor": 0.5}, ValueError, ("recv_capacity_factor is 0.5", "1 or more")),
        (
            {"recv_capacity_factor": float("inf")},
            ValueError,
            ("recv_capacity_factor is inf", "finite"),
        ),
        ({"recv_capacity_factor": "2"}, TypeError, ("recv_capacity_factor", "str")),
    ):
        with raises(kind, *texts):
            call(**{**sizes, **changed})


def check_signature_is_held_against_the_group(world: World):
    sizes = _bootstrap(world)
    with raises(ValueError, "hidden_dim is 99", f"given {HIDDEN}", f"ep_size is {world.ep + 1}"):
        moe.record_ep_bootstrap_signature_for_moe(
            ep_size=world.ep + 1, **{**sizes, "hidden_dim": 99}
        )
    ep_finalize()
    with raises(RuntimeError, "ep_bootstrap"):
        moe.record_ep_bootstrap_signature_for_moe(ep_size=world.ep, **sizes)


def check_quantisers_are_refused_by_name(world: World):
    del world
    unscaled = quantize.QuantizerFactory.create_set(
        scaling_mode=quantize.ScalingMode.NO_SCALING, is_2x2x=False
    )
    assert unscaled == quantize.noop_quantizer_set == quantize.QuantizerSet()
    with raises(AttributeError, "ScalingMode.MXFP8_1D_SCALING", "quantises nothing"):
        _ = quantize.ScalingMode.MXFP8_1D_SCALING
    with raises(NotImplementedError, "scaling_mode='mxfp8'"):
        quantize.QuantizerFactory.create_set(scaling_mode="mxfp8")
    with raises(NotImplementedError, "QuantizerSet(kernel=str)"):
        quantize.QuantizerSet(kernel="a quantiser")
    for name in (
        "DelayedScaling",
        "Float8CurrentScaling",
        "MXFP8BlockScaling",
        "NVFP4BlockScaling",
    ):
        with raises(NotImplementedError, name):
            getattr(recipe, name)(disable_rht=True)
    with raises(ImportError, "WeightGather", "transformer_engine.jax.moe"):
        exec("from transformer_engine.jax.moe import WeightGather")  # noqa: S102 - as a program would.


def check_dense(world: World):
    del world
    x, kernel, bias = (
        np.random.default_rng(0).standard_normal(shape) for shape in ((2, 3, 4), (4, 5), (5,))
    )
    x, kernel, bias = np.float32(x), np.float32(kernel), np.float32(bias)
    out = dense.dense(
        x, kernel, bias, contracting_dims=((2,), (0,)), quantizer_set=quantize.noop_quantizer_set
    )
    np.testing.assert_allclose(out, x @ kernel + bias, rtol=1e-5, atol=1e-5)
    narrow = dense.dense(jnp.bfloat16(x[0]), kernel, bias)
    assert narrow.dtype == jnp.bfloat16, narrow.dtype
    np.testing.assert_allclose(np.float32(narrow), x[0] @ kernel + bias, rtol=5e-2, atol=5e-2)
    with raises(NotImplementedError, "dense(quantizer_set=str"):
        dense.dense(x[0], kernel, quantizer_set="fp8")
    with raises(NotImplementedError, "collective_op_set=str"):
        dense.dense(x[0], kernel, collective_op_set="fused")


def check_bad_arguments_are_named(world: World):
    _bootstrap(world)
    config = config_of({}, use_bias=True)
    leading = (world.num_ranks * 2, TOKENS // 2)
    sound = {**_arguments(parameters_of(config), tokens_of(leading)), **_SIZES}
    rows = [
        (NotImplementedError, ("wi_0_checkpoint_name",), {"wi_0_checkpoint_name": "up"}),
        (
            NotImplementedError,
            ("quant_before_fsdp_ag", "weight_gather"),
            {"quant_before_fsdp_ag": True, "weight_gather": "fsdp"},
        ),
        (NotImplementedError, ("quantizer_sets[1]=str",), {"quantizer_sets": (None, "mxfp8")}),
        (ValueError, ("quantizer_sets", "a pair"), {"quantizer_sets": None}),
        (
            NotImplementedError,
            ("group_topk 1", "4 experts of a group"),
            {"num_experts_per_tok": 4, "num_groups": 2, "group_topk": 1},
        ),
        (ValueError, ("num_groups is 2", "group_topk None"), {"num_groups": 2}),
        (ValueError, ("group_topk is 0",), {"num_groups": 2, "group_topk": 0}),
        (ValueError, ("score_function is 'tanh'",), {"score_function": "tanh"}),
        (ValueError, ("expert_bias", "'softmax'"), {"expert_bias": np.zeros(EXPERTS, np.float32)}),
        (ValueError, ("activation is 'cube'",), {"activation_type": "cube"}),
        (ValueError, ("wi_1_bias is None", "or none"), {"wi_1_bias": None}),
        (
            ValueError,
            ("gate_kernel has shape [1, 2]", "wo has shape [3, 4, 5]"),
            {"gate_kernel": np.ones((1, 2)), "wo": np.ones((3, 4, 5))},
        ),
        (
            ValueError,
            ("x has shape [4]", "[batch, sequence, hidden]"),
            {"x": np.ones(4, np.float32)},
        ),
        (ValueError, ("x has dtype int32",), {"x": np.ones((*leading, HIDDEN), np.int32)}),
        (ValueError, ("ep_axis is 'dp'", "'ep'"), {"ep_axis": "dp"}),
        (TypeError, ("mesh_resource", "str"), {"mesh_resource": "ep"}),
        (
            ValueError,
            ("hidden_dim is 8",),
            {
                "x": np.ones((*leading, 8), np.float32),
                "gate_kernel": np.ones((8, EXPERTS), np.float32),
                "wi": np.ones((EXPERTS, 8, 24), np.float32),
                "wo": np.ones((EXPERTS, 12, 8), np.float32),
                "wo_bias": np.ones((EXPERTS, 8), np.float32),
            },
        ),
    ]
    with world.context():
        for kind, texts, changed in rows:
            with raises(kind, *texts):
                moe.moe(**{**sound, **changed})
    with jax.set_mesh(world.mesh), raises(ValueError, "ep_axis", "global_shard_guard"):
        moe.moe(**sound)


def check_at_most_two_axes_of_data(world: World):
    _bootstrap(world)
    mesh = jax.sharding.AbstractMesh((2, 2, 2, 1), ("a", "b", "c", "ep"))
    sound = {**_arguments(parameters_of(config_of({})), tokens_of((8, 2))), **_SIZES}
    with (
        jax.sharding.use_abstract_mesh(mesh),
        raises(ValueError, "over a, b, c beside", "at most two"),
    ):
        moe.moe(**sound, ep_axis="ep", data_parallelism_axes=("a", "b", "c"))


def check_nothing_else_of_xla_moves_rows(world: World):
    """Forward, XLA sums the experts' load and the loss over ranks, and moves no row."""
    _bootstrap(world)
    config = config_of({"balance_loss": 0.7})
    with world.context():
        params = put_parameters(world.mesh, config, parameters_of(config))
        tokens = world.put(tokens_of((world.num_ranks * 2, TOKENS // 2)))
        text = jax.jit(_layer(aux_loss_coeff=0.7)).lower(params, tokens).compile().as_text()
    for word in ("all-gather", "all-to-all", "collective-permute", "reduce-scatter"):
        assert word not in text, word
