"""What epd.jax.layers says of arguments that do not fit: kind of error, the argument's name, got and wanted."""

import dataclasses

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from epd.jax.layers import (
    Axes,
    GroupedGemm,
    MoeConfig,
    RouterConfig,
    init_moe,
    moe,
    partition_specs,
    recv_capacity,
    route,
    sizes_within,
    updated_selection_bias,
)
from epd.jax.layers.grouped_gemm import rows_of_groups
from jax.sharding import Mesh, PartitionSpec
from moe_problem import (
    EXPERTS,
    FFN,
    HIDDEN,
    SIGMOID,
    SOFTMAX,
    TOKENS,
    bootstrap,
    config_of,
    expect_dense,
    parameters_of,
    tokens_of,
)
from world import World, raises

_ROUTER_FIELDS = [
    ({"num_experts": 0}, "num_experts is 0", "1 or more"),
    ({"num_experts": 2.5}, "num_experts must be an integer", "2.5"),
    ({"top_k": 0}, "top_k is 0", "1 or more"),
    ({"top_k": EXPERTS + 1}, f"top_k is {EXPERTS + 1}", f"{EXPERTS} experts"),
    ({"scoring": "tanh"}, "scoring is 'tanh'", "'sigmoid'"),
    ({"scale": -1.0}, "scale is -1.0", "0 or more"),
    ({"num_groups": 3}, f"num_experts {EXPERTS}", "num_groups 3"),
    ({"num_groups": 2, "groups_kept": 3}, "groups_kept is 3", "num_groups 2"),
    ({"num_groups": EXPERTS, "group_score": "top2", "top_k": 1}, "group_score 'top2'", "have 1"),
    ({"num_groups": 4, "groups_kept": 1, "top_k": 3}, "top_k is 3", "2 experts"),
    ({"group_score": "sum"}, "group_score is 'sum'", "'top2'"),
    ({"balance_over": "all"}, "balance_over is 'all'", "'sequence'"),
    ({"balance_loss": "much"}, "balance_loss is 'much'", "a number"),
    ({"z_loss": -0.1, "scoring": "no"}, "z_loss is -0.1", "scoring is 'no'"),
]
_FIELDS = [
    ({"hidden_dim": 0}, "hidden_dim is 0", "1 or more"),
    ({"ffn_dim": "wide"}, "ffn_dim must be an integer", "'wide'"),
    ({"activation": "swish"}, "activation is 'swish'", "'silu'"),
    ({"apply_weights": "input"}, "apply_weights is 'input'", "'early'"),
    ({"shared_ffn_dim": -1}, "shared_ffn_dim is -1", "0 or more"),
    ({"shared_gate": True}, "shared_gate", "shared_ffn_dim is 0"),
    ({"alignment": 3}, "alignment is 3", "power of two"),
    ({"recv_capacity": 0}, "recv_capacity is 0", "1 or more"),
]


def check_fields_of_the_configurations(world: World):
    del world
    for fields, *texts in _ROUTER_FIELDS:
        with raises(ValueError, "RouterConfig", *texts):
            RouterConfig(**{"num_experts": EXPERTS, "top_k": 2, **fields})
    good = {"hidden_dim": HIDDEN, "ffn_dim": FFN, "router": SOFTMAX.router}
    for fields, *texts in _FIELDS:
        with raises(ValueError, "MoeConfig", *texts):
            MoeConfig(**{**good, **fields})
    for name, kind in (("router", "RouterConfig"), ("gemm", "GroupedGemm"), ("axes", "Axes")):
        with raises(TypeError, f"{name} must be of type {kind}", "'thing'"):
            MoeConfig(**{**good, name: "thing"})


