/* Loaded before the C library (LD_PRELOAD): fallocate() does not return while the file EPD_TEST_HANG is there, as on a file
 * system that hangs. A thread that it holds makes EPD_TEST_HANG.reached. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int fallocate(int fd, int mode, off_t offset, off_t length) {
  const char* file = getenv("EPD_TEST_HANG");
  if (file != NULL && access(file, F_OK) == 0) {
    char reached[4096];
    snprintf(reached, sizeof reached, "%s.reached", file);
    close(open(reached, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    while (access(file, F_OK) == 0) usleep(10000);
  }
  return (int)syscall(SYS_fallocate, fd, mode, offset, length);
}
