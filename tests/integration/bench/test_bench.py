"""Goal: the benchmark's reference is right, its check finds a single wrong bit, and its ratios say what they claim.

Nothing is timed here.
"""

import dataclasses
import pathlib
import sys

import numpy as np
import pytest

_BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(_BENCH))

import contenders as who  # noqa: E402 - the benchmark's modules are programs, not a package.
import gloo_jax  # noqa: E402
import marks as size_marks  # noqa: E402
import problem as problems  # noqa: E402
import report  # noqa: E402
import training_step  # noqa: E402
import watched  # noqa: E402
from measure import Cell  # noqa: E402

_SIZES = problems.Sizes(num_ranks=3, num_tokens=7, hidden=5, top_k=4)


@pytest.fixture
def problem(tmp_path):
    return problems.Problem.write(tmp_path, _SIZES, seed=3)


def _routes_in_slot_order(problem, rank):
    """(expert, source, token, k) of each slot of `rank`, the slow way."""
    sizes = problem.sizes
    local = range(rank * 8, rank * 8 + 8)
    return [
        (expert, source, token, k)
        for expert in local
        for source in range(sizes.num_ranks)
        for token in range(sizes.num_tokens)
        for k in range(sizes.top_k)
        if problem.routing[source, token, k] == expert
    ]


def test_routing_is_distinct_and_within_capacity(problem):
    for row in problem.routing.reshape(-1, _SIZES.top_k):
        assert len(set(row)) == _SIZES.top_k
    for rank in range(_SIZES.num_ranks):
        assert len(problem.received(rank)) <= _SIZES.recv_capacity


def test_dispatched_rows_stand_by_expert_source_token_and_k(problem):
    for rank in range(_SIZES.num_ranks):
        routes = _routes_in_slot_order(problem, rank)
        rows, scaled = problem.dispatched(rank), problem.dispatched(rank, scaled=True)
        for slot, (expert, source, token, _) in enumerate(routes):
            expected = problem.tokens(source)[token]
            assert np.array_equal(rows[slot], expected)
            scale = np.float32(1 + expert % 8 / 8)
            product = (expected.astype(np.float32) * scale).astype(problems.BF16)
            assert np.array_equal(scaled[slot], product)
        assert not rows[len(routes) :].any()


def test_combine_sums_what_came_from_the_tokens_own_slots(problem):
    slots = {
        (source, token, k): problem.dispatched(rank, scaled=True)[slot]
        for rank in range(_SIZES.num_ranks)
        for slot, (_, source, token, k) in enumerate(_routes_in_slot_order(problem, rank))
    }
    for rank in range(_SIZES.num_ranks):
        combined = problem.combined(rank)
        for token in range(_SIZES.num_tokens):
            total = np.full(_SIZES.hidden, -0.0, np.float32)
            for k in range(_SIZES.top_k):
                total += slots[rank, token, k].astype(np.float32)
            assert np.array_equal(combined[token], total.astype(problems.BF16))


def test_the_check_finds_one_wrong_bit(problem):
    expected = problem.dispatched(0)
    got = expected.copy()
    assert problems.differences(got, expected, None) == ""
    got.view(np.uint16)[2, 3] ^= 1
    assert "first at row 2 column 3" in problems.differences(got, expected, None)
    assert problems.differences(got, expected, 2**-7) == ""
    got[2, 3] += 1
    assert problems.differences(got, expected, 2**-7) != ""
    assert "shape" in problems.differences(got[1:], expected, None)


def test_the_plan_for_gloo_moves_every_row_there_and_back(problem):
    plans = [gloo_jax.make_plan(problem, rank) for rank in range(_SIZES.num_ranks)]
    for rank, plan in enumerate(plans):
        there = np.concatenate([problem.tokens(s)[p.send[rank]] for s, p in enumerate(plans)])
        padded = np.concatenate([there, np.zeros((1, _SIZES.hidden), problems.BF16)])
        assert np.array_equal(padded[plan.recv], problem.dispatched(rank))
        back = np.concatenate(
            [problem.dispatched(s, scaled=True)[p.back[rank]] for s, p in enumerate(plans)]
        )
        total = np.full((_SIZES.num_tokens, _SIZES.hidden), -0.0, np.float32)
        for k in range(_SIZES.top_k):
            total += back[plan.home[:, k]].astype(np.float32)
        assert np.array_equal(total.astype(problems.BF16), problem.combined(rank))


def test_ratios_say_how_many_times_as_fast():
    cells = [
        Cell(who.EPD_JAX.name, "dispatch", [2_000_000]),
        Cell(who.GLOO.name, "dispatch", [8_000_000]),
        Cell(who.MEMCPY.name, "warm", [1_000_000]),
    ]
    result = report.SizeResult(_SIZES, cells, interleaved=True, daemon_memory={})
    assert result.ratios("dispatch") == {"epd_jax/gloo": 4, "epd_jax/memcpy": 0.5}
    assert "4.00" in report.table([result]) and "0.50" in report.table([result])


