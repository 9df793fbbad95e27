#include "tests/fakes/failing_threads.h"

#include <dlfcn.h>
#include <pthread.h>

#include <cerrno>

namespace epd::testing {

std::atomic<int> g_threads_left{-1};

}  // namespace epd::testing

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*start)(void*), void* argument) {
  using epd::testing::g_threads_left;
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const Create create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  const int left = g_threads_left.load();
  if (left == 0) return EAGAIN;
  if (left > 0) g_threads_left = left - 1;
  return create(thread, attributes, start, argument);
}
