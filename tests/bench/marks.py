"""What the sizes on one node ought to reach, and whether they did."""

import statistics

import contenders as who
import report

OPERATIONS = ("dispatch", "combine")

# By (tokens, hidden, top_k), for any number of ranks: how many times as fast as the best MPI the C API is at least.
_BEST_MPI = {(8, 2048, 4): 1.0, (512, 2048, 4): 2.5, (64, 7168, 8): 2.5}
# By ranks: what a call of epd.jax with 8 tokens takes at most, in us.
_JAX_MICROSECONDS = {2: 100, 4: 150}
_MOST_P99 = 3


def lines(results: list[report.SizeResult], cores: int) -> list[str]:
    found = []
    for result in results:
        for operation in OPERATIONS:
            found += _first(result, operation)
            found += _against_mpi(result, operation)
            found += _jax_calls(result, operation)
    return found + _tails(results, cores)


def _mark(text: str, value: float, least: float) -> str:
    return f"{'reached' if value >= least else 'MISSED'}: {text}: {value:.2f}"


def _first(result: report.SizeResult, operation: str) -> list[str]:
    """The first marks of the project, of four ranks."""
    sizes = result.sizes
    if (sizes.num_ranks, sizes.hidden, sizes.top_k) != (4, 2048, 4):
        return []
    if sizes.num_tokens == 512:
        wanted = {
            "epd_torch/epd_c": ("epd.torch at least 0.83 of the C API", 1 / 1.2),
            "epd_jax/gloo": ("at least 3 x gloo", 3),
            "epd_jax/memcpy": ("at least 0.3 of memcpy", 0.3),
        }
    elif sizes.num_tokens == 8:
        wanted = {"epd_jax/gloo": ("at least 4 x gloo", 4)}
    else:
        return []
    ratios = result.ratios(operation)
    return [
        _mark(f"{operation}, {sizes.num_tokens} tokens: {text}", ratios[name], least)
        for name, (text, least) in wanted.items()
        if name in ratios
    ]


def _against_mpi(result: report.SizeResult, operation: str) -> list[str]:
    sizes = result.sizes
    least = _BEST_MPI.get((sizes.num_tokens, sizes.hidden, sizes.top_k))
    ratio = result.ratios(operation).get("epd_c/mpi")
    best = result.best_mpi(operation)
    if least is None or ratio is None or best is None:
        return []
    text = f"{sizes.name}, {operation}: C API at least {least} x the best MPI ({best.label})"
    return [_mark(text, ratio, least)]


def _jax_calls(result: report.SizeResult, operation: str) -> list[str]:
    sizes = result.sizes
    if (sizes.num_tokens, sizes.hidden, sizes.top_k) != (8, 2048, 4):
        return []
    most = _JAX_MICROSECONDS.get(sizes.num_ranks)
    ms = result.milliseconds(who.EPD_JAX, operation)
    if most is None or ms is None:
        return []
    word = "reached" if ms * 1e3 <= most else "MISSED"
    return [f"{word}: {sizes.name}, {operation}: epd.jax at most {most} us: {ms * 1e3:.0f}"]


def _tails(results: list[report.SizeResult], cores: int) -> list[str]:
    """p99 over p50 where each rank has a core; that of others is told and not judged."""
    found = []
    for num_ranks in sorted({result.sizes.num_ranks for result in results}):
        of = {}
        for contender in (who.EPD_C, who.EPD_JAX, *who.MPIS, who.GLOO):
            cells = [
                cell
                for result in results
                if result.sizes.num_ranks == num_ranks
                for operation in OPERATIONS
                if (cell := result.cell(contender, operation))
            ]
            if cells:
                of[contender] = [cell.percentile_ms(99) / cell.percentile_ms(50) for cell in cells]
        mine = of.pop(who.EPD_C, None)
        if mine is None:
            continue
        word = "reached" if max(mine) <= _MOST_P99 else "MISSED"
        if num_ranks > cores:
            word = "not judged"
        within = sum(ratio <= _MOST_P99 for ratio in mine)
        others = "; ".join(f"{c.label} {statistics.median(r):.1f}" for c, r in of.items())
        found.append(
            f"{word}: {num_ranks} ranks, {cores} cores: p99 of the C API at most {_MOST_P99} times p50:"
            f" {within} of {len(mine)}, {min(mine):.1f} to {max(mine):.1f}, median"
            f" {statistics.median(mine):.1f}; medians of others: {others or 'none took part'}"
        )
    return found
