"""Hugging Face transformers (5.23 or newer): experts that are spread over processes exchange tokens through epd.

::

    import epd.torch.transformers
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    epd.torch.transformers.register(max_tokens_per_rank=4096)
    model = AutoModelForCausalLM.from_pretrained(
        name, distributed_config=DistributedConfig(fsdp_size=4, ep_size=4, ep_implementation="epd"))

Started by torchrun, or with its variables. For CPU tensors.
"""

import functools
import threading
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

from epd._arguments import integer, positive
from epd.torch.experts import through_experts
from epd.torch.group import Group

try:
    from transformers.distributed.expert_parallel import (
        EPImplementation,
        EPImplementationInterface,
    )
except ImportError as error:
    raise ImportError(
        "epd.torch.transformers: this transformers has no registry of expert-parallel implementations"
        f" (transformers.distributed.expert_parallel.EPImplementationInterface); install 5.23 or newer ({error})"
    ) from error

__all__ = ["leave", "register"]


@dataclass(frozen=True)
class _Sizes:
    """Of ``register``."""

    max_tokens_per_rank: int
    recv_capacity_per_rank: int | None


@dataclass(frozen=True)
class _Layer:
    """What layers have in common that share a group."""

    sizes: _Sizes
    processes: tuple[int, ...]
    num_experts: int
    top_k: int
    hidden_dim: int
    dtype: torch.dtype

    @property
    def capacity(self) -> int:
        """What a rank receives if every token of every rank goes to as many of its experts as there are."""
        ranks = len(self.processes)
        most = min(self.top_k, self.num_experts // ranks)
        return self.sizes.recv_capacity_per_rank or ranks * self.sizes.max_tokens_per_rank * most

    @property
    def name(self) -> str:
        """At most 60 characters; groups of other processes have another name."""
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"ep{self.processes[0]}-{self.num_experts}x{self.hidden_dim}-top{self.top_k}-{dtype}"
            f"-{self.sizes.max_tokens_per_rank}-{self.capacity}"
        )


_lock = threading.Lock()
_groups: dict[_Layer, Group] = {}


def _group_of(layer: _Layer, ep_group: dist.ProcessGroup) -> Group:
    """Joins at the first call, on all its processes at once; they keep it until ``leave``, so that all always agree on it."""
    with _lock:
        if layer not in _groups:
            _groups[layer] = Group.join(
                layer.name,
                len(layer.processes),
                dist.get_rank(ep_group),
                num_experts=layer.num_experts,
                max_tokens_per_rank=layer.sizes.max_tokens_per_rank,
                recv_capacity_per_rank=layer.capacity,
                hidden_dim=layer.hidden_dim,
                max_token_dtype=layer.dtype,
                max_top_k=layer.top_k,
            )
        return _groups[layer]


class _EpdExperts(EPImplementation):  # type: ignore[misc]
    """The experts of one layer, as transformers calls them."""

    def __init__(self, experts: Any, ep_mesh: Any, tp_mesh: Any, *, sizes: _Sizes):
        super().__init__(experts, ep_mesh, tp_mesh)
        self._sizes = sizes
        self._processes = tuple(dist.get_process_group_ranks(ep_mesh.get_group()))

    def _group(self, hidden_states: torch.Tensor, top_k: int) -> Group:
        layer = _Layer(
            self._sizes,
            self._processes,
            self.num_local_experts * len(self._processes),
            top_k,
            hidden_states.shape[-1],
            hidden_states.dtype,
        )
        return _group_of(layer, self.ep_mesh.get_group())

    def _share(self, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's part of what all ranks of tp_mesh hold; its gradient is gathered."""
        whole = DTensor.from_local(tensor, self.tp_mesh, [Replicate()], run_check=False)
        return whole.redistribute(placements=[Shard(0)]).to_local()

    def _gathered(self, rows: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """The inverse."""
        parts = DTensor.from_local(
            rows.contiguous(), self.tp_mesh, [Shard(0)], shape=shape, stride=(shape[1], 1)
        )
        return parts.full_tensor()

    def __call__(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """``[T, H]``, ``[T, K]`` of all experts, ``[T, K]`` -> ``[T, H]``."""
        group = self._group(hidden_states, top_k_index.shape[-1])
        given = [hidden_states, top_k_index, top_k_weights]
        shared = self.tp_mesh.size() > 1
        if shared:
            given = [self._share(tensor) for tensor in given]
        out = through_experts(group, self.experts_forward, *given)
        return self._gathered(out, hidden_states.shape) if shared else out


def register(
    *, max_tokens_per_rank: int, recv_capacity_per_rank: int | None = None, name: str = "epd"
) -> None:
    """Makes ``DistributedConfig(ep_implementation="epd")`` known to transformers, for models that are made afterwards.

    A group forms at the first forward of a layer; layers of the same sizes share it. With tensor parallelism, whose processes
    hold the same batch, each sends its share of the tokens.

    Args:
        max_tokens_per_rank: most tokens (of all sequences of its batch) that a process sends in one forward. The same in all.
        recv_capacity_per_rank: most rows that it receives; more are an EpError RESOURCE_EXHAUSTED on all ranks, none are dropped.
            None: what can come at most, the processes x their tokens x experts per token.
        name: by which ``ep_implementation`` asks for it.

    Raises:
        TypeError, ValueError: a size that is no whole number of 1 or more; no name.
    """
    function = "epd.torch.transformers.register"
    sizes = positive(function, integer, max_tokens_per_rank=max_tokens_per_rank)
    if recv_capacity_per_rank is not None:
        sizes |= positive(function, integer, recv_capacity_per_rank=recv_capacity_per_rank)
    if not isinstance(name, str) or not name:
        raise ValueError(f"{function}: name is {name!r}; expected the name of an implementation")
    given = _Sizes(sizes["max_tokens_per_rank"], sizes.get("recv_capacity_per_rank"))
    EPImplementationInterface.register(name, functools.partial(_EpdExperts, sizes=given))


def leave() -> None:
    """Leaves the groups that models here have joined; the next forward joins again. By all processes, with no forward under way."""
    with _lock:
        for group in _groups.values():
            group.finalize()
        _groups.clear()
