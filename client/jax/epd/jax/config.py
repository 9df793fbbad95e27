"""Sizes that tracing needs: what ep_bootstrap fixed, and what a layer adds."""

import operator
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from epd.jax import _ffi

# dtypes of token rows -> epd_dtype of the C library.
DTYPE_CODES = {
    np.dtype(jnp.float32): 1,
    np.dtype(jnp.bfloat16): 2,
    np.dtype(jnp.float16): 3,
}


@dataclass(frozen=True)
class EpLayerConfig:
    """Static configuration of one MoE layer; hashable, equal by value.

    Args:
        top_k: experts that a token is routed to, 1 or more.
        dispatch_output_per_expert_alignment: zones of the receive buffer begin at multiples of this many slots; a power
            of two; 0 and 1 mean none.

    Raises:
        ValueError: a size is out of range.
        TypeError: a size is not an integer.
    """

    top_k: int
    dispatch_output_per_expert_alignment: int = 0

    def __post_init__(self):
        top_k = operator.index(self.top_k)
        alignment = operator.index(self.dispatch_output_per_expert_alignment)
        if top_k < 1:
            raise ValueError(f"EpLayerConfig: top_k is {top_k}; it must be 1 or more")
        if alignment < 0 or alignment & (alignment - 1):
            raise ValueError(
                f"EpLayerConfig: dispatch_output_per_expert_alignment is {alignment}; it must be 0 or a power of two"
            )
        object.__setattr__(self, "top_k", top_k)
        object.__setattr__(self, "dispatch_output_per_expert_alignment", alignment)


@dataclass(frozen=True)
class EpConfig:
    """What ep_bootstrap fixed. Sizes count one rank, or one domain where experts are meant."""

    world_size: int
    rank: int
    ep_size: int
    num_ep_groups: int
    num_experts: int
    num_local_experts: int
    max_tokens_per_rank: int
    recv_capacity_per_rank: int
    hidden_dim: int


@dataclass(frozen=True)
class Bootstrapped:
    """The default group of this process: its public configuration and what only epd needs."""

    config: EpConfig
    max_token_dtype: np.dtype
    alias: str = "default"


_default: Bootstrapped | None = None


def bootstrapped() -> Bootstrapped:
    """The default group; RuntimeError before ep_bootstrap."""
    if _default is None:
        raise RuntimeError(
            "there is no expert-parallel group yet: call epd.jax.ep_bootstrap() first"
        )
    return _default


def is_bootstrapped() -> bool:
    """Whether ep_bootstrap has succeeded and ep_finalize has not been called since."""
    return _default is not None


def set_bootstrapped(group: Bootstrapped | None) -> None:
    """Sets or clears the default group; for ep_bootstrap and ep_finalize."""
    global _default
    _default = group


def get_ep_config() -> EpConfig:
    """The sizes of the default group; RuntimeError when not bootstrapped."""
    return bootstrapped().config


def ep_handle_mem_size(cfg: EpLayerConfig) -> int:
    """Bytes of one rank's routing plan, the same on all ranks. RuntimeError when not bootstrapped."""
    config = get_ep_config()
    return _ffi.handle_mem_size(
        config.ep_size, config.num_experts, config.max_tokens_per_rank, cfg.top_k
    )
