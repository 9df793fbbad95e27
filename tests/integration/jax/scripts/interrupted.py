"""A rank whose peers do not come; the test sends Ctrl-C. Arguments: where it waits, and its rank.

``forming``: for a second rank that never joins. ``running``: for one that joins and makes no call until it is told to."""

import contextlib
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


def _interrupted(wait) -> None:
    print("waiting", flush=True)
    try:
        wait()
    except KeyboardInterrupt:
        print(f"interrupted {time.clock_gettime(time.CLOCK_MONOTONIC)}", flush=True)
    else:
        raise AssertionError("nobody interrupted it")


def main() -> None:
    where, rank = sys.argv[1], int(sys.argv[2])
    if where == "forming":
        return _interrupted(lambda: _join(rank))
    group = _join(rank)
    _prepare(group)
    if rank == 0:
        _interrupted(lambda: _prepare(group))
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
