"""A check that fails on one process: the others are told at their next barrier, not at its deadline."""

from world import World


def check_planted_failure(world: World):
    assert world.index != 1, "planted"
    world.barrier("never complete")


def check_afterwards(world: World):
    world.barrier("complete")
