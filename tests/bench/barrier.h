// Where the ranks of a contender meet before each timed call. The same for all contenders: what it
// costs, and how far apart it lets the ranks start, is then in everybody's times alike.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bench_barrier bench_barrier;

// Maps the file that the driver made (fleet.py): three uint32, of which the first is the number of
// ranks and the others are 0. NULL: errno says why.
bench_barrier* bench_barrier_open(const char* path);

// Returns when all ranks are here. Sleeps on a futex: a rank that waits takes nobody's core.
void bench_barrier_wait(bench_barrier* barrier);

#ifdef __cplusplus
}
#endif
