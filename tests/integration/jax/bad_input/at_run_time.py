"""What only the running operations can see: one rank's data is wrong, and every rank of its domain is told."""

import functools
from collections.abc import Callable

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from epd.jax import primitives
from jax.sharding import NamedSharding, PartitionSpec
from world import World

from bad_input.rows import Row, rows_of

_CFG = ep.EpLayerConfig(top_k=2)
_TOKENS, _CAPACITY = 4, 64  # Of a rank, of a call.


def bootstrap(world: World) -> None:
    world.bootstrap()


def _of_each_rank(world: World, rows: np.ndarray, first: np.ndarray) -> jax.Array:
    """A global array: of the first rank of each domain ``first``, of the others ``rows``."""
    whole = np.concatenate(
        [first if rank % world.ep == 0 else rows for rank in range(world.num_ranks)]
    )
    sharding = NamedSharding(world.mesh, PartitionSpec(("dp", "ep")))
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def _alike(world: World, rows: np.ndarray) -> jax.Array:
    return _of_each_rank(world, rows, rows)


def _idx(world: World, first: int = 0) -> jax.Array:
    """All routes to expert 0; on the first rank to ``first``."""
    sound = np.zeros((_TOKENS, 2), np.int32)
    return _of_each_rank(world, sound, sound + first)


def _arrays(world: World) -> dict[str, jax.Array]:
    rows = np.ones((_TOKENS, 8), np.float32)
    received = np.ones((1, _CAPACITY, 8), np.float32)
    return {
        "topk_idx": _idx(world),
        "tokens": _alike(world, rows),
        "topk_weights": _alike(world, np.ones((_TOKENS, 2), np.float32)),
        "expert_out": _alike(world, received),
        "g_recv_topk_weights": _alike(world, received[..., 0]),
    }


def _pinned(world: World, results):
    return jax.tree.map(lambda a: jax.lax.with_sharding_constraint(a, world.sharding), results)


@functools.cache
def _prepared(world: World, find: Callable):
    return jax.jit(lambda idx: _pinned(world, find()(_CFG, idx)))


def _damaged(world: World, handle: jax.Array) -> jax.Array:
    """One byte of the first rank's plan is another one."""

    def part(index):
        mine = next(s for s in handle.addressable_shards if s.index == index)
        rows = np.array(mine.data)
        if (index[0].start or 0) % world.ep == 0:
            rows[0, 200] ^= 0xFF
        return rows

    return jax.make_array_from_callback(handle.shape, handle.sharding, part)


# Of each operation that takes a plan: its name, that of its method, and a call of either.
_WITH_PLAN = (
    (
        "primitives.ep_dispatch_fwd",
        "dispatch_fwd",
        lambda f, h, a: f(_CFG, h, a["topk_idx"], a["tokens"], a["topk_weights"], _CAPACITY),
    ),
    (
        "ep_combine",
        "combine",
        lambda f, h, a: f(
            _CFG, h, *([None] if f is ep.ep_combine else []), a["expert_out"], _rows(a)
        ),
    ),
    (
        "primitives.ep_combine_fwd",
        "combine_fwd",
        lambda f, h, a: f(_CFG, h, a["expert_out"], _rows(a)),
    ),
    (
        "primitives.ep_dispatch_bwd",
        "dispatch_bwd",
        lambda f, h, a: f(_CFG, h, a["expert_out"], a["g_recv_topk_weights"], _rows(a)),
    ),
    (
        "primitives.ep_combine_bwd",
        "combine_bwd",
        lambda f, h, a: f(_CFG, h, a["tokens"], _CAPACITY),
    ),
)


def _rows(arrays) -> int:
    return arrays["tokens"].shape[0]


def _find(path: str) -> Callable:
    """The public function or method of the default group, when it is called."""
    if path.startswith("Group."):
        return lambda: getattr(ep.default_group(), path.removeprefix("Group."))
    *module, name = path.split(".")
    return lambda: getattr(primitives if module else ep, name)


def _run(world: World, function: Callable, *arguments) -> None:
    with world.context():
        jax.block_until_ready(jax.jit(lambda *a: _pinned(world, function(*a)))(*arguments))


