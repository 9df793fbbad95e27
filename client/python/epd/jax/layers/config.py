"""What a mixture-of-experts layer is made of: static, hashable configurations, checked where they are made."""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from epd.jax.config import dtype_of
from epd.jax.layers.grouped_gemm import RAGGED_DOT, GroupedGemm

_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "relu": jax.nn.relu,
}


# What a router may make of its logits.
SCORINGS = ("softmax", "sigmoid", "sqrtsoftplus")


def _wrong_count(name: str, value: Any, least: int) -> str | None:
    try:
        count = operator.index(value)
    except TypeError:
        return f"{name} must be an integer, got {value!r}"
    return None if count >= least else f"{name} is {count}; it must be {least} or more"


def _wrong_choice(name: str, value: Any, allowed: Iterable[str]) -> str | None:
    known = tuple(allowed)
    return None if value in known else f"{name} is {value!r}; it must be one of {known}"


def floating(function: str, name: str, dtype: Any) -> np.dtype:
    """``dtype``; TypeError if it is none, ValueError if it is not floating."""
    known = dtype_of(function, name, dtype)
    if not jnp.issubdtype(known, jnp.floating):
        raise ValueError(f"{function}: {name} is {known}; expected a floating one")
    return known


def _wrong_precision(value: Any) -> str | None:
    matrix = jax.ShapeDtypeStruct((1, 1), jnp.float32)
    try:
        jax.eval_shape(lambda a: jax.lax.dot(a, a, precision=value), matrix)
    except (TypeError, ValueError):
        return f"precision is {value!r}; it must be one that jax.lax.dot takes, or None"
    return None


def _wrong_number(name: str, value: Any) -> str | None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    return None if fits else f"{name} is {value!r}; it must be a number, 0 or more"


def _raise(kind: str, wrong: Iterable[str | None]) -> None:
    found = [text for text in wrong if text]
    if found:
        raise ValueError(f"{kind}: " + "; ".join(found))


@dataclass(frozen=True)
class RouterConfig:
    """Which experts a token goes to, and with which weights. Static and hashable.

    Scores are the softmax, the sigmoid or the root of the softplus of ``tokens @ kernel`` in float32. The ``top_k`` experts of the highest scores are
    chosen; with ``selection_bias`` a bias per expert is added for that choice alone, so it moves load and no gradient.
    The weights are the chosen scores; ``normalize`` divides them by their sum; ``scale`` multiplies them.

    Args:
        num_experts: experts of a domain, E.
        top_k: experts of a token, K.
        scoring: "softmax", "sigmoid" or "sqrtsoftplus".
        normalize: the weights of a token sum to ``scale``. Computed on logarithms: sound when every score underflows.
        scale: factor of the weights.
        num_groups: the experts form this many groups of equal size, of which each token may use ``groups_kept``.
        groups_kept: see above; the groups of the highest group scores.
        group_score: of a group, from its experts' scores with the bias: "max", or "top2", the sum of the best two.
        selection_bias: whether the parameters hold one.
        balance_loss: coefficient of the load-balancing loss ``E * sum_e f_e P_e``, which is 1 for an even load; ``f_e`` is
            the part of the routes that go to expert e, ``P_e`` the mean of its score over the sum of all scores.
        balance_over: over which tokens f, P and the mean of the z-loss are taken: "global", all ranks' (one all-reduce of E
            integers); "rank", a rank's own; "sequence", each sequence's of tokens ``[B, S, H]``; of these the mean is taken.
        z_loss: coefficient of the mean of ``logsumexp(logits)**2``.

    Raises:
        ValueError: naming each field that is wrong, what it is, and what it must be.
    """

    num_experts: int
    top_k: int
    scoring: str = "softmax"
    normalize: bool = True
    scale: float = 1.0
    num_groups: int = 1
    groups_kept: int = 1
    group_score: str = "max"
    selection_bias: bool = False
    balance_loss: float = 0.0
    balance_over: str = "global"
    z_loss: float = 0.0

    def __post_init__(self) -> None:
        counts = ("num_experts", "top_k", "num_groups", "groups_kept")
        wrong = [_wrong_count(name, getattr(self, name), 1) for name in counts]
        wrong += [
            _wrong_choice("scoring", self.scoring, SCORINGS),
            _wrong_choice("group_score", self.group_score, ("max", "top2")),
            _wrong_choice("balance_over", self.balance_over, ("global", "rank", "sequence")),
        ]
        numbers = ("scale", "balance_loss", "z_loss")
        wrong += [_wrong_number(name, getattr(self, name)) for name in numbers]
        _raise("RouterConfig", wrong)
        _raise("RouterConfig", self._wrong_groups())
        for name in numbers:  # NumPy's float64 is a float, but no weak type: it would widen what it is multiplied with.
            object.__setattr__(self, name, float(getattr(self, name)))

    def _wrong_groups(self) -> list[str]:
        if self.num_experts % self.num_groups:
            return [
                f"num_experts {self.num_experts} is not a multiple of num_groups {self.num_groups}"
            ]
        size, wrong = self.num_experts // self.num_groups, []
        if self.groups_kept > self.num_groups:
            wrong.append(
                f"groups_kept is {self.groups_kept}, more than num_groups {self.num_groups}"
            )
        elif self.top_k > size * self.groups_kept:
            wrong.append(
                f"top_k is {self.top_k}, but a token may use {size * self.groups_kept} experts"
                f" (groups_kept {self.groups_kept} of {size})"
            )
        if self.num_groups > 1 and self.group_score == "top2" and size < 2:
            wrong.append(
                f"group_score 'top2' needs groups of 2 or more experts, but they have {size}"
            )
        return wrong