def check_arguments_of_small_functions(world: World):
    del world
    router, logits = SOFTMAX.router, jnp.zeros((3, EXPERTS))
    for arguments, *texts in (
        ((logits[:, 1:],), f"logits have shape [3, {EXPERTS - 1}]", f"[..., {EXPERTS}]"),
        ((logits.astype(int),), "logits have dtype int32", "floating"),
        ((logits, jnp.zeros(2)), "selection_bias has shape [2]", f"[{EXPERTS}]"),
        ((logits, None, jnp.ones((3, 1), bool)), "token_mask is bool[3, 1]", "bool[3]"),
        ((logits, None, jnp.ones(3)), "token_mask is float32[3]", "bool[3]"),
    ):
        with raises(ValueError, "route: ", *texts):
            route(router, *arguments)
    for arguments, *texts in (
        ({"expert": 3}, "expert is 3", "string or None"),
        ({"rules": 7}, "rules is 7", "pairs"),
        ({"rules": ("mlp",)}, "rules is ('mlp',)", "pairs"),
    ):
        with raises(ValueError, "Axes: ", *texts):
            Axes(**arguments)
    with raises(ValueError, "function is 'dot'", "callable"):
        GroupedGemm("dot")
    with raises(ValueError, "12 rows for 2 bytes", "power of two"):
        GroupedGemm(jax.lax.ragged_dot, ((2, 12),))
    with raises(ValueError, "ep_size 3", f"num_experts {EXPERTS}"):
        recv_capacity(SOFTMAX, 4, 3, "float32")
    with raises(ValueError, "tokens_per_rank is -1", "0 or more"):
        recv_capacity(SOFTMAX, -1, 2, "float32")
    with raises(ValueError, "dtype is int32", "floating"):
        init_moe(SOFTMAX, jax.random.key(0), jnp.int32)
    with raises(ValueError, "load has shape [2, 4]", "bias's [4]"):
        updated_selection_bias(jnp.zeros(4), jnp.zeros((2, 4)), 0.1)
    with raises(TypeError, "sizes_within: capacity must be a static Python int"):
        jax.jit(sizes_within)(jnp.zeros(2, jnp.int32), 3)


def _trace(config, params=None, tokens=None, mask=None) -> None:
    params = parameters_of(config) if params is None else params
    tokens = tokens_of((4 * TOKENS,)) if tokens is None else tokens
    jax.eval_shape(lambda p, t, m: moe(config, p, t, m), params, tokens, mask)


def _without(params: dict, part: str, name: str) -> dict:
    return {**params, part: {n: a for n, a in params[part].items() if n != name}}


def check_arguments_of_moe(world: World):
    bootstrap(world)
    good, tokens = parameters_of(SOFTMAX), tokens_of((4 * TOKENS,))
    with world.context():
        with raises(TypeError, "config must be a MoeConfig", "RouterConfig"):
            moe(SOFTMAX.router, good, tokens)
        with raises(TypeError, "group must be a Group or None", "str"):
            moe(SOFTMAX, good, tokens, group="mine")
        wide = dataclasses.replace(SOFTMAX, hidden_dim=HIDDEN + 1)
        with raises(ValueError, f"hidden_dim is {HIDDEN + 1}", f"group's is {HIDDEN}"):
            _trace(wide)
        more = dataclasses.replace(SOFTMAX, router=RouterConfig(2 * EXPERTS, 2))
        with raises(ValueError, f"num_experts is {2 * EXPERTS}", f"group's is {EXPERTS}"):
            _trace(more)
        for wrong in (tokens[:, 1:], tokens[0]):
            with raises(ValueError, "tokens", str(list(wrong.shape)), f"[..., {HIDDEN}]"):
                _trace(SOFTMAX, tokens=wrong)
        with raises(ValueError, f"tokens have {4 * TOKENS - 1} rows", "multiple of the 4 ranks"):
            _trace(SOFTMAX, tokens=tokens[1:])
        with raises(ValueError, "tokens have dtype int32", "floating"):
            _trace(SOFTMAX, tokens=tokens.astype(np.int32))
        for mask in (np.ones(3, bool), np.ones(4 * TOKENS, np.float32)):
            with raises(ValueError, "token_mask", str(mask.dtype), f"bool[{4 * TOKENS}]"):
                _trace(SOFTMAX, mask=mask)
        by_sequence = config_of({"balance_over": "sequence"})
        with raises(ValueError, "balance_over 'sequence'", "[B, S,"):
            _trace(by_sequence)
        with raises(ValueError, "recv_capacity_per_rank is 1000000"):
            _trace(dataclasses.replace(SOFTMAX, recv_capacity=1_000_000))
        with raises(ValueError, f"{2 * TOKENS} tokens per rank", "max_tokens_per_rank"):
            _trace(SOFTMAX, tokens=tokens_of((8 * TOKENS,)))


