"""JAX's strict and debugging modes, several at once: what epd computes runs under them, and its results have their dtypes.

The modes are set as a program sets them, with ``jax.config.update``, so that threads of epd's own have them too. Ranks and
dtypes that are never promoted are the mode of all programs, see harness.py; 64 bits that of those that are named there.
"""

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Iterator

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from epd.jax._transformer_engine.dense import dense as transformer_engine_dense
from epd.jax.layers import MoeConfig, RouterConfig, init_moe, moe, updated_selection_bias
from jax.sharding import PartitionSpec
from world import World

_HIDDEN, _EXPERTS, _TOKENS, _SLOTS = 16, 8, 8, 128
_CFG = ep.EpLayerConfig(top_k=2)
_NEVER_PROMOTED = {"jax_numpy_rank_promotion": "raise", "jax_numpy_dtype_promotion": "strict"}
_WATCHED = {
    "jax_enable_checks": True,
    "jax_debug_nans": True,
    "jax_debug_infs": True,
    "jax_transfer_guard": "disallow",
    "jax_default_matmul_precision": "bfloat16",
}
# NumPy's numbers are Python's, too, but have a dtype.
_ROUTER = RouterConfig(
    _EXPERTS,
    2,
    scoring="sqrtsoftplus",
    scale=np.float64(2.5),
    num_groups=4,
    groups_kept=2,
    group_score="top2",
    selection_bias=True,
    balance_loss=np.float64(0.7),
    z_loss=0.1,
)
_LAYER = MoeConfig(_HIDDEN, 12, _ROUTER, shared_ffn_dim=20, shared_gate=True, use_bias=True)


@contextlib.contextmanager
def _modes(**values) -> Iterator[None]:
    before = {name: getattr(jax.config, name) for name in values}
    try:
        for name, value in values.items():
            jax.config.update(name, value)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


@functools.cache
def _operands(world: World) -> dict:
    """Made without any mode: programs put arrays where they want them."""
    rng = np.random.default_rng(5)
    rows = world.num_ranks * _TOKENS
    idx = rng.integers(0, _EXPERTS, (rows, 2)).astype(np.int32)
    idx[:, 1] = (idx[:, 0] + 1) % _EXPERTS
    tokens = rng.standard_normal((rows, _HIDDEN)).astype(np.float32)
    weights = rng.random((rows, 2)).astype(np.float32)
    slots = np.tile(np.arange(world.ep, dtype=np.int32), (world.num_ranks, 1))
    own = np.repeat(np.arange(world.num_ranks, dtype=np.int32) % world.ep, world.ep)
    arrays = {
        "idx": idx,
        "tokens": tokens,
        "weights": weights,
        "first": slots.reshape(-1),
        "ones": np.ones(slots.size, np.int32),
        "place": own,
        "few": tokens[: world.num_ranks * world.ep],
    }
    return {name: world.put(array) for name, array in arrays.items()}


def _exchanges(given: dict) -> dict:
    """The functional API, a plan's figures, and computing beside an exchange."""

    def loss(tokens, weights):
        started = ep.ep_dispatch(_CFG, given["idx"], tokens, weights, _SLOTS, start=True)
        half = started.beside(jnp.tanh, tokens)
        recv, recv_weights, handle, counts, total = started.done()
        rows = jnp.tanh(recv) * recv_weights[..., None]
        out = ep.ep_combine(_CFG, handle, counts, rows, len(tokens))
        return (out * half).sum(), (counts, total, handle)

    graded = jax.value_and_grad(loss, (0, 1), has_aux=True)
    (value, (counts, total, handle)), grads = graded(given["tokens"], given["weights"])
    owner = ep.default_group().expert_of_slots(handle, _SLOTS)
    stats = ep.routing_stats(handle)
    assert {array.dtype for array in (counts, total, owner, *stats)} == {np.dtype(np.int32)}
    return {"value": value, "grads": grads, "counts": counts, "owner": owner, "stats": stats}


@functools.cache
def _parameters(world: World) -> dict:
    made = init_moe(_LAYER, jax.random.key(0))
    return jax.tree.map(lambda array: world.put(np.asarray(array), PartitionSpec()), made)


def _layer(params: dict, tokens) -> dict:
    def loss(params, tokens):
        out, aux = moe(_LAYER, params, tokens)
        assert {aux.loss.dtype, aux.balance_loss.dtype, aux.z_loss.dtype} == {np.dtype(np.float32)}
        assert {aux.load.dtype, aux.demand.dtype} == {np.dtype(np.int32)}
        return (out * out).sum() + aux.loss.mean(), aux.load

    (value, load), grads = jax.value_and_grad(loss, (0, 1), has_aux=True, allow_int=True)(
        params, tokens
    )
    assert value.dtype == jnp.float32
    moved = updated_selection_bias(jnp.zeros(_EXPERTS, jnp.float32), load.sum(0), np.float64(0.1))
    assert moved.dtype == jnp.float32
    return {"value": value, "grads": grads, "moved": moved}


def _ragged(world: World, dtype, given: dict) -> jax.Array:
    """The gradient of a transposition, in which each rank sends one row to each."""
    exchange = jax.shard_map(
        functools.partial(ep.ragged_all_to_all, axis_name="ep"),
        mesh=world.mesh,
        in_specs=PartitionSpec(("dp", "ep")),
        out_specs=PartitionSpec(("dp", "ep")),
    )

    def loss(rows):
        indices = [given[name] for name in ("first", "ones", "place", "ones")]
        out = exchange(rows, jnp.zeros_like(rows), *indices)
        return jnp.sin(out.astype(jnp.float32)).sum()

    return jax.grad(loss)(given["few"].astype(dtype)).astype(jnp.float32)


