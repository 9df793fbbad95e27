#include "tests/fakes/failing_memory.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace epd::testing {

thread_local int64_t t_allocations_left = -1;

}  // namespace epd::testing

// Not inlined: the compiler would take malloc for another allocator's.
[[gnu::noinline]] void* operator new(size_t size) {
  using epd::testing::t_allocations_left;
  if (t_allocations_left >= 0 && t_allocations_left-- == 0) throw std::bad_alloc();
  void* const memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { operator delete(memory); }
