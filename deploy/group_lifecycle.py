#!/usr/bin/env python3
"""Creates a group, watches it, drains it and closes it, as an orchestrator would. Uses only epd.cluster, the package's client of a node's API.

    .venv/bin/python deploy/group_lifecycle.py --name train --ranks 4 --experts 32 --hidden 2048

Prints a line per change of the group. Exit status 0 only if the group went through its whole life.
"""

import argparse
import sys
import threading
import uuid

import grpc
from epd import cluster

_WATCH_END_SECONDS = 10


class GroupWatch:
    """Follows one group in a thread, until it is closed."""

    def __init__(self, node: cluster.Node, name: str):
        self._node = node
        self._changed = threading.Condition()
        self._states: list[str] = []
        self._error: grpc.RpcError | None = None
        self._stream = node.stream("WatchGroup", name=name)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    @property
    def states(self) -> list[str]:
        """Every state seen so far, without repetitions next to each other."""
        with self._changed:
            return list(self._states)

    def wait_for(self, state: str, timeout: float) -> bool:
        """True once `state` was seen; false when `timeout` seconds are over or the watch has ended."""
        with self._changed:
            self._changed.wait_for(
                lambda: state in self._states or not self._thread.is_alive(), timeout
            )
            return state in self._states

    def stop(self) -> None:
        """Waits for the end of the stream, which follows CLOSED, and raises what the stream raised."""
        self._thread.join(_WATCH_END_SECONDS)
        self._stream.cancel()
        if self._error is not None:
            raise self._error

    def _follow(self) -> None:
        try:
            for response in self._stream:
                self._add(response.group)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.CANCELLED:
                self._error = error
        with self._changed:
            self._changed.notify_all()

    def _add(self, group) -> None:
        state = self._node.enum_name("GroupState", group.state).removeprefix("GROUP_STATE_")
        phases = ", ".join(f"rank {rank.rank} {rank.phase}" for rank in group.ranks)
        print(f"watch: {group.spec.name} {state} epoch {group.epoch} ({phases})", flush=True)
        with self._changed:
            if not self._states or self._states[-1] != state:
                self._states.append(state)
            self._changed.notify_all()


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", help="gRPC target, e.g. unix:/run/epd/epd-grpc.sock")
    parser.add_argument("--name", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--max-tokens-per-rank", type=int, default=512)
    parser.add_argument("--recv-capacity-per-rank", type=int, default=2560)
    parser.add_argument("--top-k", type=int, default=4)
    parser.add_argument(
        "--wait-ready", type=float, default=0, help="seconds to wait for all ranks; 0: do not wait"
    )
    parser.add_argument("--drain-seconds", type=int, default=30, help="for open operations to end")
    return parser.parse_args(arguments)


def _create(node: cluster.Node, options: argparse.Namespace):
    spec = node.message(
        "GroupSpec",
        name=options.name,
        num_ranks=options.ranks,
        num_experts=options.experts,
        hidden=options.hidden,
        max_tokens_per_rank=options.max_tokens_per_rank,
        recv_capacity_per_rank=options.recv_capacity_per_rank,
        top_k=options.top_k,
        max_token_dtype="DTYPE_BFLOAT16",
    )
    plan = node.call("PlanMemory", spec=spec)
    print(
        f"plan: {plan.dispatch_bytes_per_rank} bytes of staging per rank and dispatch", flush=True
    )
    return node.call("CreateGroup", request_id=str(uuid.uuid4()), spec=spec).group


def _close(node: cluster.Node, name: str) -> None:
    """A drained group is closed already; closing it again must not be an error for an orchestrator."""
    try:
        node.call("CloseGroup", request_id=str(uuid.uuid4()), name=name)
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.NOT_FOUND:
            raise


def run(node: cluster.Node, options: argparse.Namespace) -> list[str]:
    """The whole life of one group; returns the states that the watch saw."""
    created = _create(node, options)
    print(f"created: {created.spec.name} epoch {created.epoch}", flush=True)
    watch = GroupWatch(node, options.name)
    try:
        if options.wait_ready > 0 and not watch.wait_for("READY", options.wait_ready):
            raise TimeoutError(
                f"group {options.name} was not READY within {options.wait_ready:.0f} s; "
                f"seen: {', '.join(watch.states)}. 'epctl ranks {options.name}' says who is missing"
            )
        drained = node.call(
            "DrainGroup",
            timeout=options.drain_seconds + 10,
            request_id=str(uuid.uuid4()),
            name=options.name,
            deadline={"seconds": options.drain_seconds},
        ).group
        print(
            f"drained: {drained.num_operations} operations, {drained.num_failed} failed", flush=True
        )
    finally:
        _close(node, options.name)
    watch.stop()
    return watch.states


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    with cluster.Node(options.target or cluster.default_target()) as node:
        try:
            states = run(node, options)
        except grpc.RpcError as error:
            print(f"error: {error.code().name}: {error.details()}", file=sys.stderr)
            return 1
        except TimeoutError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    print(f"done: {' -> '.join(states)}")
    return 0 if states and states[-1] == "CLOSED" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