@dataclass(frozen=True)
class Axes:
    """Names of the parameters' dimensions: mesh axes, or logical names that ``rules`` maps to mesh axes.

    Args:
        expert: of the experts; must mean the MeshResource's ``ep_resource``. None: that axis.
        mlp: of the inner dimension of an expert (tensor parallelism: one all-reduce of the rows over that axis). None: whole.
        embed: of the hidden dimension, for where parameters lie (fsdp): XLA gathers them before use. None: whole.
        rules: pairs (logical name, mesh axis or None), or a mapping; the first pair with the name counts.

    Raises:
        ValueError: a name that is no string, rules that are no pairs.
    """

    expert: str | None = None
    mlp: str | None = None
    embed: str | None = None
    rules: tuple[tuple[str, str | None], ...] = ()

    def __post_init__(self) -> None:
        names = {name: getattr(self, name) for name in ("expert", "mlp", "embed")}
        wrong = [
            f"{name} is {value!r}; it must be a string or None"
            for name, value in names.items()
            if not isinstance(value, str | None)
        ]
        rules = self.rules.items() if isinstance(self.rules, Mapping) else self.rules
        try:
            rules = tuple((name, axis) for name, axis in rules)
        except (TypeError, ValueError):
            wrong.append(f"rules is {self.rules!r}; it must be pairs (logical name, mesh axis)")
        _raise("Axes", wrong)
        object.__setattr__(self, "rules", rules)

    def resolve(self, name: str | None) -> str | None:
        """The mesh axis that ``name`` means; a name without a rule is a mesh axis itself."""
        return next((axis for logical, axis in self.rules if logical == name), name)


