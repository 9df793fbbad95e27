"""The single operations in a given group. ``function`` is what the caller called, for messages; arguments: primitives.py."""

import dataclasses
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from epd.jax import _checks, _names, _out_sharding, _place, _row_exchanges
from epd.jax._call import Static, align_varying, layout_for
from epd.jax._out_sharding import SpecLike
from epd.jax.config import EpLayerConfig, GroupSpec
from epd.jax.mesh import Layout
from epd.jax.prepare import integer_indices

# One array, or a pytree of arrays that travel under one plan.
Payload: TypeAlias = Any


def arrays_of(function: str, tokens: Payload) -> Payload:
    """The payload's leaves as arrays; TypeError if there are none or one is no array."""
    if not jax.tree.leaves(tokens):
        raise TypeError(f"{function}: tokens has no arrays; expected an array or a pytree of them")
    return jax.tree.map(jnp.asarray, tokens)


def dispatch_payload(
    static: Static, capacity: int, handle_mem: jax.Array, tokens: Payload, topk_weights: jax.Array
) -> tuple[Payload, jax.Array]:
    """A dispatch for each leaf; the weights that came with the first."""
    leaves, tree = jax.tree.flatten(tokens)
    statics = [static]
    for number in range(1, len(leaves)):
        name = f"{static.name}.{number}" if static.name else ""
        statics.append(dataclasses.replace(static, name=name))
    received: list[tuple[jax.Array, jax.Array]] = []
    for own, rows in zip(statics, leaves, strict=True):
        place = _place.current()
        # Of roles: in one order on all ranks, see _role_order.
        if received and place is not None:
            place = _place.after(place, received[-1][:1])
        with _place.at(place):
            received.append(_row_exchanges.dispatch(own, capacity, handle_mem, rows, topk_weights))
    return jax.tree.unflatten(tree, [rows for rows, _ in received]), received[0][1]


def align_payload(
    layout: Layout, first: jax.Array, tokens: Payload, weights: jax.Array
) -> tuple[jax.Array, Payload, jax.Array]:
    """``align_varying`` of all of them."""
    leaves, tree = jax.tree.flatten(tokens)
    first, weights, *leaves = align_varying(layout, [first, weights, *leaves])
    return first, jax.tree.unflatten(tree, leaves), weights


def check_tokens(
    check: _checks.CallCheck,
    cfg: EpLayerConfig,
    topk_idx: jax.Array,
    tokens: Payload,
    topk_weights: jax.Array,
    hidden: int,
) -> None:
    """The operands of a dispatch against each other and the bootstrapped sizes."""
    leading = topk_idx.shape[:-1]
    check.leading("topk_idx", leading)
    if isinstance(tokens, jax.Array):
        check.shape("tokens", tokens, (*leading, hidden))
        check.rows("tokens", tokens, summed=False)
    else:
        for path, rows in jax.tree_util.tree_leaves_with_path(tokens):
            name = "tokens" + jax.tree_util.keystr(path)
            check.shape(name, rows, (*leading, "H"))
            if rows.ndim == len(leading) + 1:
                check.payload(name, rows)
    check.shape("topk_idx", topk_idx, (*leading, cfg.top_k))
    check.shape("topk_weights", topk_weights, (*leading, cfg.top_k))


def check_expert_rows(
    check: _checks.CallCheck, shards: int, name: str, rows: jax.Array, hidden: int
) -> None:
    """[R, C, H] with C at most the bootstrapped capacity."""
    check.shape(name, rows, (shards, "C", hidden))
    check.rows(name, rows, summed=True)
    if rows.ndim == 3:
        check.capacity(rows.shape[1])


def dispatch_fwd(
    group: GroupSpec,
    function: str,
    cfg: EpLayerConfig,
    handle_mem: jax.Array,
    topk_idx: jax.Array,
    tokens: Payload,
    topk_weights: jax.Array,
    recv_capacity_per_rank: int,
    name: str | None = None,
) -> tuple[Payload, jax.Array]:
    """ep_dispatch_fwd in ``group``."""
    cfg = _checks.layer(function, cfg)
    topk_idx, handle_mem = integer_indices(function, topk_idx), jnp.asarray(handle_mem)
    tokens, topk_weights = arrays_of(function, tokens), jnp.asarray(topk_weights)
    _checks.floating_weights(function, "topk_weights", topk_weights)
    capacity = _checks.static_int(function, "recv_capacity_per_rank", recv_capacity_per_rank)
    layout = layout_for(group, *jax.tree.leaves(tokens), topk_idx)
    check = _checks.CallCheck(function, group, layout, cfg)
    check_tokens(check, cfg, topk_idx, tokens, topk_weights, group.config.hidden_dim)
    check.handle(handle_mem)
    check.capacity(capacity)
    check.done()
    name = _names.take(function, group, name, ("dispatch",))
    operands = align_payload(layout, handle_mem, tokens, topk_weights.astype(jnp.float32))
    return dispatch_payload(Static(group, layout, cfg, name), capacity, *operands)


