"""Rank 1 is killed in mid-operation: rank 0's operation fails within a second, naming it."""

import os
import pathlib
import signal
import time

import epd.jax as ep
import jax
from world import World, fails

_CFG = ep.EpLayerConfig(top_k=2)


def check_survivor_is_told_who_died(world: World):
    world.bootstrap()
    idx = world.put(world.problem(71, tokens=8).topk_idx)
    pid_file, killed_at = world.folder / "victim", world.folder / "killed_at"
    with world.context():
        prepare = jax.jit(lambda i: ep.ep_prepare(_CFG, i)[0], out_shardings=world.sharding)
        jax.block_until_ready(prepare(idx))
        if world.index == 1:
            pid_file.write_text(str(os.getpid()))
            world.barrier("about to die")
            time.sleep(1)  # Lets rank 0 wait in its operation.
            killed_at.write_text(str(time.clock_gettime(time.CLOCK_MONOTONIC)))
            os.kill(os.getpid(), signal.SIGKILL)
        world.barrier("about to die")
        with fails("UNAVAILABLE", "rank=1", "host=", f"pid={pid_file.read_text()}"):
            jax.block_until_ready(prepare(idx))
        took = time.clock_gettime(time.CLOCK_MONOTONIC) - float(killed_at.read_text())
        assert took < 1, f"{took} s after the kill"
    _leave(world.folder)


def _leave(folder: pathlib.Path) -> None:
    """JAX's own coordination would wait for the dead process."""
    (folder / "0.json").write_text('{"check_survivor_is_told_who_died": "ok"}')
    os._exit(0)
