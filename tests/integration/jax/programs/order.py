"""Order freedom: exchanges that ranks start in opposite order meet by what they are. The order is forced, and seen.

The operands of each exchange go through a callback that notes on which rank it returned, and when; on some ranks the one
of the first exchange sleeps, on the others that of the second. Each row carries its exchange's number, so that a wrong
pairing is seen as a wrong number.
"""

import functools
import json
import threading
import time
from collections.abc import Iterator

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from epd.jax import primitives
from jax.sharding import Mesh, PartitionSpec
from layers import CFG, put
from world import World

_HIDDEN, _CAPACITY, _TOKENS = 64, 512, 64
_SLEEP, _MOST_STEPS = 0.15, 30


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

    def steps(self, what: str) -> Iterator[int]:
        """At least three steps, and more until in one of them two ranks of a domain had their operands in opposite order."""
        world = self._world
        for number in range(_MOST_STEPS):
            yield number
            (world.folder / f"{what}-{world.index}.json").write_text(json.dumps(self.returned))
            world.barrier(f"{what} {number} noted")
            seen = self._seen(what, number)
            world.barrier(f"{what} {number} read")
            if seen and number >= 2:
                return
        raise AssertionError(f"in {_MOST_STEPS} steps all ranks had their operands in one order")

    def _seen(self, what: str, step: int) -> bool:
        orders = {}
        for path in self._world.folder.glob(f"{what}-*.json"):
            orders |= {int(rank): order for rank, order in json.loads(path.read_text()).items()}
        pairs = [
            [tuple(orders[rank][2 * past : 2 * past + 2]) for rank in sorted(orders)]
            for past in range(step + 1)
        ]
        print(what, pairs[-1], flush=True)
        size = self._world.ep
        domains = [slice(first, first + size) for first in range(0, len(pairs[0]), size)]
        return any({(0, 1), (1, 0)} <= set(past[domain]) for past in pairs for domain in domains)


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
        for number in gate.steps("two exchanges"):
            outs, _ = step(*map(world.put, labels), *indices, weights, noise)
            for n, problem in enumerate(problems):
                want = labels[n] * _routes(problem)
                world.expect_equal(outs[2 * n], want, f"step {number}, out {n}")
                world.expect_equal(outs[2 * n + 1], want * _routes(problem), f"gradient {n}")


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
        for number in gate.steps("two dispatches"):
            outs, _ = step(*map(world.put, labels), world.put(problem.topk_idx), weights, noise)
            for n, out in enumerate(outs):
                world.expect_equal(out, labels[n] * _routes(problem), f"step {number}, out {n}")


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
        for number in gate.steps("branches"):
            outs, _ = step(*map(world.put, labels), *indices, weights, noise)
            for n, out in enumerate(outs):
                want = labels[n] * _routes(problems[n])
                world.expect_equal(out, want, f"step {number}, branch {n}")


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


def check_two_threads_with_names(world: World):
    """Two threads of a process run programs of equal shape on the same devices, each at its own pace; names tell the
    exchanges apart. XLA launches programs of several devices one after another."""
    devices = jax.local_devices()
    mesh, spec = Mesh(np.array(devices), ("ep",)), PartitionSpec("ep")
    group = ep.Group(
        f"threads{world.index}",
        mesh=mesh,
        resource=ep.MeshResource(ep_resource="ep"),
        job=f"{world.folder.name}-threads{world.index}",
        num_experts=len(devices),
        max_tokens_per_rank=16,
        recv_capacity_per_rank=128,
        hidden_dim=8,
        max_token_dtype=jnp.float32,
    )
    idx = np.zeros((4 * len(devices), 2), np.int32)
    host = [idx, np.ones((len(idx), 8), np.float32), np.ones((len(idx), 2), np.float32)]
    wrong: list[BaseException] = []

    def run(name: str, pause: float, scale: float) -> None:
        def step(idx, tokens, weights):
            recv, _, handle, counts, _ = group.dispatch(
                CFG, idx, tokens * scale, weights, 128, name=f"{name}-there"
            )
            return group.combine(CFG, handle, recv, len(host[0]), name=f"{name}-back")

        try:
            step, operands, outs = jax.jit(step), put(mesh, spec, host), []
            for number in range(20):
                outs.append(step(*operands))
                time.sleep(pause if number % 3 else 0)
            for out in outs:
                world.expect_equal(out, 2 * scale * host[1], name)
        except BaseException as error:  # noqa: BLE001 - raised again in the check's own thread.
            wrong.append(error)

    with group:
        threads = [
            threading.Thread(target=run, args=case)
            for case in (("one", 0.001, 3.0), ("two", 0.004, 5.0))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if wrong:
        raise wrong[0]
