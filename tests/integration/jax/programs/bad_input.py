"""Every argument of every public function, wrong in each way that its docstring names: the documented error, of that type,
naming the argument, got and wanted, on every rank; and the process and the group work afterwards."""

import epd.jax as ep
import jax
import moe_problem
import numpy as np
from bad_input import at_run_time, groups, layers, operations, ragged, roles
from bad_input.rows import Row, missing_rows, rows_of
from world import World

_CFG = ep.EpLayerConfig(top_k=2)


def _tables(world: World) -> dict[str, list[Row]]:
    return {
        "before": operations.before_bootstrap() + layers.before_bootstrap(),
        "bootstraps": groups.bootstraps(),
        "made": groups.made(),
        "joined": groups.joined(),
        "roles": roles.rows(),
        "places": groups.places(),
        "second": groups.second_bootstrap(),
        "tracing": operations.tracing(),
        "at run time": at_run_time.rows(),
        "ragged": ragged.rows(),
        "configurations": layers.configurations() + layers.small_functions(),
        "layers": layers.whole_layers() + layers.modules(),
    }


def _all_rows(world: World) -> list[Row]:
    return [row for table in _tables(world).values() for row in table]


class _Working:
    """A compiled exchange of the default group, and what it must return."""

    def __init__(self, world: World):
        self._world, hidden = world, world.sizes["hidden"]
        self._rows = np.arange(world.num_ranks * 2 * hidden, dtype=np.float32).reshape(-1, hidden)
        self._operands = [
            world.put(array)
            for array in (
                np.zeros((2 * world.num_ranks, 2), np.int32),
                self._rows.astype(world.sizes["dtype"]),
                np.ones((2 * world.num_ranks, 2), np.float32),
            )
        ]
        with world.context():
            self._step = jax.jit(self._layer).lower(*self._operands).compile()

    @staticmethod
    def _layer(idx, tokens, weights):
        recv, _, handle, counts, _ = ep.ep_dispatch(_CFG, idx, tokens, weights, 64)
        return ep.ep_combine(_CFG, handle, counts, recv, idx.shape[0])

    def expect(self) -> None:
        want = np.asarray(2 * self._rows, self._world.sizes["dtype"])
        self._world.expect_equal(self._step(*self._operands), want, "a healthy call afterwards")


def _run(world: World, rows: list[Row], working: _Working | None = None) -> None:
    """Runs all rows; after each the group must work, on every rank."""
    wrong = []
    for row in rows:
        if problem := row.run(world):
            wrong.append(problem)
        if working is not None:
            working.expect()
    assert not wrong, f"{len(wrong)} of {len(rows)} rows:\n" + "\n".join(wrong)
    print(f"{len(rows)} rows", flush=True)


def check_every_public_function_and_argument_has_a_row(world: World):
    rows = _all_rows(world)
    assert not (missing := missing_rows(rows)), "\n".join(missing)
    print(f"{len(rows)} rows in all", flush=True)


def check_a_missing_row_is_noticed(world: World):
    """Without the rows of one argument, and with a row of one that does not exist."""
    rows = _all_rows(world)
    less = [r for r in rows if (r.function, r.argument) != ("ep_combine", "num_local_tokens")]
    assert missing_rows(less) == ["ep_combine(num_local_tokens) has no row"]
    more = rows + rows_of("ep_combine", ("tokens", "any", lambda _: None, ValueError))
    assert missing_rows(more) == ["a row for ep_combine(tokens), which does not exist"]


def check_a_row_that_does_not_hold_is_noticed(world: World):
    """No error, another type, and a text that is missing."""

    def fails(_):
        raise ValueError("is 3")

    for call, kind, text in (
        (lambda _: None, ValueError, "no error"),
        (fails, TypeError, "ValueError: is 3"),
        (fails, ValueError, "not in"),
    ):
        (row,) = rows_of("f", ("a", "wrong", call, kind, "is 4"))
        assert text in row.run(world), row.run(world)


def check_without_a_default_group(world: World):
    ep.ep_finalize()
    world.sizes = {}
    tables = _tables(world)
    _run(world, tables["before"] + tables["bootstraps"])
    world.bootstrap()
    _Working(world).expect()


def check_groups(world: World):
    operations.bootstrap(world)
    tables = _tables(world)
    rows = tables["made"] + tables["roles"] + tables["places"] + tables["second"]
    if jax.process_count() == world.num_ranks:
        rows += tables["joined"]
    _run(world, rows, _Working(world))


def check_operations_while_tracing(world: World):
    operations.bootstrap(world)
    _run(world, _tables(world)["tracing"] + _tables(world)["ragged"], _Working(world))


def check_operations_at_run_time(world: World):
    at_run_time.bootstrap(world)
    _run(world, _tables(world)["at run time"], _Working(world))


def check_layers(world: World):
    moe_problem.bootstrap(world)
    tables = _tables(world)
    _run(world, tables["configurations"] + tables["layers"], _Working(world))
    with world.context():
        moe_problem.expect_dense(world, moe_problem.config_of({}))
