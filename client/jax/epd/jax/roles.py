"""Roles: different programs on different devices exchange tokens, such as attention ranks and expert ranks.

::

    attention, experts = Mesh(devices[:m], ("attention",)), Mesh(devices[m:], ("experts",))
    group = RoleGroup("decode", attention, experts, num_experts=8, max_tokens_per_rank=64, recv_capacity_per_rank=512,
                      hidden_dim=1024)
    layer = EpLayerConfig(top_k=2)

    def attend(link, idx, tokens, weights):      # On each attention rank: its tokens go to all experts, and come back.
        recv, _, handle, counts, _ = link.dispatch(layer, idx, tokens, weights, 1, name="ffn")
        return link.combine(layer, handle, counts, recv, tokens.shape[0], name="ffn")

    def serve(link, params):                     # On each expert rank, once for each attention rank.
        idx, row, nothing = link.nothing(layer)
        recv, weights, handle, counts, _ = link.dispatch(layer, idx, row, nothing, 512, name="ffn")
        out = ffn(params, recv, counts) * weights[..., None].astype(recv.dtype)
        return link.combine(layer, handle, counts, out, 1, name="ffn")

    run = roles([(attention, attend), (experts, serve)], group, [attended_shape, served_shape])
    attended, served = run((idx, tokens, weights), (params,))

Each attention rank exchanges with the experts in a group of its own: it is rank 0, and the experts are the ranks after it.
A role's function is a program for one rank. On an expert rank it runs once for each attention rank, and these executions
do not wait for each other, nor do those of several functions: two micro-batches are in flight at once if each has its own
pair of functions (the same ones under other names, say by ``functools.partial``). So no attention rank waits for another
one, however late that is, and whatever order XLA gives to a program's operations.

Attention ranks own no experts: what they receive is one slot of zeros, which they hand on to combine. Expert ranks bring no
tokens: ``link.nothing`` is one row, which is routed nowhere. **Both use all results**, since in a program an operation
whose result no one uses does not exist, and the other role waits for it (the error names it). So ``serve`` returns what
combine gives it, and in a backward pass takes the gradient of ``nothing``'s row too, which makes dispatch's backward::

    def train(link, params):
        idx, row, nothing = link.nothing(layer)
        receipt, pull = jax.vjp(lambda params, row: one_layer(link, params, idx, row, nothing), params, row)
        return *pull(receipt), receipt           # What is pulled does not matter: gradients come from the tokens' owners.

Each execution returns its own gradient of the parameters, that of one attention rank's tokens: sum them. Several layers in
one function of an expert rank are tied together by ``link.nothing(layer, after=receipt)``.
"""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from epd.jax import _group_arguments as _arguments
from epd.jax import _names, _order, _place
from epd.jax._streams import Side, Stream, check_number, streams_of
from epd.jax.role_group import RoleGroup, RoleLink, check_meshes, mesh_argument

_MOST_NAME_BYTES, _MOST_METADATA_BYTES = 200, 256


def _metadata_text(metadata: object) -> str:
    """``<key>=<value>``, separated by spaces, as epctl shows it."""
    if metadata is None:
        return ""
    if not isinstance(metadata, Mapping):
        raise TypeError(f"roles: metadata must be a dict of str, got {type(metadata).__name__}")
    text = " ".join(
        _arguments.label("roles", "metadata", key, value, _MOST_METADATA_BYTES)
        for key, value in metadata.items()
    )
    if len(text) > _MOST_METADATA_BYTES:
        raise ValueError(
            f"roles: metadata has {len(text)} bytes as text; expected at most {_MOST_METADATA_BYTES}"
        )
    return text


def _listed(argument: str, value: object) -> list:
    if not isinstance(value, tuple | list):
        raise TypeError(f"roles: {argument} must be a list, got {type(value).__name__}")
    return list(value)


def _leaf_name(path) -> str:
    return jax.tree_util.keystr(path) or "(the only one)"


def _rank_shapes(number: int, shapes: Any, size: int) -> Any:
    """What one rank returns: ``shapes`` with the leading dimension divided."""

    def one(path, shape):
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
    structures = [jax.tree.structure(tree) for tree in (got, want)]
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


def _share(number: int, path, leaf: Any, device: jax.Device) -> jax.Array:
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
    return tuple(jax.pure_callback(lambda *parts: parts, shapes, *place))


