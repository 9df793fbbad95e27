"""``transformer_engine.jax.dense`` and its collective products, in the operands' own precision."""

from typing import Any

import jax
import jax.numpy as jnp

from epd.jax._transformer_engine.quantize import check_none, noop_quantizer_set


class _NoCollectiveOpSet:
    """The set of collective products that fuses nothing."""


noop_collective_op_set = _NoCollectiveOpSet()


def dense(
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None = None,
    contracting_dims: tuple[tuple[int, ...], tuple[int, ...]] = ((1,), (0,)),
    *,
    input_axes: tuple[str | None, ...] | None = None,
    kernel_axes: tuple[str | None, ...] | None = None,
    output_axes: tuple[str | None, ...] | None = None,
    quantizer_set: Any = noop_quantizer_set,
    collective_op_set: Any = noop_collective_op_set,
) -> jax.Array:
    """``x @ kernel + bias`` over the ``contracting_dims`` of both, in the dtype of ``x``, to which ``kernel`` is cast.

    In the precision of ``jax.default_matmul_precision``, as Transformer Engine's own product by XLA. The axes are hints to a partitioner, of which XLA's has no need.

    Raises:
        NotImplementedError: a ``quantizer_set`` that quantises, a ``collective_op_set`` that fuses.
    """
    del input_axes, kernel_axes, output_axes
    check_none("dense(quantizer_set", quantizer_set)
    if not isinstance(collective_op_set, _NoCollectiveOpSet):
        raise NotImplementedError(
            f"epd does not offer dense(collective_op_set={type(collective_op_set).__name__}): it fuses no products with"
            " collectives; leave it out, or install transformer_engine"
        )
    x, kernel = jnp.asarray(x), jnp.asarray(kernel)
    out = jax.lax.dot_general(
        x, kernel.astype(x.dtype), (contracting_dims, ((), ())), preferred_element_type=x.dtype
    )
    return out if bias is None else out + jnp.broadcast_to(bias.astype(out.dtype), out.shape)
