"""epd.jax.layers: configurations, small functions, moe itself and its modules."""

import dataclasses
from collections.abc import Callable

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
from jax.sharding import Mesh
from moe_problem import (
    EXPERTS,
    FFN,
    HIDDEN,
    SIGMOID,
    SOFTMAX,
    TOKENS,
    config_of,
    parameters_of,
    tokens_of,
)
from world import World

from bad_input.rows import CONTEXT, Row, rows_of

_ROUTER_FIELDS = [
    ("num_experts", {"num_experts": 0}, "num_experts is 0", "1 or more"),
    ("num_experts", {"num_experts": 2.5}, "num_experts must be an integer", "2.5"),
    ("top_k", {"top_k": 0}, "top_k is 0", "1 or more"),
    ("top_k", {"top_k": EXPERTS + 1}, f"top_k is {EXPERTS + 1}", f"{EXPERTS} experts"),
    ("top_k", {"num_groups": 4, "groups_kept": 1, "top_k": 3}, "top_k is 3", "2 experts"),
    ("scoring", {"scoring": "tanh"}, "scoring is 'tanh'", "'sigmoid'"),
    ("scale", {"scale": -1.0}, "scale is -1.0", "0 or more"),
    ("num_groups", {"num_groups": 3}, f"num_experts {EXPERTS}", "num_groups 3"),
    ("groups_kept", {"num_groups": 2, "groups_kept": 3}, "groups_kept is 3", "num_groups 2"),
    (
        "group_score",
        {"num_groups": EXPERTS, "group_score": "top2", "top_k": 1},
        "group_score 'top2'",
        "have 1",
    ),
    ("group_score", {"group_score": "sum"}, "group_score is 'sum'", "'top2'"),
    ("balance_over", {"balance_over": "all"}, "balance_over is 'all'", "'sequence'"),
    ("balance_loss", {"balance_loss": "much"}, "balance_loss is 'much'", "a number"),
    ("z_loss", {"z_loss": -0.1, "scoring": "no"}, "z_loss is -0.1", "scoring is 'no'"),
]
_FIELDS = [
    ("hidden_dim", {"hidden_dim": 0}, "hidden_dim is 0", "1 or more"),
    ("ffn_dim", {"ffn_dim": "wide"}, "ffn_dim must be an integer", "'wide'"),
    ("activation", {"activation": "swish"}, "activation is 'swish'", "'silu'"),
    ("apply_weights", {"apply_weights": "input"}, "apply_weights is 'input'", "'early'"),
    ("shared_ffn_dim", {"shared_ffn_dim": -1}, "shared_ffn_dim is -1", "0 or more"),
    ("shared_gate", {"shared_gate": True}, "shared_gate", "shared_ffn_dim is 0"),
    ("alignment", {"alignment": 3}, "alignment is 3", "power of two"),
    ("precision", {"precision": "exact"}, "precision is 'exact'", "jax.lax.dot"),
    ("recv_capacity", {"recv_capacity": 0}, "recv_capacity is 0", "1 or more"),
]


def configurations() -> list[Row]:
    router = {"num_experts": EXPERTS, "top_k": 2}
    whole = {"hidden_dim": HIDDEN, "ffn_dim": FFN, "router": SOFTMAX.router}
    rows = []
    for kind, good, fields in ((RouterConfig, router, _ROUTER_FIELDS), (MoeConfig, whole, _FIELDS)):
        cases = [
            (name, str(wrong), lambda _, k=kind, g={**good, **wrong}: k(**g), ValueError)
            + (f"{kind.__name__}: ", *texts)
            for name, wrong, *texts in fields
        ]
        rows += rows_of(f"layers.{kind.__name__}", *cases)
    types = {"router": "RouterConfig", "gemm": "GroupedGemm", "axes": "Axes"}
    cases = [
        (name, "a text", lambda _, n=name: MoeConfig(**{**whole, n: "thing"}), TypeError)
        + (f"{name} must be of type {kind}", "'thing'")
        for name, kind in types.items()
    ]
    return rows + rows_of("layers.MoeConfig", *cases) + _axes() + _gemms()


def _axes() -> list[Row]:
    given = (
        ("expert", 3, "expert is 3", "string or None"),
        ("mlp", 3, "mlp is 3", "string or None"),
        ("embed", ("a",), "embed is ('a',)", "string or None"),
        ("rules", 7, "rules is 7", "pairs"),
        ("rules", ("mlp",), "rules is ('mlp',)", "pairs"),
    )
    cases = [
        (name, repr(value), lambda _, n=name, v=value: Axes(**{n: v}), ValueError, "Axes: ", *texts)
        for name, value, *texts in given
    ]
    return rows_of("layers.Axes", *cases)


