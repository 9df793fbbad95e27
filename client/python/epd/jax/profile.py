"""Lays what epd's ranks did beside what ``jax.profiler`` saw, on one clock, for Perfetto (ui.perfetto.dev).

::

    epctl trace GROUP --seconds 5 > trace.json      # while the program runs inside jax.profiler.trace(FOLDER)
    python -m epd.jax.profile FOLDER trace.json > both.json

The profiler shows epd's calls by themselves, as ``epd_dispatch.7`` when XLA makes one and ``end: epd_dispatch.7`` when it is done;
the trace has what happens in between: which rank was last, and each rank's phases. XLA's FFI has no way into the profiler, so
that the handlers cannot tell it. Clocks: the profiler's is this machine's wall clock, the trace's that of the coordinator's node.
"""

import json
import pathlib
import sys
from typing import Any

import jax.profiler

from epd import _programs

_USAGE = "usage: python -m epd.jax.profile PROFILE TRACE > BOTH"
# Above the processes of a trace of epctl: a worker each.
_FIRST_PROCESS = 100_000
_FACTS = ("hlo_module", "run_id", "device_ordinal")
_Event = dict[str, Any]


def _newest_profile(folder: pathlib.Path) -> pathlib.Path:
    """ValueError: there is none."""
    found = [folder] if folder.is_file() else sorted(folder.rglob("*.xplane.pb"))
    if not found:
        raise ValueError(
            f"{folder}: there is no *.xplane.pb in it; expected a folder that jax.profiler.trace has written to"
        )
    return max(found, key=lambda path: path.stat().st_mtime_ns)


def _read_trace(path: pathlib.Path) -> dict[str, Any]:
    """ValueError: it is not what ``epctl trace`` prints, or an older epctl's, or it has no operations."""
    try:
        trace = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: {error}; expected what epctl trace prints") from None
    if not isinstance(trace, dict) or "otherData" not in trace:
        raise ValueError(f"{path}: expected what epctl trace prints")
    if "zero_unix_ns" not in trace["otherData"]:
        raise ValueError(
            f"{path}: no operations with a time are in it; expected the trace of a group that runs, of this release's epctl"
        )
    return trace


def _start_of(profile: jax.profiler.ProfileData) -> int:
    """Unix time at which the profile's times are 0, in ns. ValueError: it does not say."""
    for plane in profile.planes:
        stats = dict(plane.stats)
        if "profile_start_time" in stats:
            return int(stats["profile_start_time"])
    raise ValueError("the profile does not say when it began; expected one of JAX 0.10 or newer")


def _facts_of(stats: dict[str, Any]) -> dict[str, Any]:
    """What XLA says of a call; ``call`` is the same where it is made and where it is done."""
    facts = {name: stats[name] for name in _FACTS if name in stats}
    call = stats.get("_p", stats.get("_c"))
    return facts if call is None else facts | {"call": str(call)}


def _events_of(profile: jax.profiler.ProfileData, shift_ns: int) -> list[_Event]:
    """What the profile's threads did; ``shift_ns`` is added to its times."""
    events: list[_Event] = []
    for process, plane in enumerate(profile.planes, start=_FIRST_PROCESS):
        lines = list(plane.lines)
        if not lines:
            continue
        name = {"name": f"jax.profiler {plane.name}"}
        events.append({"name": "process_name", "ph": "M", "pid": process, "tid": 0, "args": name})
        for thread, line in enumerate(lines, start=1):
            place = {"pid": process, "tid": thread}
            events.append({"name": "thread_name", "ph": "M", **place, "args": {"name": line.name}})
            for event in line.events:
                times = {
                    "ts": (event.start_ns + shift_ns) / 1e3,
                    "dur": max(event.duration_ns, 1) / 1e3,
                }
                shown = {"name": event.name, "cat": "jax", "ph": "X", **place, **times}
                events.append(shown | {"args": _facts_of(dict(event.stats))})
    return events


def merged(profile: pathlib.Path, trace: pathlib.Path) -> dict[str, Any]:
    """The trace of ``epctl trace`` in the file ``trace``, with what ``jax.profiler`` wrote to ``profile`` beside it.

    Args:
        profile: a folder that ``jax.profiler.trace`` has written to (the newest profile counts), or one ``.xplane.pb``.

    Raises:
        OSError: a file cannot be read.
        ValueError: one is not what it should be.
    """
    both = _read_trace(trace)
    data = jax.profiler.ProfileData.from_file(str(_newest_profile(profile)))
    shift = _start_of(data) - int(both["otherData"]["zero_unix_ns"])
    both["traceEvents"] = [*both["traceEvents"], *_events_of(data, shift)]
    return both


def main() -> None:
    if sys.argv[1:] in (["-h"], ["--help"]):
        _programs.write_out("epd.jax.profile", f"{_USAGE}\n")
        return
    if len(sys.argv) != 3:
        print(f"{_USAGE}\nepd.jax.profile: got {len(sys.argv) - 1} arguments", file=sys.stderr)
        sys.exit(2)
    try:
        both = merged(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
    except (OSError, ValueError) as error:
        print(f"epd.jax.profile: {error}", file=sys.stderr)
        sys.exit(1)
    _programs.write_out("epd.jax.profile", f"{json.dumps(both)}\n")


if __name__ == "__main__":
    main()
