// Goal: what the custom call of T4 needs is made by its init, before anything can be captured; the call itself puts operations
// into XLA's stream and nothing else, and is an error where the init was not called.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/words.h"
#include "tests/unit/client/jax/call_frame.h"
#include "xla/ffi/api/c_api.h"

extern "C" XLA_FFI_Error* EpdMemopCall(XLA_FFI_CallFrame*);
extern "C" const char* EpdMemopInit();
extern "C" std::int64_t EpdMemopCalls();
extern "C" std::int64_t EpdMemopAnswers();

namespace epd::gpu {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string>& Calls() {
  static std::vector<std::string> calls;
  return calls;
}

CUresult Note(const char* call) {
  Calls().push_back(call);
  return CUDA_SUCCESS;
}

CUresult Do(const CUstreamBatchMemOpParams& operation) {
  const auto address = operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32
                           ? operation.waitValue.address
                           : operation.writeValue.address;
  auto& word = *reinterpret_cast<std::atomic<std::uint32_t>*>(address);
  if (operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32) word = operation.writeValue.value;
  while (operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 && word < operation.waitValue.value)
    std::this_thread::yield();
  return CUDA_SUCCESS;
}

}  // namespace

// In the place of driver.cc's: a driver whose streams do at once what they are given.
bool OpenDriver(Driver* driver, std::string*) {
  driver->GetErrorName = [](CUresult, const char** name) {
    *name = "CUDA_ERROR_OF_THE_TEST";
    return CUDA_SUCCESS;
  };
  driver->DevicePrimaryCtxRetain = [](CUcontext*, CUdevice) { return Note("retain"); };
  driver->CtxSetCurrent = [](CUcontext) { return Note("set current"); };
  driver->MemHostRegister = [](void*, std::size_t, unsigned) { return Note("register"); };
  driver->MemHostGetDevicePointer = [](CUdeviceptr* on_device, void* memory, unsigned) {
    *on_device = reinterpret_cast<CUdeviceptr>(memory);
    return Note("get device pointer");
  };
  driver->StreamBatchMemOp = [](CUstream, unsigned count, CUstreamBatchMemOpParams* operations,
                                unsigned) {
    for (unsigned i = 0; i < count; ++i) Do(operations[i]);
    return Note("batch");
  };
  driver->MemcpyDtoDAsync = [](CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream) {
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    return Note("copy");
  };
  return true;
}

namespace {

TEST(MemopCall, RegistersItsWordsInItsInitAndPutsTheRestIntoTheStream) {
  jax::FakeSite site(nullptr, nullptr, &EpdMemopCall);
  float in[4] = {1, 2, 3, 4};
  float out[4] = {};
  site.Operand(XLA_FFI_DataType_F32, in, {4});
  site.Result(XLA_FFI_DataType_F32, out, {4});
  EXPECT_THAT(site.Execute(0, nullptr).message, HasSubstr("EpdMemopInit was not called"));
  EXPECT_THAT(Calls(), IsEmpty());

  EXPECT_EQ(EpdMemopInit(), nullptr);
  EXPECT_THAT(Calls(), ElementsAre("retain", "set current", "register", "get device pointer"));
  Calls().clear();

  for (int n = 1; n <= 3; ++n) {
    in[0] = static_cast<float>(n);
    const jax::Outcome put = site.Execute(0, nullptr);
    EXPECT_TRUE(put.ok()) << put.message;
    EXPECT_THAT(out, ElementsAre(n, 2, 3, 4));
    EXPECT_EQ(EpdMemopCalls(), n);
    EXPECT_EQ(EpdMemopAnswers(), n);
    EXPECT_THAT(Calls(), ElementsAre("batch", "copy")) << "which may be captured";
    Calls().clear();
  }
}

TEST(MemopCall, MayBeInACommandBuffer) {
  EXPECT_TRUE(jax::FakeSite::TraitsOf(&EpdMemopCall) &
              XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE);
}

}  // namespace
}  // namespace epd::gpu
