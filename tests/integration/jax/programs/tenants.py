"""A job that shares its group with another one. Tenant b's rank 1 is killed in mid-operation, tenant a goes on."""

import os
import pathlib
import signal
import time

import epd.jax as ep
import jax
from five_operations import run_all
from jax._src import distributed
from world import World, fails

_CFG = ep.EpLayerConfig(top_k=2)
_ROUNDS_TOGETHER = 4
_ROUNDS_AFTER_THE_KILL = 5
_MAX_ROUNDS = 2000


def _round(world: World, tenant: str, number: int) -> None:
    """All five operations, on routing that is this tenant's own."""
    run_all(world, _CFG, world.problem(1000 * ord(tenant) + number, tokens=8))


def check_exchanges_stay_right_whatever_the_other_tenant_does(world: World):
    tenant = os.environ["EPD_TENANT"]
    killed_at = pathlib.Path(os.environ["EPD_TEST_SHARED"]) / "killed_at"
    world.bootstrap()
    for number in range(_ROUNDS_TOGETHER):
        _round(world, tenant, number)
    if tenant == "b":
        _lose_rank_1(world, killed_at)
    else:
        _go_on(world, tenant, killed_at)


def _all_agree(world: World, key: str, answer: bool) -> bool:
    """Process 0's answer, on all processes."""
    client = distributed.global_state.client
    if world.index == 0:
        client.key_value_set(key, str(answer))
    return client.blocking_key_value_get(key, 60_000) == "True"


def _go_on(world: World, tenant: str, killed_at: pathlib.Path) -> None:
    left = _ROUNDS_AFTER_THE_KILL
    for number in range(_ROUNDS_TOGETHER, _MAX_ROUNDS):
        _round(world, tenant, number)
        if _all_agree(world, f"after/{number}", killed_at.exists()):
            left -= 1
        if left == 0:
            return
    raise AssertionError("the other tenant was not killed")


def _lose_rank_1(world: World, killed_at: pathlib.Path) -> None:
    idx = world.put(world.problem(71, tokens=8).topk_idx)
    with world.context():
        prepare = jax.jit(lambda i: ep.ep_prepare(_CFG, i)[0], out_shardings=world.sharding)
        jax.block_until_ready(prepare(idx))
        world.barrier("about to die")
        if world.index == 1:
            time.sleep(1)  # Lets rank 0 wait in its operation.
            killed_at.write_text("now")
            os.kill(os.getpid(), signal.SIGKILL)
        with fails("UNAVAILABLE", "tenant=b", "rank=1", "host=", "pid="):
            jax.block_until_ready(prepare(idx))
    check = "check_exchanges_stay_right_whatever_the_other_tenant_does"
    (world.folder / "0.json").write_text(f'{{"{check}": "ok"}}')
    os._exit(0)  # JAX's own coordination would wait for the dead process.
