"""A job whose process forks, spawns and executes others while its group is alive.

A process that multiprocessing starts anew (spawn, forkserver) is a job of its own and runs a layer. In a forked child XLA's
threads are missing, so no JAX program runs there, epd or not; the C library does not use them, and exchanges tokens.
"""

import multiprocessing
import os
import subprocess
import sys
import traceback
from collections.abc import Callable

import alone
import bare_client
import epd.jax as ep
from epd.jax import _ffi


def _job_of_its_own(queue) -> None:
    alone.bootstrap()
    alone.run_once(alone.layer())
    queue.put("fine")


def _own_session() -> None:
    """The child connects anew; it does not use the parent's session."""
    assert _ffi.connect("") != ""
    ep.ep_finalize()


def _exchange() -> None:
    bare_client.round_trip(f"forked-{os.getpid()}".encode())


def _run_new_process(method: str) -> None:
    """A process that multiprocessing starts with a fresh interpreter runs a layer."""
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=_job_of_its_own, args=(queue,))
    process.start()
    assert queue.get(timeout=120) == "fine"
    process.join(60)
    assert process.exitcode == 0


def _fork(ending: Callable[[], None]) -> None:
    """Runs ``ending`` in a forked child; AssertionError unless it ends without an exception."""
    child = os.fork()
    if child == 0:
        try:
            ending()
        except SystemExit as error:
            os._exit(error.code or 0)
        except BaseException:  # noqa: BLE001 - whatever it is, the child must not go on as the parent.
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def main() -> None:
    alone.bootstrap()
    step = alone.layer()
    alone.run_once(step)
    # A forked child that ends in every way it can must not touch the parent's group.
    for ending in (
        lambda: os._exit(0),
        ep.ep_finalize,
        lambda: sys.exit(0),
        _own_session,
        _exchange,
    ):
        _fork(ending)
        alone.run_once(step)
    forked = multiprocessing.get_context("fork").Process(target=ep.ep_finalize)
    forked.start()
    forked.join(60)
    assert forked.exitcode == 0
    alone.run_once(step)
    subprocess.run([sys.executable, "-c", "pass"], check=True, timeout=60, close_fds=False)
    alone.run_once(step)
    for method in ("spawn", "forkserver"):
        _run_new_process(method)
        alone.run_once(step)
    print("forks: fine", flush=True)


if __name__ == "__main__":
    main()
