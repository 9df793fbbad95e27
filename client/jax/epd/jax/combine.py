"""ep_combine: sum the experts' rows back to their tokens, with its gradient."""

import jax

from epd.jax import _checked_operations
from epd.jax._out_sharding import SpecLike
from epd.jax.config import EpLayerConfig, bootstrapped


def ep_combine(
    cfg: EpLayerConfig,
    handle_mem: jax.Array,
    token_counts: jax.Array,
    expert_out: jax.Array,
    num_local_tokens: int | tuple[int, ...],
    out_sharding: SpecLike = None,
) -> jax.Array:
    """Sums the rows that the experts made of a token, back on the token's rank. Unweighted. Collective; differentiable.

    Multiply ``expert_out`` by ``recv_topk_weights`` first: the gradient of the weights flows through that product. The sum
    is taken in float32, in k order, and rounded once; a dropped route adds nothing; slots that hold no row are not read.

    Args:
        cfg: static; the layer.
        handle_mem: uint8 ``[R, size]`` of the layer's ep_dispatch, traced.
        token_counts: of the layer's ep_dispatch. Not needed: the plan holds the counts.
        expert_out: float32, bfloat16 or float16 ``[R, C, H]``, traced.
        num_local_tokens: static; the leading shape of the result as the caller sees it: an int for ``[T, H]``, a tuple
            for ``[B, S, H]``. Global in a jit; the shard's inside a shard_map of the caller's.
        out_sharding: static; tuple or PartitionSpec, padded with None. Default: the leading dimension over (outer, ep).

    Returns:
        ``[leading, H]`` in the dtype of ``expert_out``.

    Gradient: ``grad_expert_out[slot(t, k)] = g[t]``, zeros everywhere else. None for ``handle_mem`` and ``token_counts``.

    Raises:
        RuntimeError: not bootstrapped.
        TypeError: a traced ``num_local_tokens``.
        ValueError: while tracing, shapes and sizes that do not fit; all of them in one error.
        At run time, on every rank, see ``epd.jax.errors``.
    """
    del token_counts
    return _checked_operations.combine(
        bootstrapped(), "ep_combine", cfg, handle_mem, expert_out, num_local_tokens, out_sharding
    )
