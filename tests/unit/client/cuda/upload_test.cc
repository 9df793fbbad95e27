// Goal: what a group needs on its device gets there whoever has registered the pages beside it, and leaves nothing behind.
#include "client/cuda/upload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "tests/fakes/cuda/fake_driver.h"

namespace epd::client {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class UploadTest : public ::testing::Test {
 protected:
  UploadTest() {
    const cuda::DriverTable& t = driver_.table();
    EXPECT_EQ(t.init(0), cuda::kSuccess);
    EXPECT_EQ(t.primary_context_retain(&context_, 0), cuda::kSuccess);
    EXPECT_EQ(t.context_set_current(context_), cuda::kSuccess);
    EXPECT_EQ(t.memory_allocate(&device_, kBytes), cuda::kSuccess);
    std::iota(values_.begin(), values_.end(), 1);
  }
  ~UploadTest() override {
    driver_.table().memory_free(device_);
    driver_.table().primary_context_release(0);
    EXPECT_EQ(driver_.Leaks(), "");
    EXPECT_THAT(driver_.violations(), IsEmpty());
  }
  Status Send() { return Upload(driver_.table(), values_.data(), kBytes, device_); }

  static constexpr size_t kBytes = 64 * sizeof(int32_t);
  cuda::FakeDriver driver_;
  cuda::Context context_ = nullptr;
  cuda::DevicePointer device_ = 0;
  std::vector<int32_t> values_ = std::vector<int32_t>(64);
};

// Two ranks' vectors in one page of the heap, say.
TEST_F(UploadTest, ItsPagesAreItsOwn) {
  ASSERT_EQ(driver_.table().host_register(values_.data(), kBytes, 0), cuda::kSuccess);
  EXPECT_EQ(driver_.table().host_register(values_.data() + 1, sizeof(int32_t), 0), 712)
      << "the fake does as drivers do";
  const Status sent = Send();
  EXPECT_TRUE(sent.ok()) << sent.message;
  EXPECT_EQ(std::memcmp(reinterpret_cast<const void*>(device_), values_.data(), kBytes), 0);
  driver_.table().host_unregister(values_.data());
}

TEST_F(UploadTest, WhatTheDriverRefusesIsNamedAndNothingStays) {
  for (const char* call : {"cuMemHostRegister", "cuMemHostGetDevicePointer", "cuStreamCreate",
                           "cuMemcpyAsync", "cuStreamQuery"}) {
    driver_.Fail(call, 2);
    const Status sent = Send();
    EXPECT_EQ(sent.code, Code::kFailedPrecondition) << call;
    EXPECT_THAT(sent.message, HasSubstr("CUDA_ERROR")) << call;
  }
  EXPECT_TRUE(Send().ok());
}

}  // namespace
}  // namespace epd::client
