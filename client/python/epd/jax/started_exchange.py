"""An exchange that is under way, beside which a program computes something else."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp

from epd.jax import _halves

_T = TypeVar("_T")


class StartedExchange(Generic[_T]):
    """What an operation with ``start=True`` returns. In one program: start, ``beside`` as often as you like, ``done`` once.

    ::

        first = ep_dispatch(layer, idx[0], tokens[0], weights[0], capacity, start=True)
        made = first.beside(experts, received[1])     # While the rows of the first half travel.
        received, recv_weights, handle, counts, total = first.done()

    The backward pass is made in the same way: the gradient of what ``beside`` computed is computed while the gradient's rows
    travel. Ranks on CPUs alone; not in a group of roles. What rows cost in copies stays, and two more are made of them,
    so it pays where ranks wait: for other nodes, or for each other.
    """

    def __init__(
        self,
        started: Sequence[_halves.UnderWay],
        results: Callable[[Sequence[list[jax.Array]]], _T],
    ):
        self._started = list(started)
        self._results = results
        self._is_done = False

    def _check(self, method: str) -> None:
        if self._is_done:
            raise RuntimeError(
                f"StartedExchange.{method}: done() was called already, and an exchange is handed over once"
            )

    def beside(self, function: Callable[..., Any], *args: Any) -> Any:
        """``function(*args)``, computed after the start and before ``done``.

        Args:
            function: of arrays; what it takes from elsewhere (parameters) is not looked at.
            args: pytrees. Their arrays of floats order the computation and are those of tokens or slots: the leading
                dimension is the ranks', as of ``tokens`` or ``recv_tokens``. So are those of the result.

        Raises:
            RuntimeError: after ``done``.
            ValueError: no array of floats among the arguments or results, or one whose leading dimension is not split over
                the ranks.
        """
        self._check("beside")
        result = function(*self._pass(_halves.fork, "args", args))
        return self._pass(_halves.join, "the result", result)

    def done(self) -> _T:
        """What the operation returns.

        Raises:
            RuntimeError: called twice.
            At run time: as the operation.
        """
        self._check("done")
        self._is_done = True
        return self._results([one.done() for one in self._started])

    def _pass(self, through: Callable[..., Any], what: str, tree: Any) -> Any:
        leaves, structure = jax.tree.flatten(tree)
        floats = [
            index
            for index, leaf in enumerate(leaves)
            if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating)
        ]
        if not floats:
            raise ValueError(
                f"StartedExchange.beside: {what} must hold an array of floats by which the computation is ordered, got {structure}"
            )
        if not self._started:  # Nothing is under way: there are no tokens.
            return tree
        shards = self._started[0].half.static.layout.num_shards
        for index in floats:
            shape = leaves[index].shape
            if not shape or shape[0] % shards:
                raise ValueError(
                    f"StartedExchange.beside: an array of {what} has the shape {shape}, expected a leading dimension that is a"
                    f" multiple of the number of ranks, {shards}; take what is not split over them from outside of the function"
                )
        self._started, passed = through(self._started, [leaves[index] for index in floats])
        for index, leaf in zip(floats, passed, strict=True):
            leaves[index] = leaf
        return jax.tree.unflatten(structure, leaves)