class _Program:
    """One pair: its function, compiled for each device of this process, and what it returns."""

    def __init__(self, number: int, mesh: Mesh, function: Callable, group: RoleGroup, shapes: Any):
        self.number, self._group, self._mesh = number, group, mesh
        side = group.side_of(mesh)
        assert side is not None
        self.side, self.out_shapes = side, shapes
        self._rank_shapes = _rank_shapes(number, shapes, mesh.size)
        self._executables: dict = {}

        def role(place, arguments):
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
            _order.check(f"roles: function {self.number}", traced.jaxpr)
            self._group.take_names(self.side, names, self)
            self._executables[key] = traced.lower().compile()
        executable = self._executables[key]

        def execute() -> Any:
            jax.block_until_ready((place, own))  # Else XLA takes the pool all the same.
            return jax.block_until_ready(executable(place, own))

        return execute

    def results(self, by_rank: Sequence[Any]) -> Any:
        """Global arrays of what this process's ranks returned, in the order of the mesh."""
        spec = PartitionSpec(tuple(self._mesh.axis_names))

        def whole(shape, *shards):
            sharding = NamedSharding(self._mesh, spec)
            return jax.make_array_from_single_device_arrays(shape.shape, sharding, shards)

        return jax.tree.map(whole, self.out_shapes, *by_rank)


class Started:
    """One call of the roles' functions, under way."""

    def __init__(self, finish: Callable[[], tuple], futures: Sequence[Future]):
        self._finish, self._futures = finish, futures

    def done(self) -> bool:
        """True if ``result`` would not wait."""
        return all(future.done() for future in self._futures)

    def result(self) -> tuple:
        """Waits for this process's executions, and returns what ``Roles`` returns. The first error is raised once all have
        ended; CancelledError: the group was finalized before they began.
        """
        for future in self._futures:
            future.exception() if not future.cancelled() else None
        return self._finish()


class Roles:
    """What ``roles`` returns: call it. Thread-safe; calls are executed in order, the same one in every process."""

    def __init__(self, programs: Sequence[_Program], group: RoleGroup, streams: Sequence[Stream]):
        self._programs, self._group = programs, group
        self._streams = {
            stream: ThreadPoolExecutor(1, thread_name_prefix="epd-role") for stream in streams
        }
        self._lock = threading.Lock()

    def __call__(self, *arguments) -> tuple:
        """``start(*arguments).result()``."""
        return self.start(*arguments).result()

    def start(self, *arguments) -> Started:
        """Starts the functions of this process's devices and returns at once (after compiling, the first time).

        Several calls may be under way: those of one function on one device for one token rank come one after another.

        Args:
            arguments: one tuple per pair, what its function gets after its link; pytrees. Of a jax.Array each rank gets
                what its device holds, of other values (and of arrays on a single device) the whole. Where this process
                has no device of the pair's mesh the tuple is not looked at, and may be None.

        Raises:
            TypeError: the arguments of a pair are no tuple; a function's output is none.
            ValueError: not one tuple per pair; an argument on other devices; while tracing, outputs that are not as
                ``out_shapes`` says, operations without a name, a name that is used twice.
            RuntimeError: the group was finalized.
        """
        if len(arguments) != len(self._programs):
            raise ValueError(
                f"roles: got arguments for {len(arguments)} pairs, expected {len(self._programs)}: a tuple for each"
            )
        with self._lock:
            if not self._group.is_joined:
                raise RuntimeError(
                    f"roles: the group {self._group.name!r} was finalized; call roles again, which joins it"
                )
            calls = {
                stream: self._programs[stream.pair].execution(stream, arguments[stream.pair])
                for stream in self._streams
            }
            futures = {stream: self._streams[stream].submit(call) for stream, call in calls.items()}
        return Started(functools.partial(self._finish, futures), list(futures.values()))

    def _finish(self, futures: Mapping[Stream, Future]) -> tuple:
        domains = range(self._group.config.num_ep_groups)

        def results_of(program: _Program, domain: int | None):
            own = [
                future.result()
                for stream, future in futures.items()
                if stream.pair == program.number and domain in (None, stream.domain)
            ]
            return program.results(own) if own else program.out_shapes

        return tuple(
            results_of(program, None)
            if program.side is Side.TOKENS
            else tuple(results_of(program, domain) for domain in domains)
            for program in self._programs
        )

    def close(self) -> None:
        """Cancels what has not begun. For RoleGroup.finalize."""
        for thread in self._streams.values():
            thread.shutdown(wait=False, cancel_futures=True)


