"""One process of a fleet: runs the checks of a program, see harness.py. Its argument is JSON."""

import faulthandler
import importlib
import json
import pathlib
import sys
import time
import traceback
import warnings

import jax
from world import World

# After so long in one check or barrier, and again each time, a process writes where its threads are to its log.
_STALL_SECONDS = 40


def _write(path: pathlib.Path, outcomes: dict[str, str]) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(outcomes))
    new.rename(path)


def main() -> None:
    arguments = json.loads(sys.argv[1])
    # What JAX deprecates is an error where epd's package or a check uses it.
    warnings.filterwarnings("error", category=DeprecationWarning, module=r"(epd|programs|world)\b")
    faulthandler.dump_traceback_later(_STALL_SECONDS, repeat=True)
    if arguments["processes"] > 1:
        jax.distributed.initialize(
            arguments["coordinator"],
            arguments["processes"],
            arguments["index"],
            initialization_timeout=60,
        )
    world = World(tuple(arguments["mesh"]), pathlib.Path(arguments["folder"]))
    program = importlib.import_module(f"programs.{arguments['program']}")
    checks = [name for name in vars(program) if name.startswith("check_")]
    path = pathlib.Path(arguments["folder"]) / f"{arguments['index']}.json"
    outcomes: dict[str, str] = {}
    for name in checks:
        began = time.monotonic()
        faulthandler.dump_traceback_later(_STALL_SECONDS, repeat=True)  # Anew for each check.
        try:
            with world.running(name):
                getattr(program, name)(world)
            outcomes[name] = "ok"
        except Exception:  # noqa: BLE001 - the boundary of a check: whatever went wrong is its outcome.
            outcomes[name] = traceback.format_exc()[-5000:]
        print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
        _write(path, outcomes)
        world.barrier(f"after {name}")


if __name__ == "__main__":
    main()
