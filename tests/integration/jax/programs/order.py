"""Order freedom: exchanges that ranks start in opposite order meet by what they are. The order is forced, and seen.

The operands of each exchange go through a callback that notes on which rank it returned, and when; on some ranks the one
of the first exchange sleeps, on the others that of the second. Each row carries its exchange's number, so that a wrong
pairing is seen as a wrong number.
"""

import functools
import json
import threading
import time

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from epd.jax import primitives
from jax.sharding import PartitionSpec
from layers import CFG
from world import World

_HIDDEN, _CAPACITY, _TOKENS = 64, 512, 64
_SLEEP, _STEPS = 0.15, 6


class _Gate:
    """Delays exchanges on chosen ranks, and remembers in which order their operands were there."""

    def __init__(self, world: World):
        self._world = world
        self._lock = threading.Lock()
        self.returned: dict[int, list[int]] = {}  # By rank.

    def _pass(self, which: int, rank, sleeps, value):
        time.sleep(_SLEEP if sleeps else 0)
        with self._lock:
            self.returned.setdefault(int(rank), []).append(which)
        return np.asarray(value)

    def __call__(self, which: int, slow, tokens):
        """``tokens``, after a while on the ranks where ``slow(rank)``."""

        def shard(value):
            rank = jax.lax.axis_index("dp") * self._world.ep + jax.lax.axis_index("ep")
            like = jax.ShapeDtypeStruct(value.shape, value.dtype)
            return jax.pure_callback(
                functools.partial(self._pass, which), like, rank, slow(rank), value
            )

        spec = self._world.spec
        return jax.shard_map(shard, in_specs=spec, out_specs=spec, check_vma=False)(tokens)

    def expect_opposite_orders(self, what: str) -> None:
        """In some step two ranks of a domain had their operands in opposite order, each that of its slow exchange last."""
        world = self._world
        (world.folder / f"{what}-{world.index}.json").write_text(json.dumps(self.returned))
        world.barrier(f"orders of {what}")
        orders = {}
        for path in world.folder.glob(f"{what}-*.json"):
            orders |= {int(rank): order for rank, order in json.loads(path.read_text()).items()}
        steps = [
            [tuple(orders[rank][2 * step : 2 * step + 2]) for rank in range(world.num_ranks)]
            for step in range(_STEPS)
        ]
        domains = range(0, world.num_ranks, world.ep)
        assert any(
            step[first] == (1, 0) and step[first + 1] == (0, 1)
            for step in steps
            for first in domains
        ), steps


def _first_on_even_ranks(rank):
    return rank % 2 == 0


def _second_on_odd_ranks(rank):
    return rank % 2 == 1


def _busy(noise):
    """A zero from work beside the exchanges. XLA hands work to a second thread only where much of it is ready."""
    products = [(noise * (1.0 + n)) @ noise for n in range(64)]
    return 0 * sum(product[0, 0] for product in products)


def _setting(world: World, seeds: tuple[int, ...]):
    world.bootstrap(hidden=_HIDDEN, max_tokens=_TOKENS, capacity=_CAPACITY)
    problems = [world.problem(seed, tokens=_TOKENS, alignment=4) for seed in seeds]
    noise = np.random.default_rng(world.index).standard_normal((64, 64)).astype(np.float32) / 40
    weights = world.put(np.ones((_TOKENS * world.num_ranks, 2), np.float32))
    labels = [
        np.full((_TOKENS * world.num_ranks, _HIDDEN), 1.0 + n, np.float32)
        for n in range(max(2, len(seeds)))
    ]
    return problems, weights, labels, world.put(noise, PartitionSpec())


def _kept_round_trip(idx, tokens, weights):
    """The result, and all on the way. What a program returns has a buffer of its own; XLA orders what shares buffers."""
    recv, recv_weights, handle, counts, _ = ep.ep_dispatch(CFG, idx, tokens, weights, _CAPACITY)
    out = ep.ep_combine(CFG, handle, counts, recv, idx.shape[0])
    return out, (recv, recv_weights, handle, counts, tokens)


def _round_trip(idx, tokens, weights):
    return _kept_round_trip(idx, tokens, weights)[0]


def _routes(problem) -> np.ndarray:
    return (problem.topk_idx >= 0).sum(1, keepdims=True)


def check_two_exchanges_in_opposite_order(world: World):
    """Forward and backward of two independent layers, whose operands come in opposite order on odd and even ranks."""
    problems, weights, labels, noise = _setting(world, (51, 52))
    gate = _Gate(world)

    def both(one, two, idx_one, idx_two, weights, noise):
        one = gate(0, _first_on_even_ranks, one)
        two = gate(1, _second_on_odd_ranks, two)
        rest = _busy(noise)
        outs, kept = [], []
        for idx, tokens in ((idx_one, one), (idx_two, two)):
            trip = functools.partial(lambda i, t: _kept_round_trip(i, t, weights), idx)
            out, pull, saved = jax.vjp(trip, tokens, has_aux=True)
            outs += [out + rest, pull(out)[0]]
            kept += [out, saved]
        return outs, kept

    indices = [world.put(p.topk_idx) for p in problems]
    with world.context():
        step = jax.jit(both)
        for number in range(_STEPS):
            outs, _ = step(*map(world.put, labels), *indices, weights, noise)
            for n, problem in enumerate(problems):
                want = labels[n] * _routes(problem)
                world.expect_equal(outs[2 * n], want, f"step {number}, out {n}")
                world.expect_equal(outs[2 * n + 1], want * _routes(problem), f"gradient {n}")
    gate.expect_opposite_orders("two exchanges")


