"""The exchange of slices behind ragged_all_to_all, and its derivatives.

Its results are where the slices that came landed, where they stood in their senders' operands, and the rows. So the backward
pass knows both sides' offsets, and is one exchange again, without a collective of XLA's.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from epd.jax import _ffi, _place, _ragged_group
from epd.jax._call import call, mapped
from epd.jax._exchange_primitive import Arrays, Exchange
from epd.jax.config import DTYPE_CODES

# Of the axis's indices: the groups that exchange among themselves.
IndexGroups = tuple[tuple[int, ...], ...]


def _of_slices(
    begins: jax.Array, sizes: jax.Array, values: jax.Array | int, num_rows: int
) -> jax.Array:
    """``[num_rows]`` the value of the slice that a row stands in, 0 in none. Slices do not overlap."""
    steps = jnp.where(sizes > 0, values, 0).astype(begins.dtype)
    ends = jnp.zeros(num_rows + 1, begins.dtype)
    ends = ends.at[begins].add(steps, mode="drop").at[begins + sizes].add(-steps, mode="drop")
    return jnp.cumsum(ends, dtype=begins.dtype)[:-1]


@dataclass(frozen=True)
class _Slices(Exchange):
    """``operand_rows``: of the forward exchange's operand."""

    target = _ffi.RAGGED
    adds: ClassVar[bool] = False  # Rows that land on each other are added.

    groups: IndexGroups | None
    operand_rows: int

    @property
    def label(self) -> str:
        return "ragged_all_to_all"

    def _place(self) -> tuple[jax.Array, jax.Array]:
        domain, position = self.static.layout.domain_and_position()
        if self.groups is None:
            return domain, position
        group_of = np.zeros(self.static.layout.ep_size, np.int32)
        place_in = np.zeros_like(group_of)
        for group, members in enumerate(self.groups):
            group_of[list(members)], place_in[list(members)] = group, range(len(members))
        domain = domain * len(self.groups) + jnp.asarray(group_of)[position]
        return domain, jnp.asarray(place_in)[position]

    def _exchange(
        self, operand: jax.Array, output: jax.Array, *indices: jax.Array
    ) -> tuple[jax.Array, ...]:
        """-> landing offsets, source offsets, rows. ``indices``: as ragged_all_to_all's last four."""
        _ragged_group.drop_old()

        def shard(*arrays: jax.Array) -> tuple[jax.Array, ...]:
            offsets = (indices[0].shape, indices[0].dtype)
            results = [offsets, offsets, (output.shape, output.dtype)]
            with _place.at(self._place()):
                return call(self.static, self.target, results, arrays, tokens=int(self.adds))

        return tuple(mapped(self.static.layout, shard, operand, output, *indices))


@dataclass(frozen=True)
class Ragged(_Slices):
    """Residuals: input offsets, send sizes, output offsets, receive sizes. operand, output -> offsets, offsets, rows."""

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        return self._exchange(*operands, *residuals)

    def after(self, residuals: Arrays, results: Arrays) -> tuple[Exchange, Arrays]:
        moved = _Moved(self.static, self.groups, self.operand_rows)
        return moved, [*residuals, *results[:2]]

    def transpose(self) -> Exchange:
        raise NotImplementedError(
            "linear_transpose of ragged_all_to_all: use jax.vjp or jax.grad, whose forward pass learns where the slices stand"
        )


@dataclass(frozen=True)
class RaggedBytes(_Slices):
    """As Ragged, of rows that have no gradient: they are the first two residuals."""

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        return self._exchange(*residuals)


@dataclass(frozen=True)
class _Moved(_Slices):
    """The residuals of Ragged, and its first two results. operand, output -> rows."""

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        return self._exchange(*operands, *residuals[:4])[2:]

    def transpose(self) -> Exchange:
        return _Returned(self.static, self.groups, self.operand_rows)


@dataclass(frozen=True)
class _Returned(_Slices):
    """The residuals of _Moved. rows -> operand, output. A row that went to several ranks gets the sum."""

    adds = True

    def run(self, residuals: Arrays, operands: Arrays) -> tuple[jax.Array, ...]:
        (rows,) = operands
        _, send_sizes, _, recv_sizes, landing, source = residuals
        if np.dtype(rows.dtype) in DTYPE_CODES:
            zeros = jnp.zeros((self.operand_rows, *rows.shape[1:]), rows.dtype)
            operand = self._exchange(rows, zeros, landing, recv_sizes, source, send_sizes)[2]
        else:
            operand = self._summed_here(rows, *residuals[:5])
        covered = _of_slices(landing, recv_sizes, 1, rows.shape[0]) > 0
        output = jnp.where(covered.reshape(-1, *(1,) * (rows.ndim - 1)), 0, rows)
        return operand, output

    def _summed_here(
        self,
        rows: jax.Array,
        input_offsets: jax.Array,
        send_sizes: jax.Array,
        output_offsets: jax.Array,
        recv_sizes: jax.Array,
        landing: jax.Array,
    ) -> jax.Array:
        """-> operand, of a dtype that the library moves and does not sum: what each rank returns comes apart."""
        num_rows, ranks = rows.shape[0], self.static.group.config.ep_size
        apart = jnp.zeros((ranks * num_rows, *rows.shape[1:]), rows.dtype)
        here = self._place()[1].astype(landing.dtype) * num_rows + landing
        first = jnp.repeat(jnp.arange(ranks, dtype=landing.dtype), send_sizes.size // ranks)
        there = first * num_rows + output_offsets
        came = self._exchange(rows, apart, landing, recv_sizes, here, send_sizes)[2]
        covered = _of_slices(there, send_sizes, 1, apart.shape[0]) > 0
        moved = _of_slices(there, send_sizes, input_offsets - there, apart.shape[0])
        rows_apart = jnp.arange(apart.shape[0], dtype=moved.dtype)
        to = jnp.where(covered, rows_apart + moved, self.operand_rows)
        wide = rows.dtype if rows.dtype.itemsize >= 4 else jnp.float32
        sums = jnp.zeros((self.operand_rows, *rows.shape[1:]), wide)
        return sums.at[to].add(came.astype(wide), mode="drop").astype(rows.dtype)

    def transpose(self) -> Exchange:
        return _Moved(self.static, self.groups, self.operand_rows)
