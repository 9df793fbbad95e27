"""Arguments that groups of all frameworks take, each checked. ``function`` is for messages; ``integer`` reads an int."""

import operator
import re
from collections import Counter
from collections.abc import Callable, Sequence

MOST_NAME_BYTES = 60
MOST_JOB_BYTES = 120

Integer = Callable[[str, str, object], int]


def integer(function: str, name: str, value: object) -> int:
    """``value`` as int; TypeError if it is none."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise TypeError(f"{function}: {name} must be an int, got {type(value).__name__}") from error


def listed(values: Sequence[object]) -> str:
    """A list for messages, cut short."""
    shown = ", ".join(str(value) for value in values[:16])
    return f"[{shown}{', ...' if len(values) > 16 else ''}]"


def check_text(function: str, argument: str, text: object, most_bytes: int) -> str:
    """``text``; TypeError if it is no str, ValueError unless printable ASCII without spaces and slashes, and short."""
    if not isinstance(text, str):
        raise TypeError(f"{function}: {argument} must be a str, got {type(text).__name__}")
    if not re.fullmatch(r"[!-.0-~]+", text) or len(text) > most_bytes:
        raise ValueError(
            f"{function}: {argument} is {text!r}; expected 1 to {most_bytes} printable ASCII characters without spaces"
            " and slashes"
        )
    return text


def positive(function: str, integer: Integer, **sizes: object) -> dict[str, int]:
    """The sizes as ints; TypeError if one is none, ValueError naming it unless in [1, 2**31)."""
    checked = {name: integer(function, name, value) for name, value in sizes.items()}
    for name, value in checked.items():
        if not 1 <= value < 2**31:
            raise ValueError(f"{function}: {name} is {value}; expected 1 to 2**31 - 1")
    return checked


def seconds(function: str, argument: str, value: object) -> float | None:
    """``value`` in seconds; TypeError if it is no number, ValueError unless above 0. None is None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"{function}: {argument} must be a number of seconds, got {type(value).__name__}"
        )
    if not value > 0:
        raise ValueError(f"{function}: {argument} is {value}; expected more than 0 seconds")
    return float(value)


def owners(
    function: str, integer: Integer, expert_owner: object, num_experts: int, ranks: int
) -> tuple[tuple[int, ...] | None, int]:
    """The table of the experts' owners, and the most experts of a rank.

    TypeError if it is no sequence of integers, ValueError if it or num_experts does not fit.
    """
    if expert_owner is None:
        if num_experts % ranks:
            raise ValueError(
                f"{function}: num_experts is {num_experts}, which the {ranks} ranks do not divide; give expert_owner, the"
                " rank of each expert"
            )
        return None, num_experts // ranks
    try:
        given: tuple[object, ...] = tuple(expert_owner)  # type: ignore[arg-type]
    except TypeError as error:
        raise TypeError(
            f"{function}: expert_owner must be a sequence of ranks, got {type(expert_owner).__name__}"
        ) from error
    table = tuple(integer(function, "expert_owner", owner) for owner in given)
    if len(table) != num_experts:
        raise ValueError(
            f"{function}: expert_owner has {len(table)} entries; expected one for each of num_experts ({num_experts})"
        )
    if wrong := [owner for owner in table if not 0 <= owner < ranks]:
        raise ValueError(
            f"{function}: expert_owner names {listed(wrong)}; expected ranks from 0 to {ranks - 1}"
        )
    return table, max(Counter(table).values())
