"""Runs a program that was written for others so that it exchanges through epd.

::

    python -m epd.jax.run --ragged-all-to-all PROGRAM ARGS         # jax.lax.ragged_all_to_all, on CPUs
    python -m epd.jax.run --as-transformer-engine -m MODULE ARGS   # transformer_engine.jax.ep, .sharding and .moe
"""

import contextlib
import pathlib
import runpy
import sys
from collections.abc import Callable

from epd import _programs
from epd.jax.as_transformer_engine import as_transformer_engine
from epd.jax.ragged_all_to_all import ragged_all_to_all_as_lax

_OFFERS: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "--ragged-all-to-all": ragged_all_to_all_as_lax,
    "--as-transformer-engine": as_transformer_engine,
}
_USAGE = f"usage: python -m epd.jax.run [{'] ['.join(_OFFERS)}] PROGRAM ARGS (or -m MODULE ARGS)"


def _refuse(text: str) -> None:
    print(f"{_USAGE}\nepd.jax.run: {text}", file=sys.stderr)
    sys.exit(2)


def main() -> None:
    words = sys.argv[1:]
    offers = []
    while words and words[0] in _OFFERS:
        offers.append(words.pop(0))
    as_module = words[:1] == ["-m"]
    words = words[as_module:]
    if words[:1] in (["-h"], ["--help"]):
        _programs.write_out("epd.jax.run", f"{_USAGE}\n")
        return
    if words and words[0].startswith("-"):
        _refuse(f"{words[0]} is no option")
    if not offers:
        _refuse(f"say what the program is offered: {' or '.join(_OFFERS)}, or both")
    if not words:
        _refuse("name the program")
    sys.argv = words
    sys.path[0] = "" if as_module else str(pathlib.Path(words[0]).resolve().parent)
    with contextlib.ExitStack() as stack:
        for offer in offers:
            stack.enter_context(_OFFERS[offer]())
        if as_module:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
