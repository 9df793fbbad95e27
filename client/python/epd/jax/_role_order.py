"""Checks that a role's program makes its exchanges in one order, which its data gives.

XLA runs a small program one operation after another, in an order that it chooses, and a large one with false dependencies,
as buffers are used again. So if two exchanges of a program do not follow from each other, one rank may wait in the first
and its peer, whose program is another one, in the second. Where all exchanges of a program follow from each other there is
nothing to choose. An exchange whose result nobody uses does not exist once XLA is through with it, and its peers wait.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend import core
from jax.interpreters import partial_eval

_EXCHANGE = "epd_exchange"
# Calls whose body takes the equation's inputs and gives its outputs.
_INLINED = ("jit", "pjit", "closed_call", "remat2", "custom_jvp_call", "custom_vjp_call")


def _label(eqn: Any) -> str:
    exchange = eqn.params["exchange"]
    return f"{exchange.label} of the name {exchange.static.name!r}"


def _bodies(eqn: Any) -> list[Any]:
    """The programs inside an equation, such as a loop's."""
    values = [
        value
        for param in eqn.params.values()
        for value in (param if isinstance(param, tuple | list) else (param,))
    ]
    open_ones = [getattr(value, "jaxpr", value) for value in values]
    return [value for value in open_ones if isinstance(value, core.Jaxpr)]


def _exchanges(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == _EXCHANGE:
            yield eqn
        else:
            for body in _bodies(eqn):
                yield from _exchanges(body)


def _next_round(eqn: Any, body: Any, outputs: Sequence[int]) -> list[int]:
    """A loop's inputs in the next round: constants, what the last round handed on, and slices."""

    def rank(var: Any) -> int:
        return len(var.aval.shape)

    handed_on, num_slices = len(outputs), 0
    if eqn.primitive.name == "scan":  # What is sliced or stacked has a dimension more outside.
        pairs = zip(eqn.outvars, body.outvars, strict=True)
        handed_on = sum(rank(outer) == rank(inner) for outer, inner in pairs)
        pairs = zip(eqn.invars, body.invars, strict=True)
        num_slices = sum(rank(outer) > rank(inner) for outer, inner in pairs)
    num_constants = len(body.invars) - handed_on - num_slices
    return [0] * num_constants + list(outputs[:handed_on]) + [0] * num_slices


class _Walk:
    """Follows one program. Values are known by the last exchange that they follow from, counted along the chain."""

    def __init__(self, function: str):
        self._function = function
        self._last, self._label = 0, ""

    def run(self, jaxpr: Any, inputs: Sequence[int]) -> list[int]:
        """The chain's last exchange before each output, given that of each input."""
        known = dict(zip(jaxpr.invars, inputs, strict=True))

        def follows(var: Any) -> int:
            return 0 if isinstance(var, core.Literal) else known.get(var, 0)

        for eqn in jaxpr.eqns:
            before = [follows(var) for var in eqn.invars]
            bodies = [body for body in _bodies(eqn) if any(_exchanges(body))]
            if eqn.primitive.name == _EXCHANGE:
                after = [self._exchange(_label(eqn), before)] * len(eqn.outvars)
            elif not bodies:
                after = [max(before, default=0)] * len(eqn.outvars)
            elif eqn.primitive.name in _INLINED and len(bodies[0].invars) == len(before):
                after = self.run(bodies[0], before)
            else:
                after = [self._nested(eqn, bodies, before)] * len(eqn.outvars)
            known.update(zip(eqn.outvars, after, strict=True))
        return [follows(var) for var in jaxpr.outvars]

    def _exchange(self, label: str, before: Sequence[int]) -> int:
        if max(before, default=0) < self._last:
            raise ValueError(
                f"{self._function}: {label} does not follow from {self._label}, so that ranks of the other role may make them"
                " in the other order, and all would wait; let its tokens follow from the result of the one before, or give"
                " each its own function (a pair of its own for each micro-batch)"
            )
        self._last, self._label = self._last + 1, label
        return self._last

    def _nested(self, eqn: Any, bodies: Sequence[Any], before: Sequence[int]) -> int:
        """A loop, or branches: one step of the chain, and a chain inside, also from one round to the next."""
        inner = next(_exchanges(bodies[0]))
        self._exchange(_label(inner), before)
        for body in bodies:
            walk = _Walk(self._function)
            outputs = walk.run(body, [0] * len(body.invars))
            if eqn.primitive.name in ("scan", "while") and len(bodies) == 1:
                walk.run(body, _next_round(eqn, body, outputs))
        return self._last


def first_key(closed: Any) -> str | None:
    """The key under which ranks make the program's first exchange, see ``call_site.h``; None: it makes none."""
    for eqn in _exchanges(closed.jaxpr):
        exchange = eqn.params["exchange"]
        operation = exchange.label.removeprefix("ep_").replace("_bwd", " backward")
        return f"{exchange.static.name}/{operation}"
    return None


def check(function: str, closed: Any) -> None:
    """ValueError unless every exchange of the program is used, and follows from the one before."""
    jaxpr = closed.jaxpr
    live, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    used = [_label(eqn) for eqn in _exchanges(live)]
    for label in (_label(eqn) for eqn in _exchanges(jaxpr)):
        if label not in used:
            raise ValueError(
                f"{function}: nothing that the function returns follows from {label}, so that it would not exist in the"
                " compiled program, and the other role would wait for it; return something that it gives"
            )
    _Walk(function).run(live, [0] * len(live.invars))
