"""What every contender of the benchmark gets: sizes, tokens and routing from one seed, and the right results in NumPy.

Layout of results (the one that epd documents): a rank's receive buffer [C, H] holds the rows of its experts one expert
after the other, inside an expert by (source rank, token, k); the rest is zeros. Combine's input is that buffer with every
row multiplied by its expert's scale, so that a row that came back from the wrong expert shows.
"""

import dataclasses
import pathlib

import ml_dtypes
import numpy as np

BF16 = ml_dtypes.bfloat16
_EXPERTS_PER_RANK = 8
_MAX_DRAWS = 1000
_CHUNK_ROWS = 4096


@dataclasses.dataclass(frozen=True)
class Sizes:
    num_ranks: int
    num_tokens: int  # Per rank.
    hidden: int
    top_k: int

    @classmethod
    def parse(cls, shape: str) -> "Sizes":
        """From "4x8x2048x4": ranks, tokens, hidden, top_k. ValueError: it is not that."""
        words = shape.split("x")
        numbers = [int(word) for word in words if word.isdecimal()]
        if not len(words) == len(numbers) == 4 or min(numbers) < 1:
            raise ValueError(f"got '{shape}', expected RANKSxTOKENSxHIDDENxTOP_K, as 4x8x2048x4")
        return cls(*numbers)

    @property
    def num_experts(self) -> int:
        return _EXPERTS_PER_RANK * self.num_ranks

    @property
    def recv_capacity(self) -> int:
        return self.num_tokens * self.top_k * 5 // 4

    @property
    def payload_bytes(self) -> int:
        """Of all ranks: live routes x hidden x 2 bytes. Every route is live."""
        return self.num_ranks * self.num_tokens * self.top_k * self.hidden * 2

    @property
    def name(self) -> str:
        return f"{self.num_tokens} x {self.hidden} top-{self.top_k}, {self.num_ranks} ranks"


def expert_scale(num_experts: int) -> np.ndarray:
    """float32 [num_experts]; every value is exact in bfloat16."""
    return (1 + (np.arange(num_experts) % 8) / 8).astype(np.float32)


def draw_routing(sizes: Sizes, seed: int) -> np.ndarray:
    """int32 [R, T, K], distinct experts per token, uniform; drawn again until no rank receives more than C rows."""
    for attempt in range(_MAX_DRAWS):
        random = np.random.default_rng([seed, attempt])
        order = random.random((sizes.num_ranks, sizes.num_tokens, sizes.num_experts), np.float32)
        routing = np.argpartition(order, sizes.top_k - 1, axis=-1)[..., : sizes.top_k]
        owners = routing // _EXPERTS_PER_RANK
        if np.bincount(owners.ravel(), minlength=sizes.num_ranks).max() <= sizes.recv_capacity:
            return np.ascontiguousarray(routing, np.int32)
    raise ValueError(f"{sizes.name}: no routing within capacity in {_MAX_DRAWS} draws, seed {seed}")