def test_the_best_mpi_is_the_one_compared_with():
    cells = [
        Cell(who.EPD_C.name, "combine", [2_000_000, 2_000_000], cpu_seconds=0.012),
        Cell(who.OMPI.name, "combine", [8_000_000], cpu_seconds=0.031),
        Cell(who.MPICH.name, "combine", [5_000_000], cpu_seconds=0.019),
    ]
    result = report.SizeResult(_SIZES, cells, interleaved=True, daemon_memory={})
    assert result.best_mpi("combine") is who.MPICH
    assert result.best_mpi("dispatch") is None
    ratios = result.ratios("combine")
    assert (ratios["epd_c/ompi"], ratios["epd_c/mpich"], ratios["epd_c/mpi"]) == (4, 2.5, 2.5)
    assert "5.00 / 5.00 MPICH 5" in report.table([result])
    # Of one operation, while a cell holds that of all of them.
    assert report.to_json(result)["cells"][0]["cpu_ms"] == 6
    cpu = report.cpu_table([result])
    assert "6.00" in cpu and "31.00" in cpu and "19.00" in cpu


def test_progress_is_estimated_from_what_was_measured_within_the_budget():
    assert report.progress(2, 6, 30, 600) == "2 of 6 sizes, about 60 s left for these"
    assert report.progress(2, 6, 30, 10) == "2 of 6 sizes, about 10 s left for these"
    assert report.progress(6, 6, 30, -5) == "6 of 6 sizes, about 0 s left for these"


def test_sizes_are_judged_against_the_best_mpi_and_tails_where_each_rank_has_a_core():
    def cells(p50_us):
        # 9 of 10 calls take p50_us[name], the others four times that.
        return [
            Cell(name, operation, 9 * [us * 1000] + [us * 4000])
            for name, us in p50_us.items()
            for operation in ("dispatch", "combine")
        ]

    def of(shape, **p50_us):
        return report.SizeResult(problems.Sizes.parse(shape), cells(p50_us), True, {})

    small = of("2x8x2048x4", epd_c=20, epd_jax=90, ompi=50, openmpi=19)
    large = of("4x512x2048x4", epd_c=100, ompi=260)
    other = of("4x64x2048x4", epd_c=100, ompi=260)
    lines = size_marks.lines([small, large, other], cores=2)
    assert [line for line in lines if "combine" in line] == [
        "MISSED: 8 x 2048 top-4, 2 ranks, combine: C API at least 1.0 x the best MPI (Open MPI 5): 0.95",
        "reached: 8 x 2048 top-4, 2 ranks, combine: epd.jax at most 100 us: 90",
        "reached: 512 x 2048 top-4, 4 ranks, combine: C API at least 2.5 x the best MPI (Open MPI): 2.60",
    ]
    two, four = (line for line in lines if "p99" in line)
    assert two.startswith("MISSED: 2 ranks, 2 cores:") and ": 0 of 2, 3.7 to 3.7," in two
    assert four.startswith("not judged: 4 ranks, 2 cores:") and four.endswith("Open MPI 3.7")
    calm = report.SizeResult(small.sizes, [Cell("epd_c", "combine", 10 * [1000])], True, {})
    assert size_marks.lines([calm], cores=2)[-1].startswith("reached: 2 ranks")


def test_what_a_training_step_exposes_is_judged_by_ranks_a_core():
    def step(num_ranks, tokens, epd_ms):
        sizes = problems.Sizes(num_ranks, tokens, 1024, 4)
        times = {"epd": epd_ms, "gloo": 20.0, "none": 10.0}
        return training_step.Step(sizes, times, times)

    steps = [step(2, 512, 10.4), step(2, 64, 10.9), step(4, 8, 13.9), step(6, 8, 11.0)]
    assert steps[1].exposed("gloo") == 1
    marks = training_step.TrainingSteps(steps, cores=2).marks()
    assert [mark.split(":")[0] for mark in marks] == ["reached", "MISSED", "reached", "not judged"]
    assert marks[1].endswith("exposed at most 8%: 9%")
    assert marks[3].endswith("exposed: 10%, with 2 cores")


def test_what_watching_costs_is_judged_by_time_or_by_cpu_where_not_every_process_has_a_core():
    times = {"alone_ms": 1.0, "scraped_ms": 1.04, "page_ms": 1.0, "traced_ms": 1.01}
    spent = {"epd_us": (0.2, 0.6, 0.4, 20.2, 45.2), "turn_us": 5 * (1000.0,)}
    sizes = problems.Sizes.parse("4x8x2048x4")
    many = watched.Watched(sizes, **times, exported_ms=1.03, cores=16, **spent)
    assert [line.partition(":")[0] for line in many.marks()] == ["reached", "reached", "MISSED"]
    assert "MISSED" in dataclasses.replace(many, scraped_ms=1.06).marks()[0]
    few = dataclasses.replace(many, cores=2, scraped_ms=3.0, traced_ms=1.5)
    assert [line.partition(":")[0] for line in few.marks()] == ["reached", "reached", "MISSED"]
    assert ": 1.0% of the CPU time of 2 cores" in few.marks()[1]
    assert (
        "| all traces to a collector (otlp_endpoint) | 1.0300 | 1.03 | 45.2 | 2.2% |" in few.table()
    )
