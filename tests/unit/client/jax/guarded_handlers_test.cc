// Goal: no exception leaves a handler, for XLA would end the process: what memory is short for is the call's error, and those that
// come after it are as before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "client/jax/call_site.h"
#include "tests/fakes/failing_memory.h"
#include "tests/unit/client/jax/call_frame.h"

#define EPD_TEST_HANDLER(name) extern "C" XLA_FFI_Error* name(XLA_FFI_CallFrame*)
EPD_TEST_HANDLER(epd_jax_dispatch_instantiate);
EPD_TEST_HANDLER(epd_jax_dispatch_start);
EPD_TEST_HANDLER(epd_jax_cuda_initialize);
EPD_TEST_HANDLER(epd_jax_cuda_dispatch);

namespace epd::jax {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kResourceExhausted = 8;

int64_t g_allocations = -1;  // Of the next call of a handler, until one fails.
bool g_failed = false;

// Only what the handler allocates is counted, and nothing of the runtime that calls it.
template <Handler* handler>
XLA_FFI_Error* Limited(XLA_FFI_CallFrame* frame) {
  testing::t_allocations_left = g_allocations;
  XLA_FFI_Error* const error = handler(frame);
  g_failed = g_allocations >= 0 && testing::t_allocations_left < 0;
  testing::t_allocations_left = -1;
  return error;
}

class GuardedHandlersTest : public ::testing::Test {
 protected:
  ~GuardedHandlersTest() override { g_allocations = testing::t_allocations_left = -1; }

  std::unique_ptr<FakeSite> Site(Handler* execute) {
    auto site = std::make_unique<FakeSite>(&Limited<epd_jax_dispatch_instantiate>,
                                           &Limited<epd_jax_cuda_initialize>, execute);
    for (const char* text : {"alias", "name", "program", "scope"})
      site->Attribute(text,
                      "a text that is too long to lie in the string itself: " + std::string(text));
    for (const char* number :
         {"by_rank", "ranks", "experts", "local_experts", "owners", "max_tokens", "top_k",
          "alignment", "hidden", "width", "tokens", "shards", "capacity"})
      site->Attribute(number, int64_t{1});
    for (int32_t* place : {&domain_, &position_}) site->Operand(XLA_FFI_DataType_S32, place, {});
    site->Operand(XLA_FFI_DataType_U8, plan_, {sizeof plan_});
    site->Operand(XLA_FFI_DataType_F32, rows_, {1, 1});
    site->Operand(XLA_FFI_DataType_F32, weights_, {1});
    return site;
  }
  // Each allocation of a call fails once, until there are no more.
  template <typename Call>
  int NumThatFail(const Call& call) {
    for (int count = 0;; ++count) {
      g_allocations = count;
      const Outcome outcome = call();
      g_allocations = -1;
      if (!g_failed) return count;
      if (!outcome.ok()) {
        EXPECT_EQ(outcome.code, kResourceExhausted) << count << ": " << outcome.message;
        EXPECT_THAT(outcome.message, AnyOf(HasSubstr("out of memory"), HasSubstr("no thread")));
      }
    }
  }

  int32_t domain_ = 0;
  int32_t position_ = 0;
  uint8_t plan_[64] = {};
  float rows_[1] = {};
  float weights_[1] = {};
  float out_rows_[1] = {};
  float out_weights_[1] = {};
  float token_[2] = {};
};

TEST_F(GuardedHandlersTest, OfACallSite) {
  EXPECT_GT(NumThatFail([this] {
              EndCompile();
              return Site(nullptr)->Instantiate();
            }),
            2);
}

TEST_F(GuardedHandlersTest, OfACallInTwoHalves) {
  EndCompile();
  const std::unique_ptr<FakeSite> site = Site(&Limited<epd_jax_dispatch_start>);
  site->Result(XLA_FFI_DataType_F32, token_, {2});
  ASSERT_TRUE(site->Instantiate().ok());
  EXPECT_GT(NumThatFail([&] { return site->Execute(0, nullptr); }), 2);
}

TEST_F(GuardedHandlersTest, OfACallOnAGpu) {
  EndCompile();
  const std::unique_ptr<FakeSite> site = Site(&Limited<epd_jax_cuda_dispatch>);
  site->Result(XLA_FFI_DataType_F32, out_rows_, {1, 1});
  site->Result(XLA_FFI_DataType_F32, out_weights_, {1});
  ASSERT_TRUE(site->Instantiate().ok());
  for (const bool initializes : {true, false}) {
    const int count = NumThatFail([&] {
      const Outcome outcome = initializes ? site->Initialize(0) : site->Execute(0, nullptr);
      // Without a group it ends with an error in any case.
      return g_failed ? outcome : Outcome();
    });
    EXPECT_GT(count, 0) << initializes;
  }
}

}  // namespace
}  // namespace epd::jax