def check_two_dispatches_on_one_plan_in_opposite_order(world: World):
    """One plan, two dispatches and two combines of one shape: only their place in the program tells them apart."""
    (problem,), weights, labels, noise = _setting(world, (53,))
    gate = _Gate(world)

    def both(one, two, idx, weights, noise):
        _, _, handle = ep.ep_prepare(CFG, idx)
        one = gate(0, _first_on_even_ranks, one)
        two = gate(1, _second_on_odd_ranks, two)
        rest = _busy(noise)
        received = [
            primitives.ep_dispatch_fwd(CFG, handle, idx, t, weights, _CAPACITY)[0]
            for t in (one, two)
        ]
        outs = [primitives.ep_combine_fwd(CFG, handle, r, idx.shape[0]) for r in received]
        return [out + rest for out in outs], (handle, one, two, received, outs)

    with world.context():
        step = jax.jit(both)
        for number in range(_STEPS):
            outs, _ = step(*map(world.put, labels), world.put(problem.topk_idx), weights, noise)
            for n, out in enumerate(outs):
                world.expect_equal(out, labels[n] * _routes(problem), f"step {number}, out {n}")
    gate.expect_opposite_orders("two dispatches")


def check_branches_that_share_an_inner_jit_in_opposite_order(world: World):
    """Two parallel branches call one jitted function."""
    problems, weights, labels, noise = _setting(world, (54, 55))
    gate, shared = _Gate(world), jax.jit(_kept_round_trip)

    def both(one, two, idx_one, idx_two, weights, noise):
        outs = [
            shared(idx_one, gate(0, _first_on_even_ranks, one), weights),
            shared(idx_two, gate(1, _second_on_odd_ranks, two), weights),
        ]
        return [out + _busy(noise) for out, _ in outs], outs

    indices = [world.put(p.topk_idx) for p in problems]
    with world.context():
        step = jax.jit(both)
        for number in range(_STEPS):
            outs, _ = step(*map(world.put, labels), *indices, weights, noise)
            for n, out in enumerate(outs):
                want = labels[n] * _routes(problems[n])
                world.expect_equal(out, want, f"step {number}, branch {n}")
    gate.expect_opposite_orders("branches")


def check_cond_and_switch(world: World):
    """Branches of cond and switch share one inner jit; steps take different ones, with different numbers of exchanges."""
    (problem,), weights, labels, noise = _setting(world, (56,))
    shared = jax.jit(_round_trip)
    idx = world.put(problem.topk_idx)

    def branch(times):
        def run(idx, tokens, weights):
            total = jnp.zeros_like(tokens)
            for n in range(times):
                total += shared(idx, tokens * (n + 1.0), weights)
            return total

        return run

    def steps(choices, idx, tokens, weights, noise):
        def body(carry, choice):
            switched = jax.lax.switch(
                choice, [branch(0), branch(1), branch(3)], idx, carry, weights
            )
            kept = jax.lax.cond(choice % 2 == 0, branch(1), lambda i, t, w: t, idx, carry, weights)
            return carry, switched + 100 * kept + _busy(noise)

        return jax.lax.scan(body, tokens, choices)[1]

    with world.context():
        run = jax.jit(steps)
        for choices in ([0, 1, 2, 1], [2, 2, 0, 1]):
            outs = run(jnp.asarray(choices), idx, world.put(labels[0]), weights, noise)
            routes, want = _routes(problem), []
            for choice in choices:
                exchanged = labels[0] * routes
                kept = exchanged if choice % 2 == 0 else labels[0]
                want.append({0: 0, 1: 1, 2: 6}[choice] * exchanged + 100 * kept)
            world.expect_equal(outs, np.stack(want), str(choices))


def check_domains_that_take_different_branches(world: World):
    """The predicate differs between domains: each goes its own way, one of them without any exchange."""
    (problem,), weights, labels, _ = _setting(world, (57,))

    def shard(idx, tokens, weights):
        mine = jax.lax.axis_index("dp") == 0
        return jax.lax.cond(mine, _round_trip, lambda i, t, w: -t, idx, tokens, weights)

    with world.context():
        step = jax.jit(
            jax.shard_map(shard, in_specs=world.spec, out_specs=world.spec, check_vma=False)
        )
        outs = [step(world.put(problem.topk_idx), world.put(labels[0]), weights) for _ in range(3)]
    half = len(labels[0]) // world.dp
    want = np.concatenate([(labels[0] * _routes(problem))[:half], -labels[0][half:]])
    for out in outs:
        world.expect_equal(out, want)
