"""Sizes that tracing needs: what a group fixed, and what a layer adds."""

import operator
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh
from jax.typing import DTypeLike

from epd import _group_struct
from epd.jax import _ffi
from epd.jax.mesh import MeshResource

DEFAULT_ALIAS = "default"
MAX_TOP_K = _group_struct.MAX_TOP_K

# dtypes whose rows can be summed, as combine does -> epd_dtype of the C library.
DTYPE_CODES = {
    np.dtype(jnp.float32): 1,
    np.dtype(jnp.bfloat16): 2,
    np.dtype(jnp.float16): 3,
}
# What the group is told of a max_token_dtype that cannot be summed, by its width: the widest epd_dtype has 4 bytes.
_BOUND_CODES = {1: 2, 2: 2, 4: 1, 8: 1}
SUB_BYTE = ("int2", "uint2", "int4", "uint4", "float4_e2m1fn")


def dtype_of(function: str, name: str, value: DTypeLike) -> np.dtype:
    """``value`` as a dtype; TypeError naming it if it is none."""
    try:
        return np.dtype(value)
    except TypeError as error:
        raise TypeError(f"{function}: {name} {value!r} is no dtype") from error


def is_row_dtype(dtype: DTypeLike) -> bool:
    """Whether dispatch can move rows of it: 1, 2, 4 or 8 bytes an element."""
    try:
        known = np.dtype(dtype)
    except TypeError:  # Of JAX's extended dtypes, such as keys.
        return False
    return known.itemsize in _BOUND_CODES and known.kind != "O" and known.name not in SUB_BYTE


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

    def __post_init__(self) -> None:
        top_k, alignment = (
            self._integer(name) for name in ("top_k", "dispatch_output_per_expert_alignment")
        )
        if top_k < 1:
            raise ValueError(f"EpLayerConfig: top_k is {top_k}; it must be 1 or more")
        if alignment < 0 or alignment & (alignment - 1):
            raise ValueError(
                f"EpLayerConfig: dispatch_output_per_expert_alignment is {alignment}; it must be 0 or a power of two"
            )
        object.__setattr__(self, "top_k", top_k)
        object.__setattr__(self, "dispatch_output_per_expert_alignment", alignment)

    def _integer(self, name: str) -> int:
        value = getattr(self, name)
        try:
            return operator.index(value)
        except TypeError as error:
            raise TypeError(
                f"EpLayerConfig: {name} must be an integer, got {type(value).__name__}"
            ) from error


@dataclass(frozen=True)
class EpConfig:
    """The sizes of a group. They count one rank, or one domain where experts are meant.

    ``num_local_experts``: entries of a rank's ``token_counts``: the most experts that any rank owns.
    """

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
class GroupSpec:
    """What tracing needs to know of a group: names and sizes. Hashable.

    Args:
        config: the public sizes.
        max_token_dtype: widest dtype of a row's elements.
        alias: the group's name in programs.
        origin: what fixed the sizes, for messages.
        max_top_k: largest top_k of any layer.
        expert_owner: rank of each expert; None: contiguous blocks.
        resource: the mesh axes' names; None: those of the active MeshResource.
        mesh: traced with where no mesh is active; None: an active one is needed.
        ranks_here: ranks of this process, in a group joined by rank; None: ranks stand along the mesh.
        of_roles: its ranks run different programs; each call says where it runs, and arrays are one rank's.
    """

    config: EpConfig
    max_token_dtype: np.dtype
    alias: str = DEFAULT_ALIAS
    origin: str = "ep_bootstrap"
    max_top_k: int = MAX_TOP_K
    expert_owner: tuple[int, ...] | None = None
    resource: MeshResource | None = None
    mesh: AbstractMesh | None = None
    ranks_here: int | None = None
    of_roles: bool = False

    @property
    def joined_by_rank(self) -> bool:
        """Its processes, of whose ranks no mesh tells, have each a program of their own."""
        return self.ranks_here is not None

    @property
    def shards_here(self) -> int | None:
        """Ranks whose rows an array of a program holds; None: the mesh says."""
        return 1 if self.of_roles else self.ranks_here

    @property
    def owners_digest(self) -> int:
        """What programs hold of the table of owners; 0 without one."""
        return _group_struct.owners_digest(self.expert_owner)

    @property
    def dtype_bound(self) -> int:
        """max_token_dtype as the C library takes it, which bounds rows that are summed."""
        return DTYPE_CODES.get(self.max_token_dtype, _BOUND_CODES[self.max_token_dtype.itemsize])

    @property
    def row_bytes(self) -> int:
        """Most bytes of a row."""
        return self.config.hidden_dim * self.max_token_dtype.itemsize

    def handle_mem_size(self, top_k: int) -> int:
        """Bytes of one rank's routing plan."""
        sizes = self.config
        return _ffi.handle_mem_size(
            sizes.ep_size, sizes.num_experts, sizes.max_tokens_per_rank, top_k
        )


_default: GroupSpec | None = None


def set_default(spec: GroupSpec | None) -> None:
    """Sets or clears what the default group was made for; for ep_bootstrap and ep_finalize."""
    global _default
    _default = spec


def bootstrapped() -> GroupSpec:
    """What the default group was made for; RuntimeError before ep_bootstrap."""
    if _default is None:
        raise RuntimeError(
            "there is no expert-parallel group yet: call epd.jax.ep_bootstrap() first"
        )
    return _default


def get_ep_config() -> EpConfig:
    """The sizes of the default group; RuntimeError when not bootstrapped."""
    return bootstrapped().config
