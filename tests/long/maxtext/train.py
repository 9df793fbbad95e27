"""One process of a comparison: trains each case in turn with MaxText's own functions, as ``maxtext.trainers.pre_train.train`` does.

    python [-m epd.jax.run FLAG] train.py CASES.json

CASES.json holds a list of lists of MaxText's words ``name=value``. Only the kind of random numbers is another: MaxText's own,
``unsafe_rbg``, depends on how arrays are split, and the runs that are compared split them differently.
"""

import json
import pathlib
import sys

import jax
from maxtext.trainers.pre_train import train


def main() -> None:
    for words in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        config, recorder = train.initialize([sys.argv[0], *words])
        jax.config.update("jax_default_prng_impl", "threefry2x32")
        train.run(config, recorder)
        print(f"trained {config.run_name}", flush=True)


if __name__ == "__main__":
    main()