def _gemms() -> list[Row]:
    odd = ((2, 12),)
    return rows_of(
        "layers.GroupedGemm",
        (
            "function",
            "a text",
            lambda _: GroupedGemm("dot"),
            ValueError,
            "function is 'dot'",
            "callable",
        ),
        (
            "alignments",
            "twelve",
            lambda _: GroupedGemm(jax.lax.ragged_dot, odd),
            ValueError,
            "12 rows for 2 bytes",
            "power of two",
        ),
    )


def small_functions() -> list[Row]:
    logits, counts = jnp.zeros((3, EXPERTS)), jnp.zeros(2, jnp.int32)
    key = jax.random.key(0)
    cases = {
        "layers.route": (
            ("config", route, (SOFTMAX, logits), TypeError, "must be a RouterConfig", "MoeConfig"),
            (
                "logits",
                route,
                (SOFTMAX.router, logits[:, 1:]),
                ValueError,
                f"logits have shape [3, {EXPERTS - 1}]",
                f"[..., {EXPERTS}]",
            ),
            (
                "logits",
                route,
                (SOFTMAX.router, logits.astype(jnp.int32)),
                ValueError,
                "logits have dtype int32",
                "floating",
            ),
            (
                "selection_bias",
                route,
                (SOFTMAX.router, logits, jnp.zeros(2)),
                ValueError,
                "selection_bias has shape [2]",
                f"[{EXPERTS}]",
            ),
            (
                "token_mask",
                route,
                (SOFTMAX.router, logits, None, jnp.ones((3, 1), bool)),
                ValueError,
                "token_mask is bool[3, 1]",
                "bool[3]",
            ),
            (
                "token_mask",
                route,
                (SOFTMAX.router, logits, None, jnp.ones(3, jnp.float32)),
                ValueError,
                "token_mask is float32[3]",
                "bool[3]",
            ),
        ),
        "layers.recv_capacity": (
            ("config", recv_capacity, (SOFTMAX.router, 4, 2, "float32"), TypeError, "a MoeConfig"),
            (
                "ep_size",
                recv_capacity,
                (SOFTMAX, 4, 3, "float32"),
                ValueError,
                "ep_size 3",
                f"num_experts {EXPERTS}",
            ),
            ("ep_size", recv_capacity, (SOFTMAX, 4, "2", "float32"), TypeError, "ep_size", "str"),
            (
                "tokens_per_rank",
                recv_capacity,
                (SOFTMAX, -1, 2, "float32"),
                ValueError,
                "tokens_per_rank is -1",
                "0 or more",
            ),
            (
                "tokens_per_rank",
                recv_capacity,
                (SOFTMAX, 1.5, 2, "float32"),
                TypeError,
                "tokens_per_rank",
                "float",
            ),
            ("dtype", recv_capacity, (SOFTMAX, 4, 2, "wide"), TypeError, "dtype 'wide' is no"),
            ("dtype", recv_capacity, (SOFTMAX, 4, 2, np.int32), ValueError, "int32", "floating"),
        ),
        "layers.init_moe": (
            ("config", init_moe, (SOFTMAX.router, key), TypeError, "must be a MoeConfig"),
            ("key", init_moe, (SOFTMAX, 5), TypeError, "PRNG key"),
            ("dtype", init_moe, (SOFTMAX, key, jnp.int32), ValueError, "int32", "floating"),
            ("dtype", init_moe, (SOFTMAX, key, "wide"), TypeError, "dtype 'wide' is no dtype"),
        ),
        "layers.partition_specs": (
            ("config", partition_specs, (SOFTMAX.router,), TypeError, "config must be a MoeConfig"),
            (
                "group",
                partition_specs,
                (SOFTMAX, "mine"),
                TypeError,
                "group must be a Group",
                "str",
            ),
            (CONTEXT, partition_specs, (SOFTMAX,), ValueError, "ep_resource"),
        ),
        "layers.updated_selection_bias": (
            (
                "load",
                updated_selection_bias,
                (jnp.zeros(4), jnp.zeros((2, 4)), 0.1),
                ValueError,
                "load has shape [2, 4]",
                "bias's [4]",
            ),
            (
                "bias",
                updated_selection_bias,
                (jnp.zeros(3), jnp.zeros(4), 0.1),
                ValueError,
                "load has shape [4]",
                "bias's [3]",
            ),
        ),
        "layers.sizes_within": (
            (
                "capacity",
                jax.jit(sizes_within),
                (counts, 3),
                TypeError,
                "capacity",
                "static Python",
            ),
            (
                "token_counts",
                sizes_within,
                (jnp.zeros(2, jnp.float32), 3),
                TypeError,
                "token_counts must be integers",
                "float32",
            ),
        ),
    }
    return [
        row
        for function, given in cases.items()
        for row in rows_of(
            function,
            *[
                (argument, str(texts[-1]), lambda _, c=call, a=arguments: c(*a), kind, *texts)
                for argument, call, arguments, kind, *texts in given
            ],
        )
    ]


