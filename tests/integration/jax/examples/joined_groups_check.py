"""client/jax/example/joined_groups.py: values and gradients against a dense layer."""

import functools
import sys

import jax
import jax.numpy as jnp
import joined_groups as example
import launch
import numpy as np

_NARROW, _TOLERANCE = 8, 1e-3


def _check(problem, value: float, gradient: np.ndarray) -> str | None:
    rows, weights, *_ = problem
    total = weights.sum(-1, keepdims=True)

    def dense(rows):
        narrow = jnp.tanh(rows[:, :_NARROW]) * total
        return (jnp.tanh(rows) * total).sum() + (narrow**2).sum()

    want, wanted_gradient = jax.value_and_grad(dense)(rows)
    error = max(abs(value - float(want)), *np.abs(gradient - wanted_gradient).ravel(), 0)
    if error <= _TOLERANCE:
        print(f"as the dense layer, by at most {error:.1e}", flush=True)
        return None
    return f"NOT as the dense layer, by at most {error:.1e}"


if __name__ == "__main__":
    run_rank = functools.partial(example.run_rank, check=_check)
    sys.exit(launch.main(__file__, __doc__, run_rank, ranks=3, least=2))
