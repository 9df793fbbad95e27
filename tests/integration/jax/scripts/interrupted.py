"""A rank whose peers do not come; the test sends Ctrl-C. Arguments: where it waits, its rank, and who handles SIGINT.

``forming``: for a second rank that never joins. ``running``: for one that joins and makes no call until it is told to.
Handlers are set after ``epd.jax`` was imported: ``cell`` as a notebook does for each of its cells, ``asyncio`` by
``asyncio.run``, ``own`` one that raises something of its own, ``flag`` one that raises nothing."""

import asyncio
import contextlib
import signal
import sys
import time

import epd.jax as ep
import jax
import jax.numpy as jnp


def _join(rank: int) -> ep.Group:
    return ep.Group.join(
        "interrupted",
        2,
        rank,
        num_experts=2,
        max_tokens_per_rank=8,
        recv_capacity_per_rank=32,
        hidden_dim=4,
        max_token_dtype=jnp.float32,
        resource=ep.MeshResource(ep_resource="here"),
        job="interrupted",
    )


def _prepare(group: ep.Group) -> None:
    cfg = ep.EpLayerConfig(top_k=1)
    counts = jax.jit(lambda i: group.prepare(cfg, i)[0])(jnp.zeros((8, 1), jnp.int32))
    jax.block_until_ready(counts)


def _prepare_within(group: ep.Group, failures: int) -> None:
    for _ in range(failures):
        with contextlib.suppress(RuntimeError, ValueError):
            return _prepare(group)
        time.sleep(0.05)
    return _prepare(group)


class _OwnError(KeyboardInterrupt):
    pass


def _raise_own(*_: object) -> None:
    raise _OwnError


def _set_handler(handler: str) -> None:
    if handler == "cell":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    elif handler == "own":
        signal.signal(signal.SIGINT, _raise_own)
    elif handler == "flag":
        signal.signal(signal.SIGINT, lambda *_: print("noted", flush=True))


def _interrupted(wait, handler: str) -> None:
    _set_handler(handler)

    async def in_loop() -> None:
        wait()

    expected = {"own": _OwnError, "flag": Exception}.get(handler, KeyboardInterrupt)
    print("waiting", flush=True)
    try:
        if handler == "asyncio":
            asyncio.run(in_loop())
        else:
            wait()
    except expected as error:
        assert handler != "flag" or "CANCELLED" in str(error), error
        print(f"interrupted {time.clock_gettime(time.CLOCK_MONOTONIC)}", flush=True)
    else:
        raise AssertionError("nobody interrupted it")


def main() -> None:
    where, rank, handler = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if where == "forming":
        return _interrupted(lambda: _join(rank), handler)
    group = _join(rank)
    _prepare(group)
    if rank == 0:
        _interrupted(lambda: _prepare(group), handler)
        # It joins again. A call that the other rank began late can end the new formation, once.
        _prepare_within(group, 1)
    else:
        print("waiting", flush=True)
        sys.stdin.readline()
        # It is told that rank 0 has left, at each call until that one is back; or meets it at once.
        _prepare_within(group, 1000)
    print("again", flush=True)
    return None


if __name__ == "__main__":
    main()