def _pieces(world: World) -> dict:
    """By name, a function and its arguments."""
    given = _operands(world)
    pieces: dict = {"exchanges": (_exchanges, (given,))}
    pieces["layer"] = _layer, (_parameters(world), given["tokens"])
    for dtype in (jnp.float32, jnp.float8_e4m3fn):
        ragged = functools.partial(_ragged, world, dtype)
        pieces[f"ragged {jnp.dtype(dtype)}"] = ragged, (given,)
    return pieces


def _bootstrap(world: World) -> None:
    world.bootstrap(num_experts=_EXPERTS, max_tokens=_TOKENS, capacity=2 * _SLOTS, hidden=_HIDDEN)


def check_all_modes_at_once_with_64_bits(world: World):
    """What comes out is right by the other programs; here it has its dtypes, and no mode has a word to say."""
    _bootstrap(world)
    pieces = _pieces(world)
    modes = {**_NEVER_PROMOTED, **_WATCHED, "jax_enable_x64": True}
    with _modes(**modes), world.context():
        for name in ("exchanges", "layer", "ragged float8_e4m3fn"):
            function, given = pieces[name]
            made = jax.jit(function)(*given)
            jax.block_until_ready(made)
            if name == "exchanges":
                counts = np.asarray(made["counts"]).sum()
    assert counts == world.num_ranks * _TOKENS * 2, counts


def _precisions(jaxpr) -> list:
    """Of all products that it makes, wherever in it; one is said twice, of both operands."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in ("dot_general", "ragged_dot_general"):
            found.append(eqn.params["precision"])
        for inner in jax.tree.leaves(
            [*eqn.params.values()],
            is_leaf=lambda node: hasattr(node, "eqns") or hasattr(node, "jaxpr"),
        ):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                found += _precisions(getattr(inner, "jaxpr", inner))
    return [one[0] if isinstance(one, tuple) else one for one in found]


def check_each_product_is_as_precise_as_was_asked_for(world: World):
    """By the layer's configuration; where that says nothing, by JAX's default, which never reaches the router."""
    _bootstrap(world)
    low, high = jax.lax.Precision.DEFAULT, jax.lax.Precision.HIGHEST
    params, tokens = _parameters(world), _operands(world)["tokens"]

    def made(precision) -> list:
        config = dataclasses.replace(_LAYER, precision=precision)
        loss = lambda params, tokens: moe(config, params, tokens)[0].sum()  # noqa: E731
        graded = jax.grad(loss, (0, 1), allow_int=True)
        return _precisions(jax.make_jaxpr(graded)(params, tokens).jaxpr)

    with world.context():
        whole = made(None)
        assert set(whole) == {None, high}, whole
        with jax.default_matmul_precision("bfloat16"):
            asked, default = made("highest"), made(None)
            dense = jax.make_jaxpr(transformer_engine_dense)(tokens, tokens.T).jaxpr
    assert set(asked) == {high} and len(asked) == len(whole), asked
    assert [one == high for one in default] == [one == high for one in whole], default
    assert set(default) == {low, high}, default
    assert _precisions(dense) == [low]


def check_no_tracer_is_left_by_a_trace(world: World):
    """Nor does a trace break a rule with 32 bits; it is what these modes look at, and nothing is compiled."""
    _bootstrap(world)
    _pieces(world)  # Their arrays.
    modes = {"jax_check_tracer_leaks": True, "jax_enable_checks": True}
    with _modes(**_NEVER_PROMOTED, **modes), world.context():
        for function, arguments in _pieces(world).values():
            jax.make_jaxpr(function)(*arguments)


def check_roles_in_threads_of_their_own(world: World):
    """Their functions are traced and run in other threads than the caller's."""
    if world.num_ranks < 2:
        return
    attention, experts = (
        jax.sharding.Mesh(np.array(jax.devices()[first : first + 1]), (name,))
        for first, name in ((0, "attention"), (1, "experts"))
    )
    group = ep.RoleGroup(
        "strict",
        attention,
        experts,
        num_experts=4,
        max_tokens_per_rank=_TOKENS,
        recv_capacity_per_rank=64,
        hidden_dim=_HIDDEN,
        max_token_dtype=jnp.float32,
    )

    def attend(link, idx, tokens, weights):
        recv, _, handle, *_ = link.dispatch(_CFG, idx, tokens, weights, 1, name="ffn")
        return link.combine(_CFG, handle, recv, len(tokens), name="ffn")

    def serve(link):
        recv, weights, handle, *_ = link.dispatch(_CFG, *link.nothing(_CFG), 64, name="ffn")
        live = (link.expert_of_slots(handle, 64) >= 0).astype(jnp.float32)
        return link.combine(_CFG, handle, recv * (weights * live)[..., None], 1, name="ffn")

    shapes = [jax.ShapeDtypeStruct((rows, _HIDDEN), jnp.float32) for rows in (_TOKENS, 1)]
    idx = np.tile(np.array([0, 3], np.int32), (_TOKENS, 1))
    arguments = (
        idx,
        np.ones((_TOKENS, _HIDDEN), np.float32),
        np.full((_TOKENS, 2), 0.5, np.float32),
    )
    with (
        _modes(**_NEVER_PROMOTED, **_WATCHED, jax_enable_x64=True),
        group,
    ):
        run = ep.roles([(attention, attend), (experts, serve)], group, shapes, name="strict")
        for _ in range(2):
            out, _ = run(arguments, ())
    assert out.dtype == jnp.float32
    np.testing.assert_array_equal(np.asarray(out), 1)
