"""One role's function: traced and compiled for a device, and executed for a rank. See roles.py."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from epd.jax import _names, _place, _role_order
from epd.jax._role_streams import Stream
from epd.jax.role_group import RoleGroup, RoleLink


def _leaf_name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path) or "(the only one)"


def _rank_shapes(number: int, shapes: Any, size: int) -> Any:
    """What one rank returns: ``shapes`` with the leading dimension divided."""

    def one(path: tuple[Any, ...], shape: Any) -> jax.ShapeDtypeStruct:
        if not hasattr(shape, "shape") or not hasattr(shape, "dtype"):
            raise TypeError(
                f"roles: output {_leaf_name(path)} of out_shapes[{number}] must be a jax.ShapeDtypeStruct, got"
                f" {type(shape).__name__}"
            )
        if not shape.shape or shape.shape[0] % size:
            raise ValueError(
                f"roles: output {_leaf_name(path)} of out_shapes[{number}] has shape {list(shape.shape)}; expected a leading"
                f" dimension that the {size} ranks of its mesh divide"
            )
        return jax.ShapeDtypeStruct((shape.shape[0] // size, *shape.shape[1:]), shape.dtype)

    return jax.tree_util.tree_map_with_path(one, shapes)


def _check_outputs(number: int, got: Any, want: Any) -> None:
    """ValueError that names the first output that is not as out_shapes says."""
    structures: list[Any] = [jax.tree.structure(tree) for tree in (got, want)]
    if structures[0] != structures[1]:
        raise ValueError(
            f"roles: function {number} returns {structures[0]}, but out_shapes[{number}] is {structures[1]}"
        )
    for (path, one), other in zip(
        jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True
    ):
        if (tuple(one.shape), one.dtype) != (tuple(other.shape), jnp.dtype(other.dtype)):
            raise ValueError(
                f"roles: output {_leaf_name(path)} of function {number} is {one.dtype}{list(one.shape)} on a rank, but"
                f" out_shapes[{number}] says {jnp.dtype(other.dtype)}{list(other.shape)} for a rank"
            )


def _share(number: int, path: tuple[Any, ...], leaf: Any, device: jax.Device) -> jax.Array:
    """What ``device`` gets of an argument."""
    if not isinstance(leaf, jax.Array):
        return jax.device_put(leaf, device)
    for shard in leaf.addressable_shards:
        if shard.device == device:
            return shard.data
    if leaf.is_fully_addressable and len(leaf.sharding.device_set) == 1:
        return jax.device_put(leaf, device)
    raise ValueError(
        f"roles: argument {_leaf_name(path)} of function {number} lies on other devices than {device}; shard it over the"
        " function's mesh, or pass a NumPy array, of which each rank gets the whole"
    )


def _in_calling_thread(place: _place.Place) -> _place.Place:
    """``place``, through a host callback: XLA executes a program that has one in the thread that calls it.

    Other programs go to a pool of as many threads as there are cores or devices, each of which waits for its program to
    end. Streams that wait for their peers there would keep out those that the peers wait for.
    """
    shapes = tuple(jax.ShapeDtypeStruct(part.shape, part.dtype) for part in place)
    domain, position = jax.pure_callback(lambda *parts: parts, shapes, *place)
    return domain, position


def _name_of(function: Callable[..., Any]) -> str:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__qualname__", type(function).__name__)


class Program:
    """One pair: its function, compiled for each device of this process, and what it returns."""

    def __init__(
        self, number: int, mesh: Mesh, function: Callable[..., Any], group: RoleGroup, shapes: Any
    ):
        self.number, self._group, self._mesh = number, group, mesh
        side = group.side_of(mesh)
        assert side is not None
        self.side, self.out_shapes = side, shapes
        self._rank_shapes = _rank_shapes(number, shapes, mesh.size)
        self._executables: dict[Any, Callable[..., Any]] = {}
        self.name = _name_of(function)
        self.first_exchange: str | None = None  # Its key, once the function was traced.

        def role(place: _place.Place, arguments: tuple[Any, ...]) -> Any:
            link = RoleLink(group.spec, _in_calling_thread(place))
            outputs = jax.tree.map(jnp.asarray, function(link, *arguments))
            _check_outputs(number, outputs, self._rank_shapes)
            return outputs

        self._jitted = jax.jit(role)

    def execution(self, stream: Stream, arguments: Any) -> Callable[[], Any]:
        """A call that makes one execution, and waits for it. Compiles it here, if need be."""
        if not isinstance(arguments, tuple | list):
            raise TypeError(
                f"roles: the arguments of function {self.number} must be a tuple, got {type(arguments).__name__}"
            )
        own = jax.tree_util.tree_map_with_path(
            lambda path, leaf: _share(self.number, path, leaf, stream.device), tuple(arguments)
        )
        place = tuple(
            jax.device_put(np.int32(value), stream.device)
            for value in (stream.domain, stream.position)
        )
        leaves, tree = jax.tree.flatten(own)
        key = (stream.device, tree, tuple(map(jax.typeof, leaves)))
        if key not in self._executables:
            with _names.seen() as names:
                traced = self._jitted.trace(place, own)
            _role_order.check(f"roles: function {self.number}", traced.jaxpr)
            self._group.take_names(self.side, names, self)
            self.first_exchange = _role_order.first_key(traced.jaxpr)
            self._executables[key] = traced.lower().compile()
        executable = self._executables[key]

        def execute() -> Any:
            jax.block_until_ready((place, own))  # Else XLA takes the pool all the same.
            return jax.block_until_ready(executable(place, own))

        return execute

    def results(self, by_rank: Sequence[Any]) -> Any:
        """Global arrays of what this process's ranks returned, in the order of the mesh."""
        spec = PartitionSpec(tuple(self._mesh.axis_names))

        def whole(shape: jax.ShapeDtypeStruct, *shards: jax.Array) -> jax.Array:
            sharding = NamedSharding(self._mesh, spec)
            return jax.make_array_from_single_device_arrays(shape.shape, sharding, shards)

        return jax.tree.map(whole, self.out_shapes, *by_rank)
