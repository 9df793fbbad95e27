"""Checks while tracing: all mismatches of a call, in one ValueError."""

import math
import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from epd.jax import _out_sharding
from epd.jax.config import DTYPE_CODES, EpLayerConfig, GroupSpec, is_row_dtype
from epd.jax.mesh import Layout


def _symbolic(dim: object) -> str:
    """What to say of a size of ``jax.export.symbolic_shape``."""
    return f"the symbolic size {dim}: a compiled exchange has fixed sizes; export once per size"


def static_int(function: str, name: str, value: Any) -> int:
    """``value`` as int; TypeError if it is traced or no integer."""
    if jax.export.is_symbolic_dim(value):
        raise TypeError(f"{function}: {name} must be a static Python int, got {_symbolic(value)}")
    try:
        return operator.index(value)
    except (TypeError, jax.errors.JAXTypeError) as error:
        raise TypeError(
            f"{function}: {name} must be a static Python int, got {type(value).__name__}; keep it out of jit's arguments"
        ) from error


def leading_shape(function: str, num_local_tokens: int | Sequence[int]) -> tuple[int, ...]:
    """``num_local_tokens`` as a shape: an int for [T, H], a tuple for [B, S, H]."""
    dims = num_local_tokens if isinstance(num_local_tokens, tuple | list) else (num_local_tokens,)
    return tuple(static_int(function, "num_local_tokens", dim) for dim in dims)