def _trace(config, params=None, tokens=None, mask=None, **options) -> None:
    params = parameters_of(config) if params is None else params
    tokens = tokens_of((4 * TOKENS,)) if tokens is None else tokens
    jax.eval_shape(lambda p, t, m: moe(config, p, t, m, **options), params, tokens, mask)


def _in_context(config=SOFTMAX, **given) -> Callable[[World], None]:
    def call(world: World) -> None:
        with world.context():
            _trace(config, **given)

    return call


def _named(**names) -> MoeConfig:
    return dataclasses.replace(SOFTMAX, axes=Axes(**names))


def _without(params: dict, part: str, name: str) -> dict:
    return {**params, part: {n: a for n, a in params[part].items() if n != name}}


def _on_another_mesh(world: World) -> None:
    odd = dataclasses.replace(SOFTMAX, ffn_dim=FFN + 1, axes=Axes(mlp="tp"))
    mesh = Mesh(world.mesh.devices, ("ep", "tp"))
    with jax.set_mesh(mesh), ep.global_shard_guard(ep.MeshResource(ep_resource="ep")):
        _trace(odd)


def _name_twice(world: World) -> None:
    params, tokens = parameters_of(SOFTMAX), tokens_of((4 * TOKENS,))
    with world.context():
        jax.eval_shape(
            lambda p, t: [moe(SOFTMAX, p, t, name="same") for _ in range(2)], params, tokens
        )


def _without_mesh(world: World) -> None:
    with ep.global_shard_guard(world.resource):
        _trace(SOFTMAX)


def _without_resource(world: World) -> None:
    with jax.set_mesh(world.mesh):
        _trace(SOFTMAX)


