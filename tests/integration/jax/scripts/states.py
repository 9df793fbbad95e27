"""One of two ranks, which says at each turn where its group is. Arguments: its rank; then what the test tells it to do.

A line of standard input is a turn, and is answered with one line. ``join`` begins to join in a thread; ``look`` says state,
epoch and what ``Group.get`` finds; ``wait SECONDS`` calls ``wait_ready``; ``step`` makes a call; ``finalize`` leaves, ``connect`` comes
back; ``load`` forks a data loader, which has copies of all descriptors and never ends, and says its pid."""

import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable

import epd.jax as ep
import jax
import jax.numpy as jnp

_NAME = "states"


def _make(rank: int) -> ep.Group:
    return ep.Group.join(
        _NAME,
        2,
        rank,
        num_experts=2,
        max_tokens_per_rank=8,
        recv_capacity_per_rank=32,
        hidden_dim=4,
        max_token_dtype=jnp.float32,
        job=_NAME,
        connect=False,
    )


def _found(group: ep.Group) -> str:
    try:
        return "found" if ep.Group.get(_NAME) is group else "another one"
    except ValueError:
        return "not found"


def _turns(group: ep.Group) -> dict[str, Callable[[str], str]]:
    cfg = ep.EpLayerConfig(top_k=1)
    prepare = jax.jit(lambda i: group.prepare(cfg, i)[1])
    joins: list[threading.Thread] = []

    def join(_: str) -> str:
        joins.append(threading.Thread(target=group.connect, daemon=True))
        joins[-1].start()
        return "joins"

    def joined(_: str) -> str:
        joins[-1].join(60)
        return "joins" if joins[-1].is_alive() else "joined"

    def look(_: str) -> str:
        return f"{group.state} {group.epoch} {_found(group)}"

    def wait(seconds: str) -> str:
        group.wait_ready(timeout=float(seconds))
        return "ready"

    def step(_: str) -> str:
        with ep.ep_errors():
            return f"{int(prepare(jnp.zeros((8, 1), jnp.int32)).sum())} rows"

    def finalize(_: str) -> str:
        group.finalize()
        return "left"

    def connect(_: str) -> str:
        group.connect()
        return "connected"

    def load(_: str) -> str:
        loader = multiprocessing.get_context("fork").Process(target=signal.pause)
        loader.start()
        return str(loader.pid)

    return {
        turn.__name__: turn for turn in (join, joined, look, wait, step, finalize, connect, load)
    }


def main() -> None:
    group = _make(int(sys.argv[1]))
    turns = _turns(group)
    for line in sys.stdin:
        what, _, argument = line.strip().partition(" ")
        try:
            answer = turns[what](argument)
        except ep.EpError as error:
            answer = f"{error.code} ({error.retry}) " + " ".join(str(error).split())
        print(answer, flush=True)


if __name__ == "__main__":
    main()
