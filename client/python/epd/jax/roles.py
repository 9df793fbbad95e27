"""Roles: different programs on different devices exchange tokens, such as attention ranks and expert ranks.

::

    attention, experts = Mesh(devices[:m], ("attention",)), Mesh(devices[m:], ("experts",))
    group = RoleGroup("decode", attention, experts, num_experts=8, max_tokens_per_rank=64, recv_capacity_per_rank=512,
                      hidden_dim=1024)
    layer = EpLayerConfig(top_k=2)

    def attend(link, idx, tokens, weights):      # On each attention rank: its tokens go to all experts, and come back.
        recv, _, handle, counts, _ = link.dispatch(layer, idx, tokens, weights, 1, name="ffn")
        return link.combine(layer, handle, recv, tokens.shape[0], name="ffn")

    def serve(link, params):                     # On each expert rank, once for each attention rank.
        idx, row, nothing = link.nothing(layer)
        recv, weights, handle, counts, _ = link.dispatch(layer, idx, row, nothing, 512, name="ffn")
        out = ffn(params, recv, counts) * weights[..., None].astype(recv.dtype)
        return link.combine(layer, handle, out, 1, name="ffn")

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
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import jax
from jax.sharding import Mesh

from epd._arguments import check_text
from epd._group_struct import Unique
from epd.jax import _checks, _role_handshake
from epd.jax import _group_arguments as _arguments
from epd.jax._role_handshake import RoleHandshake
from epd.jax._role_program import Program
from epd.jax._role_streams import Side, Stream, check_number, streams_of
from epd.jax.role_group import RoleGroup, check_mesh, check_meshes

_MOST_NAME_BYTES, _MOST_METADATA_BYTES = 200, 256
_REFUSAL_SECONDS = 2  # That a failing call waits until its peers are told; afterwards it goes on in the background.


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


def _listed(argument: str, value: object) -> list[Any]:
    if not isinstance(value, tuple | list):
        raise TypeError(f"roles: {argument} must be a list, got {type(value).__name__}")
    return list(value)


class Started(Unique):
    """One call of the roles' functions, under way."""

    def __init__(self, finish: Callable[[], tuple[Any, ...]], futures: Sequence[Future[Any]]):
        self._finish, self._futures = finish, futures

    def done(self) -> bool:
        """True if ``result`` would not wait."""
        return all(future.done() for future in self._futures)

    def result(self) -> tuple[Any, ...]:
        """Waits for this process's executions, and returns what ``Roles`` returns. The first error is raised once all have
        ended; CancelledError: the group was finalized before they began.
        """
        for future in self._futures:
            future.exception() if not future.cancelled() else None
        return self._finish()


class Roles(Unique):
    """What ``roles`` returns: call it. Thread-safe; calls are executed in order, the same one in every process."""

    def __init__(
        self,
        programs: Sequence[Program],
        group: RoleGroup,
        streams: Sequence[Stream],
        name: str,
        handshake: str | None,
    ):
        self._programs, self._group, self._name = programs, group, name or "roles"
        self._num_calls = 0
        self._handshakes = {
            place: RoleHandshake(handshake, functools.partial(group.at, *place))
            for place in {(stream.domain, stream.position) for stream in streams}
        }
        self._streams = {
            stream: ThreadPoolExecutor(1, thread_name_prefix="epd-role") for stream in streams
        }
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """``start(*arguments).result()``."""
        return self.start(*arguments).result()

    def start(self, *arguments: Any) -> Started:
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
            Anything that a function raises while it is traced. The other ranks of the group, which would wait for this
                process's ones, get an EpError INVALID_ARGUMENT that names function, process and error; the next call works.
        """
        with self._lock:
            if not self._group.is_joined:
                raise RuntimeError(
                    f"roles: the group {self._group.name!r} was finalized; call roles again, which joins it"
                )
            number = self._num_calls
            self._num_calls += 1
            failing = ""
            try:
                if len(arguments) != len(self._programs):
                    raise ValueError(
                        f"roles: got arguments for {len(arguments)} pairs, expected {len(self._programs)}: a tuple for each"
                    )
                calls = {}
                for stream in self._streams:
                    program = self._programs[stream.pair]
                    failing = f", function {program.number} ({program.name}) for {stream.device}"
                    calls[stream] = program.execution(stream, arguments[stream.pair])
            except BaseException as error:
                where = f"{self._name} of process {jax.process_index()}{failing}"
                self._withdraw(number, _role_handshake.reason_of(where, error))
                raise
            futures = {
                stream: self._streams[stream].submit(self._execute, stream, number, call)
                for stream, call in calls.items()
            }
        return Started(functools.partial(self._finish, futures), list(futures.values()))

    def _execute(self, stream: Stream, number: int, call: Callable[[], Any]) -> Any:
        self._handshakes[stream.domain, stream.position].agree(number)
        return call()

    def _withdraw(self, number: int, reason: str) -> None:
        """Tells the peers of all streams, each in its turn, as the streams' earlier calls may be under way."""
        told = [
            thread.submit(
                self._handshakes[stream.domain, stream.position].withdraw,
                number,
                reason,
                self._programs[stream.pair].first_exchange,
            )
            for stream, thread in self._streams.items()
        ]
        wait(told, _REFUSAL_SECONDS)

    def _finish(self, futures: Mapping[Stream, Future[Any]]) -> tuple[Any, ...]:
        domains = range(self._group.config.num_ep_groups)

        def results_of(program: Program, domain: int | None) -> Any:
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
    pairs: Sequence[tuple[Mesh, Callable[..., Any]]],
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
        its entry of ``out_shapes`` itself stands in their place. A function's error is raised where it is traced, and told to
        the ranks that would wait for it; an error of the exchange is one on all ranks of its token rank's group.
        ``run.start`` does not wait.

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
    _checks.of_kind("roles", "group", group, RoleGroup)
    for number, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"roles: pair {number} must be (mesh, function), got {pair!r}")
        check_mesh("roles", f"the mesh of pair {number}", pair[0])
        if not callable(pair[1]):
            raise TypeError(
                f"roles: the function of pair {number} must be callable, got {type(pair[1]).__name__}"
            )
    check_meshes("roles", [mesh for mesh, _ in pairs])
    out_shapes = _listed("out_shapes", out_shapes)
    if len(out_shapes) != len(pairs):
        raise ValueError(f"roles: out_shapes has {len(out_shapes)} entries, expected {len(pairs)}")
    text = "" if name is None else check_text("roles", "name", name, _MOST_NAME_BYTES)
    about = _metadata_text(metadata)
    for number, (mesh, _) in enumerate(pairs):
        if group.side_of(mesh) is None:
            raise ValueError(
                f"roles: the mesh of pair {number}, {dict(mesh.shape)}, is none of the group's; give the same meshes as to"
                " RoleGroup"
            )
    programs = [
        Program(number, mesh, function, group, shapes)
        for number, ((mesh, function), shapes) in enumerate(zip(pairs, out_shapes, strict=True))
    ]
    sides = [(program.side, mesh) for program, (mesh, _) in zip(programs, pairs, strict=True)]
    check_number(sides, group.config.num_ep_groups)
    streams = streams_of(sides, group.config.num_ep_groups, jax.process_index())
    both = {side for side, _ in sides} == set(Side)
    run = Roles(programs, group, streams, text, group.next_handshake() if both else None)
    group.connect(text, about, run)
    return run
