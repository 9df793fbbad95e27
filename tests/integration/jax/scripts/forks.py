"""A job whose process forks and spawns while its group is alive."""

import multiprocessing
import os
import sys

import alone
import epd.jax as ep


def _child_of_spawn(queue) -> None:
    alone.bootstrap()
    alone.run_once(alone.layer())
    queue.put("fine")


def main() -> None:
    alone.bootstrap()
    step = alone.layer()
    alone.run_once(step)
    # A forked child that ends in every way it can must not touch the parent's group.
    for ending in (lambda: os._exit(0), ep.ep_finalize, lambda: sys.exit(0)):
        child = os.fork()
        if child == 0:
            try:
                ending()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        alone.run_once(step)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_child_of_spawn, args=(queue,))
    process.start()
    assert queue.get(timeout=120) == "fine"
    process.join(60)
    assert process.exitcode == 0
    alone.run_once(step)
    print("forks: fine", flush=True)


if __name__ == "__main__":
    main()
