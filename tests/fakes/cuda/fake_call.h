// How the fake driver's calls are written down.
#pragma once

#include <mutex>

#include "tests/fakes/cuda/fake_driver.h"

// Fills `table_.field` and the symbol with a plain function that finds the driver by Get(), records
// the call, checks its rules and then does the rest of the arguments.
#define EPD_FAKE_CALL(field, symbol, rules, parameters, ...)                       \
  table_.field = +[] parameters -> Result {                                        \
    FakeDriver& d = Get();                                                         \
    std::lock_guard lock(d.mutex_);                                                \
    if (const Result code = d.Enter(symbol, rules); code != kSuccess) return code; \
    __VA_ARGS__                                                                    \
  };                                                                               \
  symbols_[symbol] = reinterpret_cast<void*>(table_.field)