def _with_plan(path: str, call: Callable, plan: Callable) -> Callable[[World], None]:
    def run(world: World) -> None:
        arrays = _arrays(world)
        with world.context():
            handle = _prepared(world, _find("ep_prepare"))(arrays["topk_idx"])[2]
            handle = plan(world, handle)
        _run(world, lambda h, a: call(_find(path)(), h, a), handle, arrays)

    return run


def _of_another_group(world: World, handle: jax.Array) -> jax.Array:
    """A plan of the same sizes that another group made."""
    sizes = ep.default_group().config
    with ep.Group(
        "elsewhere",
        num_experts=sizes.num_experts,
        max_tokens_per_rank=sizes.max_tokens_per_rank,
        recv_capacity_per_rank=sizes.recv_capacity_per_rank,
        hidden_dim=sizes.hidden_dim,
        max_token_dtype=jnp.float32,
    ) as other:
        idx = _idx(world)
        handle = jax.jit(lambda i: _pinned(world, other.prepare(_CFG, i)))(idx)[2]
        return jax.block_until_ready(handle)


def _with_index(path: str, dispatches: bool) -> Callable[[World], None]:
    """The first rank names the expert after the last one."""

    def run(world: World) -> None:
        arrays = _arrays(world)
        idx = _idx(world, first=ep.default_group().config.num_experts)
        find = _find(path)
        if dispatches:
            rows = (arrays["tokens"], arrays["topk_weights"])
            _run(world, lambda i, t, w: find()(_CFG, i, t, w, _CAPACITY), idx, *rows)
        else:
            _run(world, lambda i: find()(_CFG, i), idx)

    return run


def _fewer_tokens(path: str, call: Callable) -> Callable[[World], None]:
    """Half as many as the plan is of: the text says what was passed, which counts all ranks."""

    def run(world: World) -> None:
        arrays = _arrays(world)
        with world.context():
            handle = _prepared(world, _find("ep_prepare"))(arrays["topk_idx"])[2]
        fewer = {**arrays, "tokens": arrays["tokens"][: world.num_ranks * _TOKENS // 2]}
        _run(world, lambda h, a: call(_find(path)(), h, a), handle, fewer)

    return run


def _too_small(path: str) -> Callable[[World], None]:
    """The owner of expert 0 would receive every route of the domain, one more than there is room for."""

    def run(world: World) -> None:
        arrays = _arrays(world)
        capacity = 2 * _TOKENS * world.ep - 1
        operands = (arrays["topk_idx"], arrays["tokens"], arrays["topk_weights"])
        _run(world, lambda i, t, w: _find(path)()(_CFG, i, t, w, capacity), *operands)

    return run


def rows() -> list[Row]:
    """For a world of (2, 2) ranks whose default group ``bootstrap`` made: 4 experts."""
    found = []
    for function, method, call in _WITH_PLAN:
        for path in (function, f"Group.{method}"):
            found += rows_of(
                path,
                (
                    "handle_mem",
                    "damaged on one rank",
                    _with_plan(path, call, _damaged),
                    "DATA_LOSS",
                    "rank=0",
                ),
                (
                    "handle_mem",
                    "of another group",
                    _with_plan(path, call, _of_another_group),
                    "INVALID_ARGUMENT",
                    "group id of the routing plan",
                ),
            )
    for function, method, call in _WITH_PLAN:
        if "combine" not in method or "bwd" in method:
            continue
        for path in (function, f"Group.{method}"):
            found += rows_of(
                path,
                (
                    "num_local_tokens",
                    "not the plan's",
                    _fewer_tokens(path, call),
                    "INVALID_ARGUMENT",
                    "num_local_tokens is 8, but prepare was given 16 tokens",
                ),
            )
    for path, dispatches in (
        ("ep_prepare", False),
        ("Group.prepare", False),
        ("ep_dispatch", True),
        ("Group.dispatch", True),
    ):
        found += rows_of(
            path,
            (
                "topk_idx",
                "an expert that is not there, on one rank",
                _with_index(path, dispatches),
                "INVALID_ARGUMENT",
                "rank=0",
                "topk_idx",
                "got 4, must be below 4",
            ),
        )
    for path in ("ep_dispatch", "Group.dispatch"):
        found += rows_of(
            path,
            (
                "recv_capacity_per_rank",
                "less than one rank needs",
                _too_small(path),
                "RESOURCE_EXHAUSTED",
                "rank=0",
                "would receive 16 slots, its capacity is 15",
            ),
        )
    return found
