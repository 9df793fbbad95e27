"""The training of the example, as one process of the job sees it."""

import functools
import math
import pathlib
import time

import experts
import jax
import jax.numpy as jnp
import model
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

ALIGNMENT = 8
_RATE, _DECAY_1, _DECAY_2 = 3e-3, 0.9, 0.98  # Adam.


def say(text: str) -> None:
    """Once for all processes."""
    if jax.process_index() == 0:
        print(text, flush=True)


class Job:
    def __init__(self, mesh: Mesh, sizes: model.Sizes, seed: int):
        self.mesh, self.sizes, self.seed = mesh, sizes, seed
        self.slots = experts.capacity(sizes, mesh.size, mesh.shape["ep"], ALIGNMENT)
        self.history: list[tuple[float, np.ndarray]] = []  # (loss, routes per expert) of each step

    def put(self, array: np.ndarray, spec: PartitionSpec) -> jax.Array:
        return jax.make_array_from_callback(
            array.shape, NamedSharding(self.mesh, spec), lambda index: array[index]
        )

    def params(self, params: dict) -> dict:
        """Experts split over ep, everything else on every process."""

        def place(path, array):
            is_expert = any(getattr(key, "key", None) == "experts" for key in path)
            return self.put(array, experts.EXPERTS if is_expert else PartitionSpec())

        return jax.tree_util.tree_map_with_path(place, params)

    def train(self, steps: int) -> bool:
        """Adam on the synthetic task; True if the loss ends at or below half of where it began."""
        params = self.params(model.init(self.sizes, self.seed))
        moments = [jax.tree.map(jnp.zeros_like, params) for _ in range(2)]
        state, step = (params, *moments), self._step()
        began = time.monotonic()
        for number in range(steps):
            sequences = self.put(model.batch(self.sizes, number, self.seed), experts.TOKENS)
            state, loss, load = step(state, sequences, number + 1.0)
            self.history.append((float(loss), np.asarray(load)))
            if number % 10 == 0 or number == steps - 1:
                self._report(number, steps, time.monotonic() - began)
        first = self.history[0][0]
        last = float(np.mean([loss for loss, _ in self.history[-5:]]))
        say(
            f"loss {first:.3f} -> {last:.3f} in {steps} steps ({last / first:.0%} of the initial loss)"
        )
        return last <= first / 2

    def _step(self):
        moe = experts.epd_moe(self.sizes, self.slots, ALIGNMENT)

        def update(state, sequences, count):
            params, mean, square = state
            (loss, (_, _, loads)), grads = jax.value_and_grad(
                functools.partial(model.loss, sizes=self.sizes, moe=moe), has_aux=True
            )(params, sequences)
            mean = jax.tree.map(lambda m, g: _DECAY_1 * m + (1 - _DECAY_1) * g, mean, grads)
            square = jax.tree.map(lambda s, g: _DECAY_2 * s + (1 - _DECAY_2) * g * g, square, grads)
            rate = _RATE * jnp.sqrt(1 - _DECAY_2**count) / (1 - _DECAY_1**count)
            params = jax.tree.map(
                lambda p, m, s: p - rate * m / (jnp.sqrt(s) + 1e-8), params, mean, square
            )
            return (params, mean, square), loss, loads.sum(0)

        return jax.jit(update, donate_argnums=0)

    def _report(self, number: int, steps: int, seconds: float) -> None:
        loss, load = self.history[-1]
        bar = "#" * max(1, math.ceil(30 * loss / self.history[0][0]))
        pace = 1000 * seconds / (number + 1)
        say(
            f"step {number:4d}/{steps}  loss {loss:6.3f} {bar:<32} {pace:4.0f} ms/step  load {load.tolist()}"
        )

    def plot(self, path: pathlib.Path) -> None:
        """The loss, and the tokens of each expert over time."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        losses = [loss for loss, _ in self.history]
        loads = np.stack([load for _, load in self.history], axis=1)
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
        left.plot(losses, color="tab:blue", label="loss")
        left.axhline(
            losses[0] / 2, color="tab:gray", linestyle="--", label="half of the initial loss"
        )
        left.set(xlabel="step", ylabel="cross-entropy", title="Loss", ylim=(0, None))
        left.legend()
        right.stackplot(
            range(len(losses)), loads, labels=[f"expert {e}" for e in range(len(loads))], alpha=0.85
        )
        right.set(
            xlabel="step",
            ylabel="routes per step",
            title="Tokens per expert",
            xlim=(0, len(losses) - 1),
        )
        right.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), reverse=True)
        figure.suptitle(
            f"Mixture of experts through epd, dp x ep = {self.mesh.shape['dp']} x {self.mesh.shape['ep']}"
        )
        figure.savefig(path, dpi=120)
