"""Check and training of the example, as one process of the job sees them."""

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

_ALIGNMENT = 8
_RATE, _DECAY_1, _DECAY_2 = 3e-3, 0.9, 0.98  # Adam.
_TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}


def _relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """Largest difference over the largest value."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    scale = np.abs(want).max()
    return float(np.abs(got - want).max() / scale) if scale > 0 else float(np.abs(got).max())


class Job:
    def __init__(self, mesh: Mesh, sizes: model.Sizes, seed: int):
        self._mesh, self._sizes, self._seed = mesh, sizes, seed
        self.slots = experts.capacity(sizes, mesh.size, mesh.shape["ep"], _ALIGNMENT)
        self.history: list[tuple[float, np.ndarray]] = []  # (loss, routes per expert) of each step

    # ---- arrays ----

    def _put(self, array: np.ndarray, spec: PartitionSpec) -> jax.Array:
        return jax.make_array_from_callback(
            array.shape, NamedSharding(self._mesh, spec), lambda index: array[index]
        )

    def _params(self, params: dict) -> dict:
        """Experts split over ep, everything else on every process."""

        def place(path, array):
            is_expert = any(getattr(key, "key", None) == "experts" for key in path)
            return self._put(array, experts.EXPERTS if is_expert else PartitionSpec())

        return jax.tree_util.tree_map_with_path(place, params)

    def _whole(self, tree):
        """The tree's arrays on every process, as NumPy."""
        replicate = jax.jit(lambda t: t, out_shardings=NamedSharding(self._mesh, PartitionSpec()))
        return jax.tree.map(np.asarray, replicate(tree))

    def _say(self, text: str) -> None:
        if jax.process_index() == 0:
            print(text, flush=True)

    # ---- check ----

    def check(self, corrupt: bool) -> bool:
        """Forward and gradients equal the dense reference's, in float32 and bfloat16."""
        params, sequences = (
            model.init(self._sizes, self._seed),
            model.batch(self._sizes, 0, self._seed),
        )
        return all([self._check_dtype(name, params, sequences, corrupt) for name in _TOLERANCE])

    def _check_dtype(self, dtype: str, params: dict, sequences: np.ndarray, corrupt: bool) -> bool:
        moe = experts.epd_moe(self._sizes, self.slots, _ALIGNMENT, corrupt)
        graded = jax.jit(
            jax.value_and_grad(
                functools.partial(model.loss, sizes=self._sizes, moe=moe, dtype=jnp.dtype(dtype)),
                has_aux=True,
            )
        )
        (_, (logits, routes, _)), grads = graded(
            self._params(params), self._put(sequences, experts.TOKENS)
        )
        logits, routes, grads = self._whole((logits, routes, grads))
        good = True
        if jax.process_index() == 0:  # The others wait in _agree.
            good = self._compare(
                dtype, (logits, grads), self._reference(dtype, params, sequences, routes)
            )
        return self._agree(good)

    def _compare(self, dtype: str, got, want) -> bool:
        """Whether all arrays are near enough; says which one is the farthest."""
        errors = {
            jax.tree_util.keystr(path): _relative_error(array, expected)
            for (path, array), expected in zip(
                jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True
            )
        }
        errors = {
            ("logits" if key == "[0]" else "gradient of " + key[3:]): error
            for key, error in errors.items()
        }
        worst = max(errors, key=errors.__getitem__)
        good = errors[worst] <= _TOLERANCE[dtype]
        self._say(
            f"check {dtype}: {'passed' if good else 'FAILED'}; largest relative error {errors[worst]:.1e} in {worst},"
            f" allowed {_TOLERANCE[dtype]:.0e}, of {len(errors)} arrays"
        )
        return good

    def _agree(self, good: bool) -> bool:
        """True if it is so on every process."""
        flags = jax.make_array_from_callback(
            (self._mesh.size,),
            NamedSharding(self._mesh, experts.TOKENS),
            lambda index: np.array([good]),
        )
        return bool(self._whole(flags).all())

    def _reference(self, dtype: str, params: dict, sequences: np.ndarray, routes: np.ndarray):
        """The dense model on this process's first device, with no mesh."""
        moe = model.dense_moe(self._sizes, jnp.asarray(routes))
        device = jax.local_devices()[0]
        local = jax.sharding.SingleDeviceSharding(device)

        def step(params, sequences):
            value = functools.partial(
                model.loss, sizes=self._sizes, moe=moe, dtype=jnp.dtype(dtype)
            )
            (_, (logits, _, _)), grads = jax.value_and_grad(value, has_aux=True)(params, sequences)
            return logits, grads

        with jax.set_mesh(jax.sharding.Mesh(np.array([device]), ("one",))):
            return jax.jit(step)(*jax.device_put((params, sequences), local))

    # ---- training ----

    def train(self, steps: int) -> bool:
        """Adam on the synthetic task; True if the loss ends at or below half of where it began."""
        params = self._params(model.init(self._sizes, self._seed))
        moments = [jax.tree.map(jnp.zeros_like, params) for _ in range(2)]
        state, step = (params, *moments), self._step()
        began = time.monotonic()
        for number in range(steps):
            sequences = self._put(model.batch(self._sizes, number, self._seed), experts.TOKENS)
            state, loss, load = step(state, sequences, number + 1.0)
            self.history.append((float(loss), np.asarray(load)))
            if number % 10 == 0 or number == steps - 1:
                self._report(number, steps, time.monotonic() - began)
        first = self.history[0][0]
        last = float(np.mean([loss for loss, _ in self.history[-5:]]))
        self._say(
            f"loss {first:.3f} -> {last:.3f} in {steps} steps ({last / first:.0%} of the initial loss)"
        )
        return last <= first / 2

    def _step(self):
        moe = experts.epd_moe(self._sizes, self.slots, _ALIGNMENT)

        def update(state, sequences, count):
            params, mean, square = state
            (loss, (_, _, loads)), grads = jax.value_and_grad(
                functools.partial(model.loss, sizes=self._sizes, moe=moe), has_aux=True
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
        self._say(
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
            f"Mixture of experts through epd, dp x ep = {self._mesh.shape['dp']} x {self._mesh.shape['ep']}"
        )
        figure.savefig(path, dpi=120)