def whole_layers() -> list[Row]:
    """moe in a default group of ``moe_problem.bootstrap`` on a world of (2, 2) ranks."""
    good, tokens = parameters_of(SOFTMAX), tokens_of((4 * TOKENS,))
    half = {**good, "experts": {n: a[: EXPERTS // 2] for n, a in good["experts"].items()}}
    wide = dataclasses.replace(SOFTMAX, hidden_dim=HIDDEN + 1)
    more = dataclasses.replace(SOFTMAX, router=RouterConfig(2 * EXPERTS, 2))
    vast = dataclasses.replace(SOFTMAX, recv_capacity=1_000_000)
    cases = (
        (
            "config",
            _in_context(SOFTMAX.router, params=good),
            TypeError,
            "config must be a MoeConfig",
            "RouterConfig",
        ),
        ("config", _in_context(wide), ValueError, f"hidden_dim is {HIDDEN + 1}", f"is {HIDDEN}"),
        ("config", _in_context(more), ValueError, f"num_experts is {2 * EXPERTS}", f"is {EXPERTS}"),
        (
            "config",
            _in_context(config_of({"balance_over": "sequence"})),
            ValueError,
            "balance_over 'sequence'",
            "[B, S,",
        ),
        ("config", _in_context(vast), ValueError, "recv_capacity_per_rank is 1000000"),
        (
            "config",
            _in_context(_named(expert="dp")),
            ValueError,
            "axes.expert 'dp' means the axis 'dp'",
            "ep_resource is 'ep'",
        ),
        (
            "config",
            _in_context(_named(mlp="inner", rules={"inner": "tp"})),
            ValueError,
            "axes.mlp 'inner' means 'tp'",
            "('dp', 'ep')",
        ),
        (
            "config",
            _in_context(_named(embed="model")),
            ValueError,
            "axes.embed 'model' means 'model'",
            "give it a rule",
        ),
        (
            "config",
            _in_context(_named(mlp="dp")),
            ValueError,
            "axes.mlp 'dp' means the axis 'dp'",
            "tokens are split",
        ),
        (
            "config",
            _on_another_mesh,
            ValueError,
            f"config.ffn_dim {FFN + 1}",
            "2 devices of axis 'tp'",
        ),
        ("tokens", _in_context(tokens=tokens[:, 1:]), ValueError, "tokens", f"[..., {HIDDEN}]"),
        ("tokens", _in_context(tokens=tokens[0]), ValueError, "tokens", f"[..., {HIDDEN}]"),
        (
            "tokens",
            _in_context(tokens=tokens[1:]),
            ValueError,
            f"tokens have {4 * TOKENS - 1} rows",
            "multiple of the 4 ranks",
        ),
        (
            "tokens",
            _in_context(tokens=tokens.astype(np.int32)),
            ValueError,
            "tokens have dtype int32",
            "floating",
        ),
        (
            "tokens",
            _in_context(tokens=tokens_of((8 * TOKENS,))),
            ValueError,
            f"{2 * TOKENS} tokens per rank",
            "max_tokens_per_rank",
        ),
        ("token_mask", _in_context(mask=np.ones(3, bool)), ValueError, "bool[3]", "expected bool"),
        (
            "token_mask",
            _in_context(mask=np.ones(4 * TOKENS, np.float32)),
            ValueError,
            "token_mask is float32",
            f"bool[{4 * TOKENS}]",
        ),
        ("params", _in_context(params=[good]), ValueError, "must be a dict of dicts", "list"),
        (
            "params",
            _in_context(params=_without(good, "experts", "up")),
            ValueError,
            "params['experts']['up'] is missing",
        ),
        (
            "params",
            _in_context(params=parameters_of(SIGMOID)),
            ValueError,
            "params['shared']['mix'] is not of this config",
        ),
        (
            "params",
            _in_context(params=half),
            ValueError,
            f"params['experts']['up'] has shape [{EXPERTS // 2},",
            f"params['experts']['down'] has shape [{EXPERTS // 2},",
            f"expected [{EXPERTS},",
        ),
        ("group", _in_context(group="mine"), TypeError, "group must be a Group or None", "str"),
        ("name", _in_context(name=5), TypeError, "name must be a str", "int"),
        ("name", _in_context(name="a b"), ValueError, "name is 'a b'", "printable ASCII"),
        ("name", _name_twice, ValueError, "moe: the name 'same' is used twice"),
        (CONTEXT, _without_mesh, ValueError, "no active mesh"),
        (CONTEXT, _without_resource, ValueError, "ep_resource"),
    )
    return rows_of(
        "layers.moe",
        *[(argument, str(texts[0]), *rest, *texts) for argument, *rest, texts in _split(cases)],
    )


def _split(cases):
    """(argument, call, kind, *texts) -> (argument, call, kind, texts)."""
    return [(argument, call, kind, texts) for argument, call, kind, *texts in cases]


def before_bootstrap() -> list[Row]:
    return rows_of(
        "layers.moe",
        (CONTEXT, "not bootstrapped", _in_context(), RuntimeError, "ep_bootstrap"),
    )


def modules() -> list[Row]:
    """The Flax modules; for the world of ``whole_layers``."""
    try:
        from epd.jax.layers import linen, nnx
        from flax import nnx as flax_nnx
    except ImportError:  # deploy/setup has Flax for Python 3.12 alone.
        return []
    tokens, key = tokens_of((4 * TOKENS,)), jax.random.key(0)

    def apply_linen(*arguments, given=(tokens,), **options):
        def call(world: World) -> None:
            with world.context():
                layer = linen.Moe(*arguments, **options)
                jax.eval_shape(lambda *a: layer.init(key, *a), *given)

        return call

    def apply_nnx(config=SOFTMAX, given=None, **options):
        def call(world: World) -> None:
            with world.context():
                make = lambda: nnx.Moe(config, **{"rngs": flax_nnx.Rngs(0), **options})  # noqa: E731
                if given is None:
                    make()
                else:
                    flax_nnx.eval_shape(lambda *a: make()(*a), *given)

        return call

    wrong = (
        ("config", "router", TypeError, "Moe: config must be a MoeConfig", "RouterConfig"),
        ("param_dtype", "ints", ValueError, "Moe: param_dtype is int32", "floating"),
        ("group", "a text", TypeError, "Moe: group must be a Group", "str"),
    )
    values = {"config": SOFTMAX.router, "param_dtype": jnp.int32, "group": "mine"}
    rows = []
    for name, what, kind, *texts in wrong:
        changed = {"config": SOFTMAX, name: values[name]}
        rows += rows_of("layers.linen.Moe", (name, what, apply_linen(**changed), kind, *texts))
        rows += rows_of("layers.nnx.Moe", (name, what, apply_nnx(**changed), kind, *texts))
    rows += rows_of(
        "layers.nnx.Moe",
        ("rngs", "a number", apply_nnx(rngs=5), TypeError, "Moe: rngs must be a Rngs", "int"),
    )
    mask = np.ones(3, bool)
    for module, call in (("linen", apply_linen), ("nnx", apply_nnx)):
        rows += rows_of(
            f"layers.{module}.Moe.__call__",
            (
                "tokens",
                "H",
                call(SOFTMAX, given=(tokens[:, 1:],)),
                ValueError,
                "moe: tokens have shape",
                f"[..., {HIDDEN}]",
            ),
            (
                "token_mask",
                "shape",
                call(SOFTMAX, given=(tokens, mask)),
                ValueError,
                "moe: token_mask is bool[3]",
            ),
        )
    return rows
