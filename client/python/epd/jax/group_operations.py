"""The operations of a group, as its methods."""

import contextlib
from collections.abc import Iterator
from typing import Any, Literal, overload

import jax

from epd.jax import _checks
from epd.jax._checked_operations import Operation
from epd.jax._out_sharding import SpecLike
from epd.jax.config import EpLayerConfig, GroupSpec
from epd.jax.functional import Dispatched
from epd.jax.routing_stats import RoutingStats, experts_of, stats_of
from epd.jax.started_exchange import StartedExchange


class GroupOperations:
    """What a Group can do with arrays. ``spec`` is all that they need of it."""

    _spec: GroupSpec

    @property
    def spec(self) -> GroupSpec:
        """What tracing knows of the group. Hashable, equal by value."""
        return self._spec

    def _here(self) -> contextlib.AbstractContextManager[None]:
        """Where operations run that are traced inside; the mesh says, unless overridden."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def _call(self, operation: str, name: str | None) -> Iterator[Operation]:
        """A call of one of the methods below."""
        with self._here():
            yield Operation(self.spec, f"Group.{operation}", name)

    def handle_mem_size(self, cfg: EpLayerConfig) -> int:
        """Bytes of one rank's routing plan, the same on all ranks. TypeError if ``cfg`` is no EpLayerConfig."""
        return self.spec.handle_mem_size(_checks.layer("Group.handle_mem_size", cfg).top_k)

    def prepare(
        self, cfg: EpLayerConfig, topk_idx: jax.Array, *, name: str | None = None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """``epd.jax.ep_prepare`` in this group: -> (token_counts [R, n], total_recv_tokens [R, 1], handle_mem).

        Args:
            cfg: static; the layer.
            topk_idx: int32 or int64 ``[leading, top_k]``, traced.
            name: static; see the class.

        Raises:
            As ep_prepare; ValueError, a name that is used twice in the program (while tracing or compiling).
        """
        with self._call("prepare", name) as call:
            return call.prepare(cfg, topk_idx)

    @overload
    def dispatch(
        self,
        cfg: EpLayerConfig,
        topk_idx: jax.Array,
        tokens: jax.Array,
        topk_weights: jax.Array,
        recv_capacity_per_rank: int,
        *,
        name: str | None = None,
        start: Literal[False] = False,
    ) -> Dispatched: ...
    @overload
    def dispatch(
        self,
        cfg: EpLayerConfig,
        topk_idx: jax.Array,
        tokens: jax.Array,
        topk_weights: jax.Array,
        recv_capacity_per_rank: int,
        *,
        name: str | None = None,
        start: Literal[True],
    ) -> StartedExchange[Dispatched]: ...
    def dispatch(
        self,
        cfg: EpLayerConfig,
        topk_idx: jax.Array,
        tokens: jax.Array,
        topk_weights: jax.Array,
        recv_capacity_per_rank: int,
        *,
        name: str | None = None,
        start: bool = False,
    ) -> Any:
        """``epd.jax.ep_dispatch`` in this group; differentiable.

        Args:
            cfg: static; the layer.
            topk_idx: int32 or int64 ``[leading, K]``, traced.
            tokens: ``[leading, H]``, or a pytree of payloads, traced.
            topk_weights: floating ``[leading, K]``, traced.
            recv_capacity_per_rank: static; C, at most the group's.
            name: static; see the class. Of its prepare, dispatch and dispatch's backward.
            start: static; as of ep_dispatch.

        Returns and raises as ep_dispatch; ValueError, a name that is used twice.
        """
        given = (cfg, topk_idx, tokens, topk_weights, recv_capacity_per_rank)
        with self._call("dispatch", name) as call:
            return call.dispatch(*given, start=start)

    @overload
    def combine(
        self,
        cfg: EpLayerConfig,
        handle_mem: jax.Array,
        expert_out: jax.Array,
        num_local_tokens: int | tuple[int, ...],
        out_sharding: SpecLike = None,
        *,
        name: str | None = None,
        start: Literal[False] = False,
    ) -> jax.Array: ...
    @overload
    def combine(
        self,
        cfg: EpLayerConfig,
        handle_mem: jax.Array,
        expert_out: jax.Array,
        num_local_tokens: int | tuple[int, ...],
        out_sharding: SpecLike = None,
        *,
        name: str | None = None,
        start: Literal[True],
    ) -> StartedExchange[jax.Array]: ...
    def combine(
        self,
        cfg: EpLayerConfig,
        handle_mem: jax.Array,
        expert_out: jax.Array,
        num_local_tokens: int | tuple[int, ...],
        out_sharding: SpecLike = None,
        *,
        name: str | None = None,
        start: bool = False,
    ) -> Any:
        """``epd.jax.ep_combine`` in this group, without the counts, which the plan holds; differentiable.

        Args:
            cfg: static; the layer.
            handle_mem: uint8 ``[R, size]``, traced.
            expert_out: float32, bfloat16 or float16 ``[R, C, H]``, traced.
            num_local_tokens, out_sharding: static; as for ep_combine.
            name: static; see the class. Of combine and its backward.
            start: static; as of ep_dispatch.

        Returns and raises as ep_combine; ValueError, a name that is used twice.
        """
        given = (cfg, handle_mem, expert_out, num_local_tokens, out_sharding)
        with self._call("combine", name) as call:
            return call.combine(*given, start=start)

    def dispatch_fwd(
        self,
        cfg: EpLayerConfig,
        handle_mem: jax.Array,
        topk_idx: jax.Array,
        tokens: jax.Array,
        topk_weights: jax.Array,
        recv_capacity_per_rank: int,
        *,
        name: str | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """``epd.jax.primitives.ep_dispatch_fwd`` in this group: arguments, result and errors as there, and ``name``."""
        given = (cfg, handle_mem, topk_idx, tokens, topk_weights, recv_capacity_per_rank)
        with self._call("dispatch_fwd", name) as call:
            return call.dispatch_fwd(*given)

    def combine_fwd(
        self,
        cfg: EpLayerConfig,
        handle_mem: jax.Array,
        expert_out: jax.Array,
        num_local_tokens: int | tuple[int, ...],
        out_partition_spec: SpecLike = None,
        *,
        name: str | None = None,
    ) -> jax.Array:
        """``epd.jax.primitives.ep_combine_fwd`` in this group: arguments, result and errors as there, and ``name``."""
        given = (cfg, handle_mem, expert_out, num_local_tokens, out_partition_spec)
        with self._call("combine_fwd", name) as call:
            return call.combine(*given, names=("combine",))

    def dispatch_bwd(
        self,
        cfg: EpLayerConfig,
        handle_mem: jax.Array,
        grad: jax.Array,
        g_recv_topk_weights: jax.Array,
        num_local_tokens: int | tuple[int, ...],
        out_partition_spec: SpecLike = None,
        *,
        name: str | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """``epd.jax.primitives.ep_dispatch_bwd`` in this group: arguments, result and errors as there, and ``name``."""
        given = (cfg, handle_mem, grad, g_recv_topk_weights, num_local_tokens, out_partition_spec)
        with self._call("dispatch_bwd", name) as call:
            return call.dispatch_bwd(*given)

    def combine_bwd(
        self,
        cfg: EpLayerConfig,
        handle_mem: jax.Array,
        grad: jax.Array,
        recv_capacity_per_rank: int,
        *,
        name: str | None = None,
    ) -> jax.Array:
        """``epd.jax.primitives.ep_combine_bwd`` in this group: arguments, result and errors as there, and ``name``."""
        with self._call("combine_bwd", name) as call:
            return call.combine_bwd(cfg, handle_mem, grad, recv_capacity_per_rank)

    def routing_stats(
        self, handle_mem: jax.Array, recv_capacity_per_rank: int | None = None
    ) -> RoutingStats:
        """``epd.jax.routing_stats`` of a plan of this group: arguments, result and errors as there."""
        return stats_of(self.spec, "Group.routing_stats", handle_mem, recv_capacity_per_rank)

    def expert_of_slots(
        self, handle_mem: jax.Array, recv_capacity_per_rank: int | None = None
    ) -> jax.Array:
        """The expert of each row that dispatch receives, without any communication. Inside or outside of jit.

        Args:
            handle_mem: uint8 ``[R, size]`` of ``prepare`` or ``dispatch``, traced.
            recv_capacity_per_rank: static; C of the dispatch in question. Default: the group's capacity.

        Returns:
            int32 ``[R, C]``: the number of the expert among its rank's own, 0 to n - 1, as it indexes a rank's
            parameters; -1 for padding and tail.

        Raises:
            As routing_stats.
        """
        return experts_of(self.spec, "Group.expert_of_slots", handle_mem, recv_capacity_per_rank)