def roles(
    pairs: Sequence[tuple[Mesh, Callable]],
    group: RoleGroup,
    out_shapes: Sequence[Any],
    *,
    name: str | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Roles:
    """A function that runs each role's function on the ranks of its mesh. Every process passes the same list; collective.

    A process traces, compiles and runs only the functions whose mesh holds devices of it. Each is compiled by itself, as by
    ``jax.jit``, for one device, and gets first its ``RoleLink``, then its arguments, this rank's share of each. It holds no
    mesh, and no collectives of XLA's. A function on ``token_mesh`` runs once on each rank, one on ``expert_mesh`` once on
    each rank for each token rank.

    It may close over what a function under ``jax.jit`` may: Python and NumPy values and arrays that this process holds
    whole. They become constants of the role's program when it is traced, in the processes of its mesh; other processes
    never look at them. What changes, and what is spread over devices, is passed as an argument.

    Args:
        pairs: (mesh, function), in any order; several functions may have the same mesh, and run side by side.
        group: the group over which the roles exchange. The first ``roles`` of a group joins it.
        out_shapes: for each pair, the pytree of ``jax.ShapeDtypeStruct`` that one run of its function returns, over all
            ranks of its mesh together: every output has a leading dimension, which the ranks share evenly.
        name: static; shown by ``epctl ranks`` and ``sessions`` as this process's program, if this call joins the group: 1
            to 200 printable ASCII characters without spaces.
        metadata: static; likewise, as ``key=value`` texts: at most 256 bytes together.

    Returns:
        ``run``: see ``Roles``. ``run(*arguments)`` takes one tuple of arguments per pair, and returns one result per pair:
        for ``token_mesh`` what the function returned, as global arrays whose leading dimension is split over the mesh; for
        ``expert_mesh`` a tuple of such results, one for each token rank. On a process without devices of the pair's mesh
        its entry of ``out_shapes`` itself stands in their place. A function's error is raised where it runs; an error of
        the exchange on all ranks of its token rank's group. ``run.start`` does not wait.

    Raises:
        TypeError: an argument of another type.
        ValueError: ``pairs`` is empty; an axis that two meshes have in different sizes; a mesh that is none of the
            group's; more than 32 executions at once on a device; a number of out_shapes that is not that of pairs, or one that the ranks do not divide; a name or
            metadata with characters that are not allowed, or too long.
        EpError: as for ``Group``.
    """
    pairs = _listed("pairs", pairs)
    if not pairs:
        raise ValueError("roles: pairs is empty; expected at least one (mesh, function)")
    if not isinstance(group, RoleGroup):
        raise TypeError(f"roles: group must be a RoleGroup, got {type(group).__name__}")
    for number, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"roles: pair {number} must be (mesh, function), got {pair!r}")
        mesh_argument("roles", f"the mesh of pair {number}", pair[0])
        if not callable(pair[1]):
            raise TypeError(
                f"roles: the function of pair {number} must be callable, got {type(pair[1]).__name__}"
            )
    check_meshes("roles", [mesh for mesh, _ in pairs])
    out_shapes = _listed("out_shapes", out_shapes)
    if len(out_shapes) != len(pairs):
        raise ValueError(f"roles: out_shapes has {len(out_shapes)} entries, expected {len(pairs)}")
    text = "" if name is None else _names.check_text("roles", "name", name, _MOST_NAME_BYTES)
    about = _metadata_text(metadata)
    for number, (mesh, _) in enumerate(pairs):
        if group.side_of(mesh) is None:
            raise ValueError(
                f"roles: the mesh of pair {number}, {dict(mesh.shape)}, is none of the group's; give the same meshes as to"
                " RoleGroup"
            )
    programs = [
        _Program(number, mesh, function, group, shapes)
        for number, ((mesh, function), shapes) in enumerate(zip(pairs, out_shapes, strict=True))
    ]
    sides = [(program.side, mesh) for program, (mesh, _) in zip(programs, pairs, strict=True)]
    check_number(sides, group.config.num_ep_groups)
    streams = streams_of(sides, group.config.num_ep_groups, jax.process_index())
    run = Roles(programs, group, streams)
    group.connect(text, about, run)
    return run
