"""The experts' matrix products over the receive buffer, one group of rows per expert."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from epd.jax._checks import static_int


@dataclass(frozen=True)
class GroupedGemm:
    """A grouped matrix product and how it likes its groups to lie. Static and hashable.

    Args:
        function: ``(rows [C, A], matrices [n, A, B], group_sizes=i32 [n], preferred_element_type=dtype, precision=..) -> [C, B]``,
            differentiable in rows and matrices; row i is multiplied by the matrix of its group; rows after the last group may become anything.
        alignments: pairs (bytes of a row's element, rows): for such elements groups should begin at multiples of so many rows,
            a power of two.

    Raises:
        ValueError: a function that cannot be called, an alignment that is no power of two.
    """

    function: Callable[..., jax.Array]
    alignments: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ValueError(f"GroupedGemm: function is {self.function!r}; it must be callable")
        for size, rows in self.alignments:
            if rows < 1 or rows & (rows - 1):
                raise ValueError(
                    f"GroupedGemm: alignments say {rows} rows for {size} bytes; it must be a power of two"
                )

    def row_alignment(self, dtype: DTypeLike) -> int:
        """Rows, a power of two, or 0: it does not matter."""
        return dict(self.alignments).get(np.dtype(dtype).itemsize, 0)


# A tile of matrix units has 8 rows of float32 and 16 of bfloat16 or float16: groups that begin with a tile share none.
RAGGED_DOT = GroupedGemm(jax.lax.ragged_dot, alignments=((4, 8), (2, 16)))


def sizes_within(token_counts: jax.Array, capacity: int) -> jax.Array:
    """The groups' sizes in a buffer of ``capacity`` slots.

    Args:
        token_counts: int32 ``[n]``, traced: zones of the receive buffer before any drop.
        capacity: static; slots. What lies beyond was dropped.

    Returns:
        int32 ``[n]``, whose sum is at most ``capacity``.

    Raises:
        TypeError: a traced ``capacity``, counts that are not integers.
    """
    capacity = static_int("sizes_within", "capacity", capacity)
    if not jnp.issubdtype(token_counts.dtype, jnp.integer):
        raise TypeError(f"sizes_within: token_counts must be integers, got {token_counts.dtype}")
    ends = jnp.minimum(jnp.cumsum(token_counts, dtype=jnp.int32), capacity)
    return jnp.diff(ends, prepend=jnp.zeros(1, ends.dtype))


def rows_of_groups(vectors: jax.Array, sizes: jax.Array, rows: int) -> jax.Array:
    """Each group's vector in each of its rows.

    Args:
        vectors: ``[n, A]``, traced.
        sizes: int32 ``[n]``, traced.
        rows: static.

    Returns:
        ``[rows, A]``; rows after the last group have the last one's vector.
    """
    ends = jnp.cumsum(sizes, dtype=jnp.int32)
    slots = jnp.arange(rows, dtype=jnp.int32)
    group = jnp.sum(slots[:, None] >= ends[None, :], axis=1, dtype=jnp.int32)
    return jnp.take(vectors, jnp.minimum(group, vectors.shape[0] - 1), axis=0)
