"""One process of a comparison: trains each case in turn with MaxText's own functions, as ``maxtext.trainers.pre_train.train`` does.

    python [-m epd.jax.run FLAG] train.py CASES.json

CASES.json holds a list of lists of MaxText's words ``name=value``; beside it each run leaves ``<run_name>.<process>.jsonl``, a line of
metrics for each step. Only the kind of random numbers is another: MaxText's own,
``unsafe_rbg``, depends on how arrays are split, and the runs that are compared split them differently.
"""

import json
import os
import pathlib
import sys

import jax
from absl import logging
from maxtext.trainers.pre_train import train


def main() -> None:
    logging.set_verbosity(logging.INFO)  # What ends a training early is told there alone.
    listed = pathlib.Path(sys.argv[1])
    for words in json.loads(listed.read_text()):
        # Every process writes its metrics: to a file of its own.
        name = dict(word.split("=", 1) for word in words)["run_name"]
        file = listed.parent / f"{name}.{os.environ.get('NODE_RANK', '0')}.jsonl"
        config, recorder = train.initialize([sys.argv[0], *words, f"metrics_file={file}"])
        jax.config.update("jax_default_prng_impl", "threefry2x32")
        train.run(config, recorder)
        print(f"trained {config.run_name}", flush=True)


if __name__ == "__main__":
    main()