class Problem:
    """One size with its data, in a folder that the contenders read."""

    def __init__(self, folder: pathlib.Path, sizes: Sizes):
        self.folder = folder
        self.sizes = sizes
        self.routing = self._read_all("topk_idx", np.int32, sizes.top_k)

    @classmethod
    def write(cls, folder: pathlib.Path, sizes: Sizes, seed: int) -> "Problem":
        routing = draw_routing(sizes, seed)
        for rank in range(sizes.num_ranks):
            random = np.random.default_rng([seed, rank, sizes.hidden])
            tokens = random.standard_normal((sizes.num_tokens, sizes.hidden), np.float32)
            tokens.astype(BF16).tofile(folder / f"tokens.{rank}")
            weights = random.random((sizes.num_tokens, sizes.top_k), np.float32)
            weights.tofile(folder / f"topk_weights.{rank}")
            routing[rank].tofile(folder / f"topk_idx.{rank}")
        return cls(folder, sizes)

    def _read_all(self, name: str, dtype, width: int) -> np.ndarray:
        sizes = self.sizes
        parts = [
            np.fromfile(self.folder / f"{name}.{rank}", dtype) for rank in range(sizes.num_ranks)
        ]
        return np.stack(parts).reshape(sizes.num_ranks, sizes.num_tokens, width)

    def tokens(self, rank: int) -> np.ndarray:
        """bfloat16 [T, H], mapped from the file."""
        shape = (self.sizes.num_tokens, self.sizes.hidden)
        return np.memmap(self.folder / f"tokens.{rank}", np.uint16, "r", shape=shape).view(BF16)

    def weights(self, rank: int) -> np.ndarray:
        """float32 [T, K]."""
        shape = (self.sizes.num_tokens, self.sizes.top_k)
        return np.fromfile(self.folder / f"topk_weights.{rank}", np.float32).reshape(shape)

    def received(self, rank: int) -> np.ndarray:
        """int64 [n]: flat routes (source * T * K + token * K + k) that `rank` receives, in the order of its slots."""
        flat = self.routing.ravel()
        mine = np.flatnonzero(flat // _EXPERTS_PER_RANK == rank)
        return mine[np.argsort(flat[mine], kind="stable")]

    def dispatched(self, rank: int, scaled: bool = False) -> np.ndarray:
        """bfloat16 [C, H]: what dispatch must give; with `scaled`, combine's input."""
        sizes = self.sizes
        routes = self.received(rank)
        sources = routes // (sizes.num_tokens * sizes.top_k)
        token_numbers = routes // sizes.top_k % sizes.num_tokens
        rows = np.zeros((sizes.recv_capacity, sizes.hidden), BF16)
        for source in range(sizes.num_ranks):
            slots = np.flatnonzero(sources == source)
            rows[slots] = self.tokens(source)[token_numbers[slots]]
        if scaled:
            factors = expert_scale(sizes.num_experts)[self.routing.ravel()[routes]]
            for begin in range(0, len(routes), _CHUNK_ROWS):
                part = slice(begin, min(begin + _CHUNK_ROWS, len(routes)))
                rows[part] = (rows[part].astype(np.float32) * factors[part, None]).astype(BF16)
        return rows

    def combined(self, rank: int) -> np.ndarray:
        """bfloat16 [T, H]: what combine must give: the sum over k in float32, in k order, rounded once."""
        sizes = self.sizes
        factors = expert_scale(sizes.num_experts)[self.routing[rank]]
        result = np.empty((sizes.num_tokens, sizes.hidden), BF16)
        for begin in range(0, sizes.num_tokens, _CHUNK_ROWS):
            part = slice(begin, min(begin + _CHUNK_ROWS, sizes.num_tokens))
            tokens = self.tokens(rank)[part].astype(np.float32)
            # Not from +0: two rows of -0 sum to -0.
            total = (tokens * factors[part, 0, None]).astype(BF16).astype(np.float32)
            for k in range(1, sizes.top_k):
                total += (tokens * factors[part, k, None]).astype(BF16).astype(np.float32)
            result[part] = total.astype(BF16)
        return result


def differences(got: np.ndarray, expected: np.ndarray, relative: float | None) -> str:
    """ "" if equal (bit for bit when `relative` is None), else what differs."""
    if got.shape != expected.shape:
        return f"got shape {got.shape}, expected {expected.shape}"
    if relative is None:
        wrong = got.view(np.uint16) != expected.view(np.uint16)
    else:
        wide = expected.astype(np.float32)
        wrong = ~(np.abs(got.astype(np.float32) - wide) <= relative * np.maximum(np.abs(wide), 1))
    if not wrong.any():
        return ""
    row, column = np.argwhere(wrong)[0]
    return (
        f"{wrong.sum()} of {wrong.size} values differ, first at row {row} column {column}: "
        f"got {got[row, column]}, expected {expected[row, column]}"
    )
