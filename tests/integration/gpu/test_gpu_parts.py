"""Goal: a visit to a GPU that is cut short anywhere has seen the most telling parts, none of which can take it all; and on
several GPUs rows are compared by each way that they can go."""

import importlib
import pathlib
import shlex
import sys
import types

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_ORDER = [
    "api streams worker 2 vmm",
    "api streams worker 2 ipc",
    "T1 handover",
    "T2 graph replay",
    "T4 T5 jax",
    "T5 shared memory",
    "T8 poison",
    "api streams client 2 vmm",
    "api streams client 2 ipc",
    "api streams worker 1 auto",
    "api streams worker 4 auto",
    "api streams client 1 auto",
    "api streams client 4 auto",
    "api jax worker command buffers off",
    "api jax worker command buffers on",
    "api jax client command buffers off",
    "api jax client command buffers on",
    "kernels",
    "bench api cuda worker",
    "bench api cuda client",
    "bench api nccl_ep worker",
    "bench deepep",
    "T3 device words",
    "T6 bench",
    "T7 nccl ranks",
    "T1 handover mps",
    "kernels memcheck",
    "kernels racecheck",
]


@pytest.fixture(name="parts")
def _parts(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """As where there is one GPU."""
    monkeypatch.syspath_prepend(str(_ROOT / "tests" / "gpu"))
    parts = importlib.import_module("parts")
    monkeypatch.setattr(parts.machine, "num_gpus", lambda: 1)
    monkeypatch.setattr(parts, "why_no_jax", lambda: "")
    return parts


def _made(parts: types.ModuleType, missing: dict[str, str] | None = None) -> dict:
    built = parts.programs.Programs(pathlib.Path("/out"), missing or {})
    return {part.name: part for part in parts.parts(built)}


def _argument(part, name: str) -> str:
    return part.command[part.command.index(name) + 1]


def test_parts_stand_in_the_order_of_their_worth(parts: types.ModuleType) -> None:
    assert list(_made(parts)) == _ORDER


def test_on_several_gpus_rows_go_directly_and_by_nccl(
    parts: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts.machine, "num_gpus", lambda: 4)
    made = _made(parts)
    order = list(_ORDER)
    at = order.index("bench api cuda worker")
    order[at : at + 1] = ["bench api cuda worker peer_memory", "bench api cuda worker nccl"]
    at = order.index("api jax worker command buffers off")
    order[at:at] = ["api streams worker 4 gpus peer_memory", "api streams worker 4 gpus nccl"]
    assert list(made) == order
    for what in ("api streams worker 4 gpus", "bench api cuda worker"):
        direct, by_nccl = made[f"{what} peer_memory"], made[f"{what} nccl"]
        assert "EPD_CUDA_PEER_ACCESS" not in direct.environment
        assert by_nccl.environment["EPD_CUDA_PEER_ACCESS"] == "no"
        # That it went so is not taken for granted.
        assert _argument(direct, "--log-says") == "rows go directly between"
        assert _argument(by_nccl, "--log-says") == "rows go by NCCL between"
    streams = made["api streams worker 4 gpus nccl"]
    assert [_argument(streams, f"--{what}") for what in ("ranks", "processes", "gpus")] == ["4"] * 3


def test_two_ranks_of_nccl_are_on_two_gpus(
    parts: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "NCCL refuses two ranks on one GPU" in _made(parts)["T7 nccl ranks"].skip
    assert _made(parts, {"nccl_ranks": "x"})["T7 nccl ranks"].skip.startswith("NCCL refuses")
    monkeypatch.setattr(parts.machine, "num_gpus", lambda: 2)
    assert _made(parts)["T7 nccl ranks"].skip == ""


def test_benchmarks_that_are_only_tried_are_smaller(parts: types.ModuleType) -> None:
    built = parts.programs.Programs(pathlib.Path("/out"), {})
    tried = {part.name: part for part in parts.parts(built, 64)}
    for name in ("bench api cuda worker", "T6 bench"):
        assert _argument(tried[name], "--divide") == "64"
    assert tried["bench deepep"].command[2] == "64"
    made = _made(parts)
    assert _argument(made["bench api cuda worker"], "--divide") == made["bench deepep"].command[2]
    assert made["bench deepep"].command[2] == "1" and "--divide" not in made["T6 bench"].command


def test_what_is_right_or_wrong_at_once_has_two_minutes(parts: types.ModuleType) -> None:
    for name, part in _made(parts).items():
        limit = 300 if "check" in name else 240 if "bench" in name else 120
        assert part.seconds <= limit, name
        if "--seconds" in part.command:
            # In what is left epd is ended and the logs are shown.
            assert float(_argument(part, "--seconds")) <= part.seconds - 15, name


def test_every_program_is_a_part(parts: types.ModuleType) -> None:
    run = {pathlib.Path(part.command[0]).name for part in _made(parts).values() if part.command[0]}
    assert set(parts.programs.PROGRAMS) <= run


def test_benchmarks_find_the_events_and_the_python_of_deepep(
    parts: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    event_call = parts.programs.EVENT_CALL
    for missing, events in (({}, f"/out/{event_call}"), ({event_call: "no JAX"}, "")):
        assert _argument(_made(parts, missing)["bench api cuda worker"], "--events") == events
    assert _made(parts)["bench deepep"].command[0] == sys.executable
    monkeypatch.setattr(parts, "_TORCH_PYTHON", "/nothing/here")
    assert "/nothing/here" in _made(parts)["bench deepep"].skip


def test_benchmarks_measure_how_fast_gpus_read_each_others_memory(
    parts: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    made = _made(parts)
    asked = _argument(made["bench api cuda worker"], "--peers")
    assert shlex.split(asked) == ["/out/bench", "--image", "/out/kernels.fatbin", "--peers"]
    assert made["bench deepep"].command[-1] == asked
    assert _argument(_made(parts, {"bench": "x"})["bench api cuda worker"], "--peers") == ""

    peers = parts.machine.peers
    assert peers(asked) == {}, "one GPU has no peers"
    monkeypatch.setattr(parts.machine, "num_gpus", lambda: 2)
    says = tmp_path / "says"
    says.write_text('{"peers": [{"reader": 0, "owner": 1}]}')
    assert peers(f"cat {says}") == {"peers": [{"reader": 0, "owner": 1}]}
    assert peers("") == {"no_peers": "no bench"}
    assert "cuMemAlloc" in peers("sh -c 'echo cuMemAlloc >&2; exit 1'")["no_peers"]
    assert "nothing" in peers("/nothing/here")["no_peers"]
    monkeypatch.setattr(parts.machine, "_PEERS_SECONDS", 0.5)
    assert peers("sleep 20") == {"no_peers": "not measured within 0.5 s"}
