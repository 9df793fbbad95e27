"""The benchmark's result as JSON and as a table for people."""

import dataclasses
import datetime
import os
import pathlib
import platform
import subprocess

import contenders as who
import problem as problems
from measure import Cell

_ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class SizeResult:
    sizes: problems.Sizes
    cells: list[Cell]
    interleaved: bool
    daemon_memory: dict[str, int]

    def cell(self, contender: who.Contender, operation: str) -> Cell | None:
        found = (c for c in self.cells if (c.contender, c.operation) == (contender.name, operation))
        return next(found, None)

    def milliseconds(self, contender: who.Contender, operation: str) -> float | None:
        cell = self.cell(contender, operation)
        return cell.percentile_ms(50) if cell else None

    def best_mpi(self, operation: str) -> who.Contender | None:
        """The fastest of those that took part."""
        times = {mpi: self.milliseconds(mpi, operation) for mpi in who.MPIS}
        took_part = {mpi: ms for mpi, ms in times.items() if ms is not None}
        return min(took_part, key=took_part.__getitem__) if took_part else None

    def ratios(self, operation: str) -> dict[str, float]:
        """How many times as fast: "epd_jax/gloo": 3 means that epd.jax takes a third of gloo's time."""
        memcpy = self.milliseconds(who.MEMCPY, "warm")
        fresh = self.milliseconds(who.MEMCPY, "fresh")
        result = {}
        for ours in (who.EPD_JAX, who.EPD_C):
            mine = self.milliseconds(ours, operation)
            others = {"memcpy": memcpy, "memcpy_fresh": fresh}
            others |= {c.name: self.milliseconds(c, operation) for c in (who.GLOO, *who.MPIS)}
            if best := self.best_mpi(operation):
                others["mpi"] = self.milliseconds(best, operation)
            if mine:
                result |= {f"{ours.name}/{n}": ms / mine for n, ms in others.items() if ms}
        if mine := self.milliseconds(who.EPD_TORCH, operation):
            for other in (who.EPD_C, who.TORCH_GLOO):
                if ms := self.milliseconds(other, operation):
                    result[f"epd_torch/{other.name}"] = ms / mine
        return result


def machine() -> dict[str, object]:
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory,
        "kernel": platform.release(),
        "load_average_at_start": os.getloadavg()[0],
    }


