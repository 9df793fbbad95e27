/* Loaded before the C library (LD_PRELOAD): who asks the kernel for pages, by fallocate() or MADV_POPULATE_WRITE, does not get an
 * answer while the file EPD_TEST_HANG is there, as on a file system that hangs. A thread that it holds makes
 * EPD_TEST_HANG.reached. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void hang(void) {
  const char* file = getenv("EPD_TEST_HANG");
  if (file == NULL || access(file, F_OK) != 0) return;
  char reached[4096];
  snprintf(reached, sizeof reached, "%s.reached", file);
  close(open(reached, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  while (access(file, F_OK) == 0) usleep(10000);
}

int fallocate(int fd, int mode, off_t offset, off_t length) {
  hang();
  return (int)syscall(SYS_fallocate, fd, mode, offset, length);
}

int madvise(void* start, size_t length, int advice) {
  if (advice == MADV_POPULATE_WRITE) hang();
  return (int)syscall(SYS_madvise, start, length, advice);
}
