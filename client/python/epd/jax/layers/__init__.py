"""Mixture-of-experts layers over epd: a plain function, and Flax modules over it.

::

    from epd.jax.layers import MoeConfig, RouterConfig, init_moe, moe, partition_specs, recv_capacity

    config = MoeConfig(hidden_dim=2048, ffn_dim=1024, router=RouterConfig(num_experts=64, top_k=8, balance_loss=0.01))
    slots = recv_capacity(config, tokens_per_rank=512, ep_size=4, dtype="bfloat16")   # for ep_bootstrap
    out, aux = moe(config, params, tokens)                                           # in jit
    loss = task_loss(out) + aux.loss.mean()

``epd.jax.layers.linen.Moe`` and ``epd.jax.layers.nnx.Moe`` are the same layer as Flax modules; Flax is imported with them
and not before.
"""

from epd.jax.layers.config import Axes, MoeConfig, RouterConfig
from epd.jax.layers.grouped_gemm import RAGGED_DOT, GroupedGemm, sizes_within
from epd.jax.layers.layer import MoeAux, moe, recv_capacity
from epd.jax.layers.parameters import init_moe, partition_specs
from epd.jax.layers.router import Routing, route, updated_selection_bias

__all__ = [
    "RAGGED_DOT",
    "Axes",
    "GroupedGemm",
    "MoeAux",
    "MoeConfig",
    "RouterConfig",
    "Routing",
    "init_moe",
    "moe",
    "partition_specs",
    "recv_capacity",
    "route",
    "sizes_within",
    "updated_selection_bias",
]
