"""Goal: traces and why say where in the user's program a call stands, jax.profiler shows epd's calls by their names, and both can be
laid over each other: what epd's ranks did lies inside what XLA saw of the call."""

import json
import os
import pathlib
import subprocess
import sys
from collections import defaultdict

import pytest
from epd.jax import _scopes
from harness import HERE, Daemon, binary, clean_environment, python, short_folder

_SCRIPT = str(HERE / "scripts" / "profiled.py")
_LIMIT_SECONDS = 120
# Two readings of one machine's wall clock.
_CLOCKS_US = 2000.0
_KINDS = {
    "prepare": "epd_prepare",
    "dispatch": "epd_dispatch",
    "combine": "epd_combine",
    "dispatch_backward": "epd_dispatch_bwd",
    "combine_backward": "epd_combine_bwd",
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> dict:
    """Both in one: the trace of epctl, and the profile of jax.profiler, taken at the same time; and what why said."""
    folder = tmp_path_factory.mktemp("profiled")
    with short_folder() as short:
        daemon = Daemon(short)
        daemon.start()
        try:
            return _seen_of(daemon, folder)
        finally:
            daemon.end()


def _seen_of(daemon: Daemon, folder: pathlib.Path) -> dict:
    environment = clean_environment(
        EPD_SOCKET=daemon.socket,
        EPD_STACKS="yes",
        XLA_FLAGS="--xla_force_host_platform_device_count=2",
    )
    program = subprocess.Popen(
        python(_SCRIPT, str(folder / "profile")),
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout.readline().strip() == "running", program.poll()
        (group,) = json.loads(_epctl(daemon, "groups", "-o", "json"))["groups"]
        name = group["spec"]["name"]
        trace = folder / "trace.json"
        trace.write_text(_epctl(daemon, "trace", name, "--seconds", "1"))
        why = _epctl(daemon, "why", name, "--history")
        _epctl(daemon, "support-archive", str(folder / "archive.json"))
        program.stdin.close()
        assert program.wait(_LIMIT_SECONDS) == 0
    finally:
        program.kill()
        program.wait()
    merged = subprocess.run(
        [sys.executable, "-m", "epd.jax.profile", str(folder / "profile"), str(trace)],
        capture_output=True,
        text=True,
        timeout=_LIMIT_SECONDS,
        check=True,
    )
    archive = json.loads((folder / "archive.json").read_text())
    return json.loads(merged.stdout) | {"why": why, "archive": archive, "pid": program.pid}


def _epctl(daemon: Daemon, *words: str) -> str:
    ended = subprocess.run(
        [binary("epctl"), "--socket", daemon.socket, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("EPD_")},
    )
    return ended.stdout


def _operations(seen: dict) -> list[dict]:
    return [
        event
        for event in seen["traceEvents"]
        if (event.get("cat"), event["ph"]) == ("operation", "X") and not event["args"].get("open")
    ]


def test_a_call_is_named_by_the_scopes_that_it_stands_in(seen):
    scopes = defaultdict(set)
    for event in _operations(seen):
        scopes[event["name"]] |= {
            word.removeprefix("scope=")
            for word in event["args"]["key"].split()
            if word.startswith("scope=")
        }
    # What JAX's transformations add is left out, so a gradient has its call's name.
    assert dict(scopes) == {
        "prepare": {"layer_3"},
        "dispatch": {"layer_3"},
        "combine": {"out"},
        "dispatch_backward": {"layer_3"},
        "combine_backward": {"out"},
    }
    assert "layer_3" in seen["why"] and "out" in seen["why"]


def test_what_ranks_did_lies_inside_the_call_that_the_profiler_shows(seen):
    # Where XLA has made a call, and where it was done: one pair per call of a device.
    begun, ended = {}, {}
    for event in seen["traceEvents"]:
        operation, _, number = event["name"].removeprefix("end: ").rpartition(".")
        if event.get("cat") == "jax" and number.isdigit() and "call" in event["args"]:
            if event["name"].startswith("end: "):
                ended[operation, event["args"]["call"]] = event["ts"] + event["dur"]
            else:
                begun[operation, event["args"]["call"]] = event["ts"]
    pairs = defaultdict(list)
    for (operation, call), begin in begun.items():
        if (operation, call) in ended:
            pairs[operation].append((begin, ended[operation, call]))
    for kind, name in _KINDS.items():
        operations = [event for event in _operations(seen) if event["name"] == kind]
        inside = [
            event
            for event in operations
            if any(
                begin - _CLOCKS_US <= event["ts"] and event["ts"] + event["dur"] <= end + _CLOCKS_US
                for begin, end in pairs[name]
            )
        ]
        # But for those at the profile's ends.
        assert len(inside) >= 0.8 * len(operations) >= 2, (kind, len(inside), len(operations))


def test_the_process_that_allows_it_is_in_the_archive_with_its_stacks(seen):
    (stacks,) = [one for one in seen["archive"]["stacks"] if one["pid"] == seen["pid"]]
    assert not stacks.get("problem"), stacks["problem"]
    assert len(stacks["threads"]) > 1


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        ("jit(train_step)/jvp(layer_3)", "layer_3"),
        ("jit(train_step)/transpose(jvp(layer_3))/out", "layer_3/out"),
        ("checkpoint/rematted_computation/out", "out"),
        ("jit(train_step)/while/body/moe/jit(experts)", "moe/experts"),
        ("jit(train_step)/a/jvp(a)", "a"),
        ("", "train_step"),
        ("jit(train_step)", "train_step"),
        ("a b=c", "a_b_c"),
        (
            "decoder/layers_with_long_names/mixture_of_experts/dispatch",
            "mixture_of_experts/dispatch",
        ),
    ],
)
def test_scopes_are_the_users_words(stack, expected):
    scope = _scopes.scope(stack, "jit_train_step")
    assert scope == expected
    assert len(scope) <= 31