def check_parameters_of_moe(world: World):
    bootstrap(world)
    good = parameters_of(SOFTMAX)
    with world.context():
        with raises(ValueError, "params must be a dict of dicts", "list"):
            _trace(SOFTMAX, params=[good])
        with raises(ValueError, "params['experts']['up'] is missing"):
            _trace(SOFTMAX, params=_without(good, "experts", "up"))
        with raises(ValueError, "params['shared']['mix'] is not of this config"):
            _trace(SOFTMAX, params=parameters_of(SIGMOID))
        half = {**good, "experts": {n: a[: EXPERTS // 2] for n, a in good["experts"].items()}}
        texts = [f"params['experts']['{n}'] has shape [{EXPERTS // 2}," for n in ("up", "down")]
        with raises(ValueError, *texts, f"expected [{EXPERTS},"):
            _trace(SOFTMAX, params=half)


def check_names_of_axes(world: World):
    bootstrap(world)

    def named(**names):
        return dataclasses.replace(SOFTMAX, axes=Axes(**names))

    with world.context():
        with raises(ValueError, "axes.expert 'dp' means the axis 'dp'", "ep_resource is 'ep'"):
            _trace(named(expert="dp"))
        with raises(ValueError, "axes.mlp 'inner' means 'tp'", "('dp', 'ep')"):
            _trace(named(mlp="inner", rules={"inner": "tp"}))
        with raises(ValueError, "axes.embed 'model' means 'model'", "give it a rule"):
            _trace(named(embed="model"))
        with raises(ValueError, "axes.mlp 'dp' means the axis 'dp'", "tokens are split"):
            _trace(named(mlp="dp"))
        assert partition_specs(named(embed="dp"))["experts"]["up"] == PartitionSpec(
            "ep", "dp", None
        )
    odd = dataclasses.replace(SOFTMAX, ffn_dim=FFN + 1, axes=Axes(mlp="tp"))
    with jax.set_mesh(Mesh(world.mesh.devices, ("ep", "tp"))):
        with ep.global_shard_guard(ep.MeshResource(ep_resource="ep")):
            with raises(ValueError, f"config.ffn_dim {FFN + 1}", "2 devices of axis 'tp'"):
                _trace(odd)


def check_what_must_be_there(world: World):
    bootstrap(world)
    with ep.global_shard_guard(world.resource), raises(ValueError, "mesh"):
        _trace(SOFTMAX)
    with jax.set_mesh(world.mesh), raises(ValueError, "ep_resource"):
        _trace(SOFTMAX)
    with raises(ValueError, "ep_resource"):
        partition_specs(SOFTMAX)
    ep.ep_finalize()
    world.sizes = {}
    with world.context(), raises(RuntimeError, "ep_bootstrap"):
        _trace(SOFTMAX)


def check_the_layer_works_after_errors(world: World):
    bootstrap(world)
    with world.context():
        expect_dense(world, config_of({}))


def check_the_alignment_follows_the_products_and_the_dtype(world: World):
    """Two dtypes, an own product, and an explicit alignment; the capacity that any routing fits."""
    del world
    gemm = dataclasses.replace(SOFTMAX.gemm, alignments=((2, 128),))
    own = dataclasses.replace(SOFTMAX, gemm=gemm)
    assert [SOFTMAX.alignment_for(t) for t in (jnp.float32, jnp.bfloat16)] == [8, 16]
    assert [own.alignment_for(t) for t in (jnp.float32, jnp.bfloat16)] == [0, 128]
    assert dataclasses.replace(own, alignment=4).alignment_for(jnp.bfloat16) == 4
    assert recv_capacity(SOFTMAX, 10, 4, jnp.float32) == 4 * 10 * 2 + 2 * 7
    assert recv_capacity(SOFTMAX, 10, EXPERTS, jnp.float32) == EXPERTS * 10 + 7
    assert recv_capacity(dataclasses.replace(own, recv_capacity=5), 10, 4, jnp.float32) == 5


def check_small_functions(world: World):
    del world
    counts = jnp.array([4, 0, 8, 4], jnp.int32)
    for capacity, want in ((100, [4, 0, 8, 4]), (13, [4, 0, 8, 1]), (3, [3, 0, 0, 0])):
        np.testing.assert_array_equal(sizes_within(counts, capacity), want)
    rows = rows_of_groups(jnp.arange(4.0)[:, None], jnp.array([2, 0, 1, 1]), 6)
    np.testing.assert_array_equal(rows[:, 0], [0, 0, 2, 3, 3, 3])
    bias = updated_selection_bias(jnp.zeros(3), jnp.array([5, 1, 3]), 0.5)
    np.testing.assert_array_equal(bias, [-0.5, 0.5, 0])
    assert Axes(rules={"a": "b"}) == Axes(rules=(("a", "b"),))
    assert hash(SIGMOID) == hash(dataclasses.replace(SIGMOID))