@dataclass(frozen=True)
class MoeConfig:
    """One layer: router, experts, shared experts, and how they are spread. Static and hashable.

    An expert is ``down(activation(gate(x)) * up(x))``, or ``down(activation(up(x)))`` if it is not gated.

    Args:
        hidden_dim: of a token, H; the group's.
        ffn_dim: inner dimension of an expert, F.
        router: see RouterConfig; its num_experts is the group's.
        activation: "silu", "gelu", "relu", or a function of an array.
        gated: as above.
        use_bias: experts have biases.
        apply_weights: where a route's weight is multiplied in: "late", to the expert's row; "early", to its inner row
            before the last matrix (and to that one's bias): the same sum in another rounding, and the backward pass
            then needs no expert row, which rematerialisation need not make again. Before the activation is no place for it.
        shared_ffn_dim: inner dimension of the shared experts together, through which every token goes; 0: none. Several
            shared experts of one width are one of their summed widths.
        shared_gate: the shared experts' rows are multiplied by ``sigmoid(tokens @ shared.mix)``.
        gemm: the grouped matrix product; see ``epd.jax.layers.grouped_gemm``.
        alignment: of an expert's zone in the receive buffer; None: what ``gemm`` wants for the tokens' dtype.
        precision: of the products of experts and shared experts, as ``jax.lax.dot``'s, whatever
            ``jax.default_matmul_precision`` says; None: what that says while the layer is traced, which on GPUs may be less
            than float32 for float32. The router's, and that of ``shared_gate``, is always the highest.
        recv_capacity: slots of a rank's receive buffer; None: enough for any routing, at most the group's.
        axes: see Axes.

    Raises:
        ValueError: naming each field that is wrong, what it is, and what it must be.
        TypeError: ``router``, ``gemm`` or ``axes`` of another type.
    """

    hidden_dim: int
    ffn_dim: int
    router: RouterConfig
    activation: str | Callable[[jax.Array], jax.Array] = "silu"
    gated: bool = True
    use_bias: bool = False
    apply_weights: str = "late"
    shared_ffn_dim: int = 0
    shared_gate: bool = False
    gemm: GroupedGemm = RAGGED_DOT
    alignment: int | None = None
    precision: jax.lax.Precision | str | None = None
    recv_capacity: int | None = None
    axes: Axes = field(default_factory=Axes)

    def __post_init__(self) -> None:
        for name, kind in (("router", RouterConfig), ("gemm", GroupedGemm), ("axes", Axes)):
            if not isinstance(getattr(self, name), kind):
                raise TypeError(
                    f"MoeConfig: {name} must be of type {kind.__name__}, got {getattr(self, name)!r}"
                )
        wrong = [_wrong_count(name, getattr(self, name), 1) for name in ("hidden_dim", "ffn_dim")]
        wrong.append(_wrong_count("shared_ffn_dim", self.shared_ffn_dim, 0))
        wrong.append(_wrong_choice("apply_weights", self.apply_weights, ("late", "early")))
        if not callable(self.activation):
            wrong.append(_wrong_choice("activation", self.activation, _ACTIVATIONS))
        if self.precision is not None:
            wrong.append(_wrong_precision(self.precision))
        if self.recv_capacity is not None:
            wrong.append(_wrong_count("recv_capacity", self.recv_capacity, 1))
        if self.alignment is not None:
            wrong.append(
                _wrong_count("alignment", self.alignment, 0)
                or self._wrong_alignment(self.alignment)
            )
        if self.shared_gate and not self.shared_ffn_dim:
            wrong.append("shared_gate is set, but shared_ffn_dim is 0: there are no shared experts")
        _raise("MoeConfig", wrong)

    @staticmethod
    def _wrong_alignment(alignment: int) -> str | None:
        bad = alignment & (alignment - 1)
        return f"alignment is {alignment}; it must be 0 or a power of two" if bad else None

    @property
    def wants_losses(self) -> bool:
        """Whether any loss of the router has a coefficient."""
        return self.router.balance_loss > 0 or self.router.z_loss > 0

    @property
    def activate(self) -> Callable[[jax.Array], jax.Array]:
        return self.activation if callable(self.activation) else _ACTIVATIONS[self.activation]

    def alignment_for(self, dtype: DTypeLike) -> int:
        """Slots to whose multiples the zones of the receive buffer are padded, for tokens of ``dtype``."""
        return self.gemm.row_alignment(dtype) if self.alignment is None else self.alignment
