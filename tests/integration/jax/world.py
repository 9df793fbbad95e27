"""What the checks of a program work with: the mesh, global arrays, comparisons of local shards."""

import contextlib
import pathlib
import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
import reference
from jax._src import distributed
from jax.sharding import Mesh, NamedSharding, PartitionSpec

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "all_gather",
    "all_reduce",
    "reduce_scatter",
    "all_to_all",
    "collective_permute",
)


@dataclass
class Problem:
    """Random routing and data of all ranks: [R*T, ...], and the plan of each domain."""

    topk_idx: np.ndarray
    tokens: np.ndarray
    weights: np.ndarray
    plans: list[reference.Plan]
    capacity: int


class World:
    def __init__(self, mesh: tuple[int, int], folder: pathlib.Path):
        self.dp, self.ep = mesh
        self.num_ranks = self.dp * self.ep
        self.folder = folder
        self.mesh = Mesh(np.array(jax.devices()[: self.num_ranks]).reshape(mesh), ("dp", "ep"))
        self.resource = ep.MeshResource(dp_resource="dp", ep_resource="ep")
        self.spec = PartitionSpec(("dp", "ep"))
        self.sharding = NamedSharding(self.mesh, self.spec)
        self.sizes: dict = {}
        self.check = ""

    # ---- processes ----

    def barrier(self, name: str, seconds: float = 120) -> None:
        """Waits for all processes; AssertionError as soon as one of them has failed in the check that is running.

        Not JAX's own barrier, which would hold the others up to its deadline, and hide what failed first.
        """
        client = distributed.global_state.client
        if client is None:
            return
        folder = f"barrier/{self.check or 'between checks'}/{name}/"
        client.key_value_set(f"{folder}{self.index}", "here")
        deadline = time.monotonic() + seconds
        while True:
            here = sorted(int(key.rsplit("/", 1)[1]) for key, _ in client.key_value_dir_get(folder))
            if len(here) == jax.process_count():
                return
            failed = client.key_value_dir_get(f"failed/{self.check}/") if self.check else []
            text = "; ".join(f"process {key.rsplit('/', 1)[1]}: {why}" for key, why in failed)
            assert not failed, f"at '{name}', another process failed in {self.check}: {text}"
            assert time.monotonic() < deadline, (
                f"at '{name}', only processes {here} of {jax.process_count()} came within {seconds} s"
            )
            time.sleep(0.005)

    @contextlib.contextmanager
    def running(self, check: str) -> Iterator[None]:
        """The check that runs inside. If it fails, the others' barriers in it say so."""
        self.check = check
        try:
            yield
        except Exception as error:
            if (client := distributed.global_state.client) is not None:
                client.key_value_set(
                    f"failed/{check}/{self.index}", f"{type(error).__name__}: {error}"[:500]
                )
            raise
        finally:
            self.check = ""

    @property
    def index(self) -> int:
        return jax.process_index()

    # ---- the group ----

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        with jax.set_mesh(self.mesh), ep.global_shard_guard(self.resource):
            yield

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """The mesh as a context, which JAX deprecates, and the harness forbids everywhere else."""
        before = jax.config.jax_disallow_mesh_context_manager
        jax.config.update("jax_disallow_mesh_context_manager", False)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                with self.mesh:
                    yield
        finally:
            jax.config.update("jax_disallow_mesh_context_manager", before)

    def bootstrap(self, **sizes) -> None:
        """Bootstraps anew with these sizes, unless they are the current ones."""
        defaults = {
            "num_experts": 2 * self.ep,
            "max_tokens": 16,
            "capacity": 128,
            "hidden": 8,
            "dtype": jnp.float32,
        }
        wanted = {**defaults, "drop": False, **sizes}
        if wanted == self.sizes:
            return
        ep.ep_finalize()
        self.sizes = {}
        with self.context():
            ep.ep_bootstrap(
                world_size=self.num_ranks,
                rank=jax.process_index(),
                num_experts=wanted["num_experts"],
                max_tokens_per_rank=wanted["max_tokens"],
                recv_capacity_per_rank=wanted["capacity"],
                hidden_dim=wanted["hidden"],
                max_token_dtype=wanted["dtype"],
                drop_on_overflow=wanted["drop"],
            )
        self.sizes = wanted

    # ---- data ----

    def put(self, array: np.ndarray, spec: PartitionSpec | None = None) -> jax.Array:
        """A global array of which every process knows the whole."""
        sharding = self.sharding if spec is None else NamedSharding(self.mesh, spec)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    def problem(
        self,
        seed: int,
        tokens: int,
        top_k: int = 2,
        alignment: int = 0,
        dtype=np.float32,
        **options,
    ) -> Problem:
        """Random tokens; a fifth of the routes are -1 unless ``topk_idx`` is given."""
        print(f"seed {seed}", flush=True)
        rng = np.random.default_rng(seed)
        experts, hidden, rows = (
            self.sizes["num_experts"],
            self.sizes["hidden"],
            self.num_ranks * tokens,
        )
        idx = options.get("topk_idx")
        if idx is None:
            idx = rng.integers(0, experts, (rows, top_k))
            idx[rng.random(idx.shape) < 0.2] = -1
        data = rng.standard_normal((rows, hidden)).astype(dtype)
        weights = rng.random((rows, top_k)).astype(np.float32)
        by_domain = idx.reshape(self.dp, self.ep, tokens, top_k)
        plans = [reference.plan(domain, experts, alignment) for domain in by_domain]
        capacity = options.get("capacity", self.sizes["capacity"])
        return Problem(idx.astype(np.int32), data, weights, plans, capacity)

    def scatter(self, problem: Problem, rows: np.ndarray) -> np.ndarray:
        parts = rows.reshape(self.dp, self.ep, -1, rows.shape[-1])
        pairs = zip(problem.plans, parts, strict=True)
        return np.concatenate(
            [reference.scatter(plan, part, problem.capacity) for plan, part in pairs]
        )

    def scatter_weights(self, problem: Problem, weights: np.ndarray) -> np.ndarray:
        parts = weights.reshape(self.dp, self.ep, -1, weights.shape[-1])
        pairs = zip(problem.plans, parts, strict=True)
        return np.concatenate(
            [reference.scatter_weights(plan, part, problem.capacity) for plan, part in pairs]
        )

    def gather(self, problem: Problem, rows: np.ndarray) -> np.ndarray:
        parts = rows.reshape(self.dp, self.ep, *rows.shape[1:])
        pairs = zip(problem.plans, parts, strict=True)
        return np.concatenate(
            [reference.gather(plan, part).reshape(-1, rows.shape[-1]) for plan, part in pairs]
        )

    def gather_weights(self, problem: Problem, weights: np.ndarray) -> np.ndarray:
        parts = weights.reshape(self.dp, self.ep, *weights.shape[1:])
        pairs = zip(problem.plans, parts, strict=True)
        top_k = problem.weights.shape[-1]
        return np.concatenate(
            [reference.gather_weights(plan, part).reshape(-1, top_k) for plan, part in pairs]
        )

    def expert_rows(self, problem: Problem, seed: int, dtype=np.float32) -> np.ndarray:
        """Random [R, C, H] with NaN in every slot that holds no row: it must never be read."""
        rng = np.random.default_rng(seed)
        rows = rng.standard_normal((self.num_ranks, problem.capacity, self.sizes["hidden"])).astype(
            dtype
        )
        ones = np.ones(problem.weights.shape, np.float32)
        rows[self.scatter_weights(problem, ones) == 0] = np.nan
        return rows

    # ---- comparisons ----

    def expect_equal(self, array: jax.Array, expected: np.ndarray, what: str = "") -> None:
        """Every local shard has the expected bits (numerically: -0 is 0)."""
        assert array.shape == expected.shape, (what, array.shape, expected.shape)
        for shard in array.addressable_shards:
            np.testing.assert_array_equal(
                np.asarray(shard.data).astype(np.float64),
                expected[shard.index].astype(np.float64),
                err_msg=what,
            )

    def expect_close(
        self, array: jax.Array, expected: np.ndarray, tolerance: float = 1e-5, what: str = ""
    ) -> None:
        assert array.shape == expected.shape, (what, array.shape, expected.shape)
        for shard in array.addressable_shards:
            np.testing.assert_allclose(
                np.asarray(shard.data).astype(np.float64),
                expected[shard.index].astype(np.float64),
                rtol=tolerance,
                atol=tolerance,
                err_msg=what,
            )


