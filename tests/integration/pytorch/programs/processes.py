"""Beside a group: forked children, data loaders, threads that run while one waits, a rank that is late, Ctrl-C."""

import asyncio
import os
import signal
import threading
import time

import torch
from epd.torch import EpError
from torch.utils.data import DataLoader, Dataset
from torch_problem import TOP_K, World, assert_close, dense, exchanged, main, problem


class _Squares(Dataset):
    """``group``: which the workers must not use."""

    def __init__(self, group):
        self._group = group

    def __len__(self):
        return 8

    def __getitem__(self, index):
        assert os.getpid() != _PARENT
        try:
            self._group.prepare(torch.zeros(1, TOP_K, dtype=torch.int64))
        except EpError as error:
            assert error.code == "FAILED_PRECONDITION" and "make it (Group)" in str(error), error
        else:
            raise AssertionError("a forked child has its parent's group")
        return index * index


_PARENT = os.getpid()


def check_workers_of_a_data_loader_have_no_group_and_disturb_none(world):
    given = problem(world)
    with world.join("loader") as group:
        for _ in range(2):
            batches = []
            for batch in DataLoader(_Squares(group), batch_size=4, num_workers=2):
                batches += batch.tolist()
                assert_close(exchanged(group, given), dense(given), "between batches")
            assert batches == [n * n for n in range(8)]


def check_a_forked_child_may_join_groups_of_its_own(world):
    given = problem(world)
    with world.join("parents") as group:
        child = os.fork()
        if child == 0:
            try:
                with world.join("children") as own:
                    assert_close(exchanged(own, given), dense(given), "child")
                os._exit(0)
            finally:
                os._exit(1)
        assert_close(exchanged(group, given), dense(given), "parent")
        assert os.waitpid(child, 0)[1] == 0
        assert_close(exchanged(group, given), dense(given), "parent")


def check_other_threads_run_while_one_waits(world):
    given = problem(world)
    with world.join("gil") as group:
        ticks, done = [], threading.Event()
        thread = threading.Thread(
            target=lambda: [ticks.append(done.wait(0.01)) for _ in range(40) if not done.is_set()]
        )
        if world.rank == 0:
            thread.start()
        else:
            time.sleep(0.5)
        exchanged(group, given)
        done.set()
        if world.rank == 0:
            thread.join()
            assert len(ticks) >= 5, len(ticks)


def check_two_calls_at_once_without_a_name_are_refused(world):
    given = problem(world)
    with world.join("at-once") as group:
        failures = []

        def prepare():
            try:
                group.prepare(given.idx)
            except EpError as error:
                failures.append(error)

        if world.rank == 0:
            threads = [threading.Thread(target=prepare) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        else:
            time.sleep(0.5)
            for _ in range(2):
                prepare()
        assert [error.code for error in failures] == ["FAILED_PRECONDITION"], failures
        assert "one thread" in str(failures[0])
        assert_close(exchanged(group, given), dense(given), "the next call")


def _interrupted_in_loop(wait):
    async def in_loop():
        wait()

    asyncio.run(in_loop())


def _interrupted_in_cell(wait):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # As a notebook does between its cells.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    wait()


def check_ctrl_c_ends_a_wait(world):
    for run in (lambda wait: wait(), _interrupted_in_cell, _interrupted_in_loop):
        _expect_interrupt(world, run)


def _expect_interrupt(world, run):
    given = problem(world)
    with world.join("interrupted") as group:
        if world.rank == 0:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            began = time.monotonic()
            try:
                run(lambda: group.prepare(given.idx))
                raise AssertionError("it was not interrupted")
            except KeyboardInterrupt:
                pass
            assert time.monotonic() - began < 2
            time.sleep(0.1)
        else:
            time.sleep(1.5)
        for _ in range(20):
            try:
                assert_close(exchanged(group, given), dense(given), "the next call")
                return
            except EpError as error:
                assert error.retry == "call again", error
        raise AssertionError("the ranks did not meet again")


def check_a_late_rank_is_named(world):
    given = problem(world)
    os.environ["EPD_ABSENT_TIMEOUT"], before = "2", os.environ["EPD_ABSENT_TIMEOUT"]
    with world.join("late") as group:
        os.environ["EPD_ABSENT_TIMEOUT"] = before
        if world.rank == 0:
            world.wait_for("rank 1 has failed")
        try:
            exchanged(group, given)
            raise AssertionError("nobody was late")
        except EpError as error:
            assert (error.code, error.retry) == ("DEADLINE_EXCEEDED", "call again"), error
            assert "rank=0" in str(error) and "absent" in str(error), error
        world.tell(f"rank {world.rank} has failed")
        world.wait_for("rank 0 has failed")
        assert_close(exchanged(group, given), dense(given), "the next call")


if __name__ == "__main__":
    assert World
    main(dict(globals()))
