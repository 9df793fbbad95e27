"""Which executions a process makes for its roles. Pure.

A *stream* is the executions of one function on one device, for one token rank: they come one after another, in the order of
the calls. Streams never wait for each other, but for the data that they exchange. This is why no order of operations in
XLA's programs can make two ranks wait crosswise: the operations of a stream follow from each other by their data, and what
does not is in streams of its own.
"""

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import jax
from jax.sharding import Mesh


class Side(enum.Enum):
    """The two roles: whose ranks bring tokens, and whose own experts."""

    TOKENS = "tokens"
    EXPERTS = "experts"


@dataclass(frozen=True)
class Stream:
    """``pair``: index of the function. ``rank``: the device's place in its mesh. ``domain``: the token rank it serves.

    ``position``: the rank's place in the domain: 0 the token rank, then the expert ranks.
    """

    pair: int
    domain: int
    position: int
    rank: int
    device: jax.Device


# Executions that XLA runs on one device at once. Another one would wait for one of them to end.
MOST_PER_DEVICE = 32


def check_number(pairs: Sequence[tuple[Side, Mesh]], num_token_ranks: int) -> None:
    """ValueError, in every process, if a device had more streams than XLA runs at once. ``pairs``: as for streams_of."""
    numbers: Counter[jax.Device] = Counter()
    for side, mesh in pairs:
        for device in mesh.devices.reshape(-1):
            numbers[device] += 1 if side is Side.TOKENS else num_token_ranks
    for device, number in numbers.items():
        if number > MOST_PER_DEVICE:
            raise ValueError(
                f"roles: {device} would have {number} executions under way at once: a function of expert_mesh runs once for"
                f" each of the {num_token_ranks} token ranks; XLA has at most {MOST_PER_DEVICE}, and the others would wait;"
                " use fewer functions, or several groups of fewer token ranks"
            )


def streams_of(
    pairs: Sequence[tuple[Side, Mesh]], num_token_ranks: int, process: int
) -> list[Stream]:
    """The streams of ``process``, by pair, domain and rank. ``pairs``: each function's side and mesh."""
    streams = []
    for pair, (side, mesh) in enumerate(pairs):
        here = [
            (rank, device)
            for rank, device in enumerate(mesh.devices.reshape(-1))
            if device.process_index == process
        ]
        if side is Side.TOKENS:
            streams += [Stream(pair, rank, 0, rank, device) for rank, device in here]
        else:
            streams += [
                Stream(pair, domain, 1 + rank, rank, device)
                for domain in range(num_token_ranks)
                for rank, device in here
            ]
    return streams