def combine(
    group: GroupSpec,
    function: str,
    cfg: EpLayerConfig,
    handle_mem: jax.Array,
    expert_out: jax.Array,
    num_local_tokens: int | tuple[int, ...],
    out_sharding: SpecLike = None,
    name: str | None = None,
    names: tuple[str, ...] = ("combine", "combine backward"),
) -> jax.Array:
    """ep_combine in ``group``, and ep_combine_fwd, whose ``name`` is taken for other operations: ``names``."""
    cfg = _checks.layer(function, cfg)
    handle_mem, expert_out = jnp.asarray(handle_mem), jnp.asarray(expert_out)
    leading = _checks.leading_shape(function, num_local_tokens)
    spec = _out_sharding.normalize(function, out_sharding, len(leading) + 1)
    layout = layout_for(group, expert_out, handle_mem)
    check = _checks.CallCheck(function, group, layout, cfg)
    check_expert_rows(check, layout.num_shards, "expert_out", expert_out, group.config.hidden_dim)
    check.leading("num_local_tokens", leading)
    check.handle(handle_mem)
    if wrong := _out_sharding.mismatch(spec, layout):
        check.other(wrong)
    check.done()
    name = _names.take(function, group, name, names)
    operands = align_varying(layout, [handle_mem, expert_out])
    out = _row_exchanges.combine(Static(group, layout, cfg, name), leading, *operands)
    return _out_sharding.constrain(out, spec, layout)


def dispatch_bwd(
    group: GroupSpec,
    function: str,
    cfg: EpLayerConfig,
    handle_mem: jax.Array,
    grad: jax.Array,
    g_recv_topk_weights: jax.Array,
    num_local_tokens: int | tuple[int, ...],
    out_partition_spec: SpecLike = None,
    name: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """ep_dispatch_bwd in ``group``."""
    cfg = _checks.layer(function, cfg)
    handle_mem, grad = jnp.asarray(handle_mem), jnp.asarray(grad)
    g_recv_topk_weights = jnp.asarray(g_recv_topk_weights)
    _checks.floating_weights(function, "g_recv_topk_weights", g_recv_topk_weights)
    leading = _checks.leading_shape(function, num_local_tokens)
    spec = _out_sharding.normalize(function, out_partition_spec, len(leading) + 1)
    layout = layout_for(group, grad, handle_mem)
    check = _checks.CallCheck(function, group, layout, cfg)
    check_expert_rows(check, layout.num_shards, "grad", grad, group.config.hidden_dim)
    check.shape("g_recv_topk_weights", g_recv_topk_weights, grad.shape[:2])
    check.leading("num_local_tokens", leading)
    check.handle(handle_mem)
    if wrong := _out_sharding.mismatch(spec, layout):
        check.other(wrong)
    check.done()
    name = _names.take(function, group, name, ("dispatch backward",))
    operands = align_varying(layout, [handle_mem, grad, g_recv_topk_weights.astype(jnp.float32)])
    grad_tokens, grad_weights = _row_exchanges.dispatch_backward(
        Static(group, layout, cfg, name), leading, *operands
    )
    return _out_sharding.constrain(grad_tokens, spec, layout), _out_sharding.constrain(
        grad_weights, spec, layout
    )


def combine_bwd(
    group: GroupSpec,
    function: str,
    cfg: EpLayerConfig,
    handle_mem: jax.Array,
    grad: jax.Array,
    recv_capacity_per_rank: int,
    name: str | None = None,
) -> jax.Array:
    """ep_combine_bwd in ``group``."""
    cfg = _checks.layer(function, cfg)
    handle_mem, grad = jnp.asarray(handle_mem), jnp.asarray(grad)
    capacity = _checks.static_int(function, "recv_capacity_per_rank", recv_capacity_per_rank)
    layout = layout_for(group, grad, handle_mem)
    check = _checks.CallCheck(function, group, layout, cfg)
    check.leading("grad", grad.shape[:-1])
    check.shape("grad", grad, (*grad.shape[:-1], group.config.hidden_dim))
    check.rows("grad", grad, summed=False)
    check.handle(handle_mem)
    check.capacity(capacity)
    check.done()
    name = _names.take(function, group, name, ("combine backward",))
    operands = align_varying(layout, [handle_mem, grad])
    static = Static(group, layout, cfg, name)
    return _row_exchanges.combine_backward(static, grad.shape[:-1], capacity, *operands)
