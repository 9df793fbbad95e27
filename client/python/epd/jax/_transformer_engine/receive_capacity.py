"""How many slots a rank's receive buffer needs in ``moe``, and whether the group was made with what it expects."""

import math
import operator
from typing import Any

from epd.jax.config import bootstrapped

# Slots to whose multiples the zone of each expert is padded.
ALIGNMENT = 128


def _rounded_up(count: int, to: int) -> int:
    return -(-count // to) * to


def _checked(function: str, sizes: dict[str, Any]) -> dict[str, int]:
    """The sizes as ints; TypeError and ValueError that name each one that is none, or below 1."""
    wrong = []
    for name, value in sizes.items():
        try:
            sizes[name] = operator.index(value)
        except TypeError:
            raise TypeError(
                f"{function}: {name} must be an integer, got {type(value).__name__}"
            ) from None
        if sizes[name] < 1:
            wrong.append(f"{name} is {value}; it must be 1 or more")
    if wrong:
        raise ValueError(f"{function}: " + "; ".join(wrong))
    return sizes


def get_moe_recv_capacity_per_rank(
    *,
    num_experts: int,
    num_experts_per_tok: int,
    max_tokens_per_rank: int,
    ep_size: int,
    recv_capacity_factor: float | None = None,
    alignment: int = ALIGNMENT,
) -> int:
    """Slots of a rank's receive buffer, a multiple of ``alignment``: what to give to ``ep_bootstrap`` and ``moe``.

    Args:
        num_experts: experts of a domain, a multiple of ``ep_size``.
        num_experts_per_tok: experts of a token.
        max_tokens_per_rank: most tokens that a rank sends in a call.
        ep_size: ranks of a domain.
        recv_capacity_factor: None: enough for any routing. A number, 1 or more: so many times what an even load needs,
            each expert's zone padded, and never more than is enough.
        alignment: of an expert's zone.

    Raises:
        TypeError: a size that is no integer, a factor that is no number.
        ValueError: a size below 1, experts that ``ep_size`` does not divide, a factor below 1 or not finite.
    """
    function = "get_moe_recv_capacity_per_rank"
    sizes = _checked(
        function,
        {
            "num_experts": num_experts,
            "num_experts_per_tok": num_experts_per_tok,
            "max_tokens_per_rank": max_tokens_per_rank,
            "ep_size": ep_size,
            "alignment": alignment,
        },
    )
    experts, ranks, to = sizes["num_experts"], sizes["ep_size"], sizes["alignment"]
    if experts % ranks:
        raise ValueError(
            f"{function}: num_experts is {experts}, which is not a multiple of ep_size {ranks}"
        )
    local, tokens = experts // ranks, ranks * sizes["max_tokens_per_rank"]
    # The experts of a token differ: so at most so many of its routes end on one rank, and no expert has more rows than there
    # are tokens. A zone has padding if it has a row.
    routes = tokens * min(sizes["num_experts_per_tok"], local)
    padded = (routes + min(local, routes) * (to - 1)) // to * to
    enough = min(padded, local * _rounded_up(tokens, to))
    if recv_capacity_factor is None:
        return enough
    if isinstance(recv_capacity_factor, bool) or not isinstance(recv_capacity_factor, int | float):
        raise TypeError(
            f"{function}: recv_capacity_factor must be a number or None, got {type(recv_capacity_factor).__name__}"
        )
    if not math.isfinite(recv_capacity_factor) or recv_capacity_factor < 1:
        raise ValueError(
            f"{function}: recv_capacity_factor is {recv_capacity_factor}; it must be finite, and 1 or more"
        )
    of_expert = -(-tokens * sizes["num_experts_per_tok"] // experts)
    even = local * _rounded_up(of_expert, to)
    return min(enough, _rounded_up(math.ceil(recv_capacity_factor * even), to))


def record_ep_bootstrap_signature_for_moe(
    num_experts: int,
    max_tokens_per_rank: int,
    recv_capacity_per_rank: int,
    hidden_dim: int,
    ep_size: int,
) -> None:
    """Holds what the program gave to ``ep_bootstrap`` against the group; ``moe`` itself asks the group, and needs no record.

    Raises:
        RuntimeError: not bootstrapped.
        ValueError: naming each size that differs from the group's.
    """
    sizes = bootstrapped().config
    given = {
        "num_experts": num_experts,
        "max_tokens_per_rank": max_tokens_per_rank,
        "recv_capacity_per_rank": recv_capacity_per_rank,
        "hidden_dim": hidden_dim,
        "ep_size": ep_size,
    }
    wrong = [
        f"{name} is {value}, but ep_bootstrap was given {getattr(sizes, name)}"
        for name, value in given.items()
        if value != getattr(sizes, name)
    ]
    if wrong:
        raise ValueError(
            f"record_ep_bootstrap_signature_for_moe: {'; '.join(wrong)}; give both the same"
        )