def commit() -> str:
    """The commit, with "+changes" if the working tree differs from it."""
    git = ["git", "-C", str(_ROOT)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode != 0:
        return "unknown"
    changed = subprocess.run(
        [*git, "status", "--porcelain"], capture_output=True, text=True, check=False
    )
    return head.stdout.strip() + ("+changes" if changed.stdout.strip() else "")


def date() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def to_json(result: SizeResult) -> dict[str, object]:
    payload = result.sizes.payload_bytes
    cells = [
        {
            "contender": cell.contender,
            "operation": cell.operation,
            "iterations": len(cell.times_ns),
            "p50_ms": cell.percentile_ms(50),
            "p99_ms": cell.percentile_ms(99),
            "cpu_ms": cell.cpu_ms(),
            "payload_gb_per_s": payload / cell.percentile_ms(50) / 1e6,
        }
        for cell in result.cells
    ]
    return {
        **dataclasses.asdict(result.sizes),
        "num_experts": result.sizes.num_experts,
        "recv_capacity": result.sizes.recv_capacity,
        "payload_bytes": payload,
        "interleaved": result.interleaved,
        "cells": cells,
        "times_as_fast": {op: result.ratios(op) for op in ("dispatch", "combine")},
        "daemon_memory": result.daemon_memory,
    }


def progress(done: int, total: int, seconds: float, most: float) -> str:
    """How far a run is that has measured `done` of `total` sizes in `seconds`, and may take `most` more."""
    left = min(seconds / done * (total - done), max(most, 0))
    return f"{done} of {total} sizes, about {left:.0f} s left for these"


def _milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _times(result: SizeResult, contender: who.Contender, operation: str) -> str:
    cell = result.cell(contender, operation)
    if cell is None:
        return "-"
    return f"{_milliseconds(cell.percentile_ms(50))} / {_milliseconds(cell.percentile_ms(99))}"


def _best_mpi(result: SizeResult, operation: str) -> str:
    """Its times, with its name where it is not Debian's."""
    best = result.best_mpi(operation)
    if best is None:
        return "-"
    name = "" if best is who.OMPI else f" {best.label}"
    return _times(result, best, operation) + name


def _ratio(ratios: dict[str, float], name: str) -> str:
    return f"{ratios[name]:.2f}" if name in ratios else "-"


_HEADER = [
    *("tokens x hidden", "operation", "payload", "epd.jax", "C API", "gloo", "best MPI", "memcpy"),
    *("fresh", "jax:gloo", "jax:memcpy", "jax:fresh", "C:MPI", "C:memcpy"),
    *("epd.torch", "torch gloo", "torch:C", "torch:gloo"),
]


def _row(result: SizeResult, operation: str) -> list[str]:
    ratios = result.ratios(operation)
    return [
        result.sizes.name + ("" if result.interleaved else " *"),
        operation,
        f"{result.sizes.payload_bytes / 1e6:.1f} MB",
        *(_times(result, c, operation) for c in (who.EPD_JAX, who.EPD_C, who.GLOO)),
        _best_mpi(result, operation),
        *(_milliseconds(result.milliseconds(who.MEMCPY, kind)) for kind in ("warm", "fresh")),
        _ratio(ratios, "epd_jax/gloo"),
        _ratio(ratios, "epd_jax/memcpy"),
        _ratio(ratios, "epd_jax/memcpy_fresh"),
        _ratio(ratios, "epd_c/mpi"),
        _ratio(ratios, "epd_c/memcpy"),
        *(_times(result, c, operation) for c in (who.EPD_TORCH, who.TORCH_GLOO)),
        _ratio(ratios, "epd_torch/epd_c"),
        _ratio(ratios, "epd_torch/torch_gloo"),
    ]


def _own_row(result: SizeResult, operation: str) -> list[str]:
    """Of what only epd does."""
    times = [_times(result, c, operation) for c in (who.EPD_JAX, who.EPD_C)]
    return [result.sizes.name, operation, "", *times, *[""] * (len(_HEADER) - 5)]


def cpu_table(results: list[SizeResult]) -> str:
    """Markdown: CPU time of one operation, of all ranks and of what serves them."""
    took_part = [c for c in who.ALL if any(result.cell(c, "combine") for result in results)]
    rows = []
    for result in results:
        for operation in ("dispatch", "combine"):
            cells = [result.cell(contender, operation) for contender in took_part]
            times = [_milliseconds(cell.cpu_ms()) if cell else "-" for cell in cells]
            rows.append([result.sizes.name, operation, *times])
    header = ["tokens x hidden", "operation", *(contender.label for contender in took_part)]
    note = "CPU time of one operation in ms: all ranks, with epd and its worker where they serve.\n"
    return _markdown(header, rows) + "\n\n" + note


def table(results: list[SizeResult]) -> str:
    """Markdown, also readable as it is. Times are "p50 / p99" in milliseconds."""
    rows = []
    for result in results:
        rows += [_row(result, "dispatch"), _row(result, "combine")]
        rows += [_own_row(result, "prepare"), _own_row(result, "nothing")]
    note = "Times: p50 / p99 in ms, slowest rank. Ratios: how many times as fast. nothing: a jitted call without an exchange.\n"
    if any(not result.interleaved for result in results):
        note += "*: too large to hold all contenders at once, so they ran one after the other.\n"
    return _markdown(_HEADER, rows) + "\n\n" + note


def _markdown(header: list[str], rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: list[str]) -> str:
        # The first two columns are words, the others numbers.
        padded = [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * width if i < 2 else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    return "\n".join([line(header), line(rule), *map(line, rows)])
