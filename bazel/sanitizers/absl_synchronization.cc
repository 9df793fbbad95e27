// Tells ThreadSanitizer what Debian's Abseil, which is not instrumented, orders: an absl::Mutex and an
// absl::Notification, in epd's code and in gRPC's. Part of every program with --config=tsan.
//
// These functions have the names of Abseil's, so a program and its libraries call them instead; each does what its name
// says through Abseil's own.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <cstdlib>

#include "absl/synchronization/mutex.h"

namespace {

template <typename Function>
Function* Abseils(const char* name) {
  auto* found = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
  if (found == nullptr) std::abort();  // Another Abseil: its names stand below.
  return found;
}

}  // namespace

// What these libraries do to their own memory with memmove and the like, ThreadSanitizer sees; what orders it, it does
// not: Abseil's look-out for deadlocks has a spin lock of its own, gRPC queues without locks.
extern "C" const char* __tsan_default_suppressions();
const char* __tsan_default_suppressions() {
  return "called_from_lib:libabsl_graphcycles_internal.so\n"
         "called_from_lib:libgrpc.so\n";
}

// The name of the inline namespace is Debian's.
#define EPD_ABSL(name) "_ZN4absl7debian3" name
#define EPD_ABSL_CONST(name) "_ZNK4absl7debian3" name

// What the holder did is known to the next one.
#define EPD_TAKES(function, name)                            \
  extern "C" void function(void* object) __asm__(name);      \
  void function(void* object) {                              \
    static auto* const abseils = Abseils<void(void*)>(name); \
    abseils(object);                                         \
    __tsan_acquire(object);                                  \
  }
#define EPD_GIVES(function, name)                            \
  extern "C" void function(void* object) __asm__(name);      \
  void function(void* object) {                              \
    static auto* const abseils = Abseils<void(void*)>(name); \
    __tsan_release(object);                                  \
    abseils(object);                                         \
  }

EPD_TAKES(MutexLock, EPD_ABSL("5Mutex4LockEv"))
EPD_GIVES(MutexUnlock, EPD_ABSL("5Mutex6UnlockEv"))
EPD_TAKES(MutexReaderLock, EPD_ABSL("5Mutex10ReaderLockEv"))
EPD_GIVES(MutexReaderUnlock, EPD_ABSL("5Mutex12ReaderUnlockEv"))
EPD_TAKES(NotificationWait, EPD_ABSL_CONST("12Notification19WaitForNotificationEv"))
EPD_GIVES(NotificationNotify, EPD_ABSL("12Notification6NotifyEv"))

extern "C" bool MutexTryLock(void* mutex) __asm__(EPD_ABSL("5Mutex7TryLockEv"));
bool MutexTryLock(void* mutex) {
  static auto* const abseils = Abseils<bool(void*)>(EPD_ABSL("5Mutex7TryLockEv"));
  const bool taken = abseils(mutex);
  if (taken) __tsan_acquire(mutex);
  return taken;
}

// A wait gives the mutex away in between.
extern "C" void CondVarWait(void* changed,
                            void* mutex) __asm__(EPD_ABSL("7CondVar4WaitEPNS0_5MutexE"));
void CondVarWait(void* changed, void* mutex) {
  static auto* const abseils = Abseils<void(void*, void*)>(EPD_ABSL("7CondVar4WaitEPNS0_5MutexE"));
  __tsan_release(mutex);
  abseils(changed, mutex);
  __tsan_acquire(mutex);
}

// absl::Duration and absl::Time are passed in two registers.
struct Moment {
  long seconds;
  unsigned ticks;
};
extern "C" bool CondVarWaitFor(void* changed, void* mutex, Moment limit) __asm__(
    EPD_ABSL("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE"));
bool CondVarWaitFor(void* changed, void* mutex, Moment limit) {
  static auto* const abseils = Abseils<bool(void*, void*, Moment)>(
      EPD_ABSL("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE"));
  __tsan_release(mutex);
  const bool late = abseils(changed, mutex, limit);
  __tsan_acquire(mutex);
  return late;
}
extern "C" bool CondVarWaitUntil(void* changed, void* mutex, Moment limit) __asm__(
    EPD_ABSL("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE"));
bool CondVarWaitUntil(void* changed, void* mutex, Moment limit) {
  static auto* const abseils = Abseils<bool(void*, void*, Moment)>(
      EPD_ABSL("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE"));
  __tsan_release(mutex);
  const bool late = abseils(changed, mutex, limit);
  __tsan_acquire(mutex);
  return late;
}

// Looks at a condition whenever a mutex is given away, in the thread that gives it, too; whoever looks holds the mutex.
struct Awaited {
  void* mutex;
  const absl::Condition* what;

  static bool IsThere(Awaited* awaited) {
    __tsan_acquire(awaited->mutex);
    const bool there = awaited->what->Eval();
    __tsan_release(awaited->mutex);
    return there;
  }
};
extern "C" void MutexAwait(void* mutex, const absl::Condition& what) __asm__(
    EPD_ABSL("5Mutex5AwaitERKNS0_9ConditionE"));
void MutexAwait(void* mutex, const absl::Condition& what) {
  static auto* const abseils =
      Abseils<void(void*, const absl::Condition&)>(EPD_ABSL("5Mutex5AwaitERKNS0_9ConditionE"));
  Awaited awaited{mutex, &what};
  __tsan_release(mutex);
  abseils(mutex, absl::Condition(&Awaited::IsThere, &awaited));
  __tsan_acquire(mutex);
}
extern "C" bool MutexAwaitFor(void* mutex, const absl::Condition& what, Moment limit) __asm__(
    EPD_ABSL("5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE"));
bool MutexAwaitFor(void* mutex, const absl::Condition& what, Moment limit) {
  static auto* const abseils = Abseils<bool(void*, const absl::Condition&, Moment)>(
      EPD_ABSL("5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE"));
  Awaited awaited{mutex, &what};
  __tsan_release(mutex);
  const bool there = abseils(mutex, absl::Condition(&Awaited::IsThere, &awaited), limit);
  __tsan_acquire(mutex);
  return there;
}