@contextlib.contextmanager
def fails(code: str, *texts: str) -> Iterator[None]:
    """The block raises an error of epd with this code, whose text has all of ``texts``."""
    try:
        with ep.ep_errors():
            yield
            ep.check()  # Where the operation is in a GPU's stream.
    except ep.EpError as error:
        assert error.code == code, f"expected {code}, got: {error}"
        missing = [text for text in texts if text not in str(error)]
        assert not missing, f"{missing} not in: {error}"
        _expect_words(error)
        return
    raise AssertionError(f"no error, expected {code}")


def _expect_words(error: ep.EpError) -> None:
    """What holds for every error: names that a user can type, each place once, and one thing to do."""
    text = str(error)
    inner = (
        r"\b(hidden|num_ranks|num_tokens|recv_capacity|spec_hash|row_bytes|plan_id|EPD_DTYPE\w+)\b"
    )
    assert not (found := re.findall(inner, text)), f"{found} in: {text}"
    for key in ("group", "tenant", "epoch"):
        said = re.findall(rf"\b{key}=[^\s:;,)]+", text)
        assert not said or said.count(said[0]) == 1, f"{said[0]} twice in: {text}"
    assert "join again" not in text.replace("which then join again", ""), text
    again = {
        "ABORTED": "call again",
        "UNAVAILABLE": "call again",
        "DEADLINE_EXCEEDED": "call again",
    }
    if error.code != "FAILED_PRECONDITION":
        assert error.retry == again.get(error.code, "no"), (error.retry, text)
    if error.retry != "no" and "no epd answers" not in text and "not bootstrapped" not in text:
        assert f": {error.retry}" in text or f"] {error.retry}" in text, text


@contextlib.contextmanager
def raises(kind: type[BaseException], *texts: str) -> Iterator[None]:
    """The block raises ``kind`` itself (no subclass), whose text has all of ``texts``."""
    try:
        yield
    except BaseException as error:
        if type(error) is not kind:
            raise
        missing = [text for text in texts if text not in str(error)]
        assert not missing, f"{missing} not in: {error}"
        return
    raise AssertionError(f"no error, expected {kind.__name__}")
