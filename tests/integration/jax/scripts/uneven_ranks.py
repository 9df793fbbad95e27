"""A part of by_rank: one rank has no tokens, so its program is another one than the others', made of the same source."""

import contextlib
import functools

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from world import fails

_CFG = ep.EpLayerConfig(top_k=2)
_TOKENS, _CAPACITY = 6, 96
EMPTY = 2  # The rank without tokens.


def _scanned(layer, tokens):
    return jax.lax.scan(lambda rows, _: (rows + layer(rows), None), tokens, None, length=2)[0]


# What is summed to a loss: a linear one does not need the forward combine, and equal routes make equal plans.
_MODELS = {
    "once": lambda layer, tokens: layer(tokens),
    "squared": lambda layer, tokens: layer(tokens) ** 2,
    "beside each other": lambda layer, tokens: layer(tokens) + layer(2 * tokens),
    "stacked": lambda layer, tokens: layer(tokens + layer(tokens)),
    "scanned": _scanned,
}


class UnevenRanks:
    """Ranks of a joined group of which EMPTY has no tokens, and the data of all."""

    def __init__(self, group: ep.Group, owners: list[int], ranks: int, held: list[int], width: int):
        self.group, self.held = group, held
        rng = np.random.default_rng(9)
        with_tokens = [rank for rank in range(ranks) if rank != EMPTY]
        shape = (len(with_tokens), _TOKENS)
        self.idx = rng.integers(-1, len(owners), (*shape, 2)).astype(np.int32)
        self.tokens = rng.standard_normal((*shape, width)).astype(np.float32)
        self.weights = rng.random(self.idx.shape).astype(np.float32)
        self.matrix = rng.standard_normal((width, width)).astype(np.float32) / 3
        # Which routes lead to experts of this process.
        self.comes_here = (self.idx >= 0) & np.isin(np.array(owners)[self.idx], held)
        self.own = [with_tokens.index(rank) for rank in held if rank != EMPTY]
        self.place = jax.devices()[0]
        if len(held) > 1:
            mesh = Mesh(np.array(jax.devices()[: len(held)]), ("here",))
            self.place = NamedSharding(mesh, PartitionSpec("here"))

    def context(self):
        one = len(self.held) == 1
        return contextlib.nullcontext() if one else jax.set_mesh(self.place.mesh)

    def operands(self) -> list[jax.Array]:
        """idx, tokens and weights of the held ranks."""
        flat = [a[self.own].reshape(-1, a.shape[-1]) for a in (self.idx, self.tokens, self.weights)]
        return [jax.device_put(array, self.place) for array in flat]

    def sparse(self, expert, idx, rows, weights, matrix, start=False):
        """``start``: in halves."""
        dispatched = self.group.dispatch(_CFG, idx, rows, weights, _CAPACITY, start=start)
        recv, recv_weights, handle, _, _ = dispatched.done() if start else dispatched
        out = expert(recv @ matrix) * recv_weights[..., None]
        combined = self.group.combine(_CFG, handle, out, rows.shape[0], start=start)
        return combined.done() if start else combined

    def dense(self, expert, rows, weights, matrix):
        """The layer of all ranks, where ``matrix`` is that of this process's experts."""
        weights = jnp.where(self.idx >= 0, weights, 0)
        here = jnp.where(self.comes_here, weights, 0).sum(-1, keepdims=True)
        elsewhere = weights.sum(-1, keepdims=True) - here
        return expert(rows @ matrix) * here + expert(rows @ self.matrix) * elsewhere


def check_every_loss(ranks: UnevenRanks, start: bool = False) -> None:
    """Forward and all gradients are those of a dense layer, whatever of it the loss needs."""
    idx, tokens, weights = ranks.operands()
    for expert in (lambda rows: rows, jnp.tanh):
        for name, model in _MODELS.items():
            if expert is jnp.tanh and name != "stacked":
                continue

            def sparse(tokens, weights, matrix, model=model, expert=expert):
                layer = lambda rows: ranks.sparse(expert, idx, rows, weights, matrix, start)  # noqa: E731
                return model(layer, tokens).sum()

            def dense(tokens, weights, matrix, model=model, expert=expert):
                layer = lambda rows: ranks.dense(expert, rows, weights, matrix)  # noqa: E731
                per_rank = model(layer, tokens).sum((1, 2))
                return per_rank.sum(), per_rank[np.array(ranks.own, int)].sum()

            grad = functools.partial(jax.grad, has_aux=True, argnums=(0, 1, 2))
            want, value = grad(dense)(ranks.tokens, ranks.weights, ranks.matrix)
            want = [want[0][np.array(ranks.own, int)], want[1][np.array(ranks.own, int)], want[2]]
            operands = (tokens, weights, ranks.matrix)
            with ranks.context():
                got_value, got = jax.jit(jax.value_and_grad(sparse, (0, 1, 2)))(*operands)
                alone = jax.jit(jax.grad(sparse, (0, 1)))(*operands)
                of_experts = jax.jit(jax.grad(sparse, 2))(*operands)
            _expect([got_value], [value], name)
            _expect(got, want, name)
            _expect([*alone, of_experts], want, name)


def _expect(got, want, what: str) -> None:
    for array, wanted in zip(got, want, strict=True):
        array = np.asarray(array).reshape(np.shape(wanted))
        np.testing.assert_allclose(array, wanted, 1e-3, 1e-3, err_msg=what)


def check_after_different_programs(ranks: UnevenRanks) -> None:
    """Where ranks run different programs all are told once, and meet in the next one though they began unequally many."""
    idx, tokens, weights = ranks.operands()

    @jax.jit
    def layer(tokens):
        return ranks.sparse(lambda rows: rows, idx, tokens, weights, ranks.matrix)

    plan = jax.jit(lambda idx: ranks.group.prepare(_CFG, idx)[0])
    for _ in range(2):
        with ranks.context(), fails("INVALID_ARGUMENT", "different programs"):
            jax.block_until_ready(plan(idx) if EMPTY in ranks.held else layer(tokens))
        with ranks.context():
            for _ in range(2):
                jax.block_until_ready(plan(idx))
                got = layer(tokens)
        want = ranks.dense(lambda rows: rows, ranks.tokens, ranks.weights, ranks.matrix)
        _expect([got], [want[np.array(ranks.own, int)]], "after different programs")