def of_kind(function: str, name: str, value: Any, kind: type) -> Any:
    """``value``; TypeError naming it if it is of another type."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise TypeError(
            f"{function}: {name} must be {article} {kind.__name__}, got {type(value).__name__}"
        )
    return value


def layer(function: str, cfg: object) -> EpLayerConfig:
    """``cfg``; TypeError if it is something else."""
    return of_kind(function, "cfg", cfg, EpLayerConfig)


# A size that is expected: a number, one with the argument that says it, or a string for any.
Size: TypeAlias = int | str | tuple[str, int]


def _fits(size: int, expected: Size) -> bool:
    return isinstance(expected, str) or size == (
        expected[1] if isinstance(expected, tuple) else expected
    )


class CallCheck:
    """Collects what is wrong with one call, and raises it all at once."""

    def __init__(self, function: str, group: GroupSpec, layout: Layout, cfg: EpLayerConfig):
        self.sizes, self.layout, self.cfg = group.config, layout, cfg
        self._function, self._group = function, group
        self._wrong: list[str] = []
        here = group.shards_here
        ep_size = self.sizes.ep_size if here is None else here
        devices = self.sizes.world_size if here is None else here
        if layout.ep_size != ep_size:
            self._wrong.append(
                f"the mesh's {layout.ep_title} has size {layout.ep_size}, but {group.origin} saw {ep_size}"
            )
        if layout.num_devices != devices:
            self._wrong.append(
                f"the mesh has {layout.num_devices} devices, but {group.origin} saw {devices}"
            )
        if cfg.top_k > group.max_top_k:
            self._wrong.append(
                f"cfg.top_k is {cfg.top_k}, more than max_top_k {group.max_top_k} of {group.origin}"
            )

    @property
    def hidden(self) -> Size:
        return "hidden_dim", self.sizes.hidden_dim

    @property
    def top_k(self) -> Size:
        return "cfg.top_k", self.cfg.top_k

    @property
    def ranks(self) -> Size:
        return "ranks", self.layout.num_shards

    def shape(self, name: str, array: jax.Array, expected: Sequence[Size]) -> None:
        """Compares the shape and how the array is sharded."""
        got = tuple(array.shape)
        if symbolic := [dim for dim in got if jax.export.is_symbolic_dim(dim)]:
            self._wrong.append(f"{name} has {_symbolic(symbolic[0])}")
            return
        fits = len(got) == len(expected) and all(
            _fits(have, want) for have, want in zip(got, expected, strict=True)
        )
        if not fits:
            text = ", ".join(
                f"{dim[0]}={dim[1]}" if isinstance(dim, tuple) else str(dim) for dim in expected
            )
            self._wrong.append(f"{name} has shape {list(got)}, expected [{text}]")
        elif wrong := _out_sharding.wrong_sharding(name, array, self.layout):
            self._wrong.append(wrong)

    def rows(self, name: str, array: jax.Array, expected: Sequence[Size], *, summed: bool) -> None:
        """Token rows: their shape, and a dtype of those that are moved, or of those that can be ``summed``."""
        self.shape(name, array, expected)
        widest = self._group.max_token_dtype
        if not self._movable(name, array):
            return
        if np.dtype(array.dtype).itemsize > widest.itemsize:
            self._wrong.append(
                f"{name} has dtype {array.dtype}, wider than max_token_dtype {widest} of {self._group.origin}"
            )
        elif summed and np.dtype(array.dtype) not in DTYPE_CODES:
            self._wrong.append(
                f"{name} has dtype {array.dtype}, expected float32, bfloat16 or float16, which can be summed"
            )

    def expert_rows(self, name: str, array: jax.Array) -> None:
        """[R, C, H] with C at most the bootstrapped capacity."""
        self.rows(name, array, (self.ranks, "C", self.hidden), summed=True)
        if array.ndim == 3:
            self.capacity(array.shape[1], f"C of {name} {list(array.shape)}")

    def payload(self, name: str, array: jax.Array) -> None:
        """Rows of one array of several under one plan: of any width and dtype, as long as a row's bytes fit."""
        most = self._group.row_bytes
        if not self._movable(name, array):
            return
        if not 0 < array.shape[-1] * np.dtype(array.dtype).itemsize <= most:
            self._wrong.append(
                f"{name} has rows of {array.shape[-1]} x {array.dtype}, expected 1 to {most} bytes:"
                f" hidden_dim x max_token_dtype of {self._group.origin}"
            )

    def _movable(self, name: str, array: jax.Array) -> bool:
        if not is_row_dtype(array.dtype):
            text = f"{name} has dtype {array.dtype}, expected one of 1, 2, 4 or 8 bytes"
            self._wrong.append(text)
            return False
        return True

    def handle(self, handle_mem: jax.Array) -> None:
        size = self._group.handle_mem_size(self.cfg.top_k)
        self.shape("handle_mem", handle_mem, (self.ranks, ("ep_handle_mem_size(cfg)", size)))
        if handle_mem.dtype != jnp.uint8:
            self._wrong.append(f"handle_mem has dtype {handle_mem.dtype}, expected uint8")

    def leading(self, name: str, leading: Sequence[int]) -> None:
        """The leading shape of tokens: divisible among the shards, and not too many for one."""
        shards = self.layout.num_shards
        given = list(leading)
        what = f"num_local_tokens is {given[0] if len(given) == 1 else tuple(given)}"
        if name != "num_local_tokens":
            what = f"{name} has the leading shape {given}"
        if not leading:
            self._wrong.append(f"{name} has no leading dimension, expected [T, ...] or [B, S, ...]")
            return
        if any(jax.export.is_symbolic_dim(dim) for dim in leading):
            return  # As ``shape`` says of the array.
        if any(dim < 0 for dim in leading):
            self._wrong.append(f"{what}, a negative size")
            return
        if leading[0] % shards:
            self._wrong.append(f"{what}, whose first size is not a multiple of the {shards} ranks")
            return
        per_rank = math.prod(leading) // shards
        if per_rank == 0 and self.layout.checks_manual and self.sizes.world_size > 1:
            self._wrong.append(
                f"{what}, no tokens, inside a shard_map of the caller's: XLA drops what has only empty results there, on"
                " this rank alone, and the others would wait for it; call it outside of that shard_map (it maps itself), or"
                " give the rank one token whose indices are all -1"
            )
        if per_rank > self.sizes.max_tokens_per_rank:
            self._wrong.append(
                f"{what}, {per_rank} tokens per rank, more than max_tokens_per_rank"
                f" {self.sizes.max_tokens_per_rank} of {self._group.origin}"
            )

    def capacity(self, capacity: int, what: str = "recv_capacity_per_rank") -> None:
        """``what``: the argument that says it."""
        most = self.sizes.recv_capacity_per_rank
        if capacity < 1:
            self._wrong.append(f"{what} is {capacity}; it must be 1 or more")
        elif capacity > most:
            self._wrong.append(
                f"{what} is {capacity}, more than recv_capacity_per_rank {most} of {self._group.origin}"
            )

    def out_spec(self, spec: tuple[_out_sharding.Entry, ...] | None) -> None:
        """A normalized spec of the result."""
        if wrong := _out_sharding.mismatch(spec, self.layout):
            self._wrong.append(wrong)

    def done(self) -> None:
        """Raises ValueError with every mismatch, or returns."""
        if self._wrong:
            raise ValueError(f"{self._function}: " + "; ".join(self._wrong))
