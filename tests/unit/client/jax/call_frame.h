// Runtimes of XLA's that know nothing but one call: enough of the C interface to run a handler. Two, for JAX's CPU and its CUDA
// plugin are two in one process: each with its own registry of types, and neither knows the other's.
#pragma once

#include <xla/ffi/api/c_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace epd::jax {

using Handler = XLA_FFI_Error*(XLA_FFI_CallFrame*);

struct Outcome {
  int code = 0;
  std::string message;
  bool ok() const { return code == 0; }
};

// One call site: instantiated once, then initialised and executed as often as wanted.
class FakeSite {
 public:
  static constexpr int kNumRuntimes = 2;

  FakeSite(Handler* instantiate, Handler* initialize, Handler* execute, int runtime = 0)
      : instantiate_(instantiate), initialize_(initialize), execute_(execute), runtime_(runtime) {}
  ~FakeSite();
  FakeSite(const FakeSite&) = delete;
  FakeSite& operator=(const FakeSite&) = delete;

  void Attribute(const std::string& name, int64_t value);
  void Attribute(const std::string& name, const std::string& value);
  void Operand(XLA_FFI_DataType type, void* data, std::vector<int64_t> dims);
  void Result(XLA_FFI_DataType type, void* data, std::vector<int64_t> dims);

  Outcome Instantiate();
  Outcome Initialize(int device) {
    return Run(initialize_, XLA_FFI_ExecutionStage_INITIALIZE, device, nullptr);
  }
  Outcome Execute(int device, void* stream) {
    return Run(execute_, XLA_FFI_ExecutionStage_EXECUTE, device, stream);
  }
  // What the handler says of itself.
  static XLA_FFI_Handler_Traits TraitsOf(Handler* handler);

 private:
  struct Buffer {
    XLA_FFI_Buffer buffer = {};
    std::vector<int64_t> dims;
  };
  static void Add(std::vector<std::unique_ptr<Buffer>>& to, XLA_FFI_DataType type, void* data,
                  std::vector<int64_t> dims);
  Outcome Run(Handler* handler, XLA_FFI_ExecutionStage stage, int device, void* stream);

  Handler* const instantiate_;
  Handler* const initialize_;
  Handler* const execute_;
  const int runtime_;
  std::vector<std::pair<std::string, int64_t>> numbers_;
  std::vector<std::pair<std::string, std::string>> texts_;
  std::vector<std::unique_ptr<Buffer>> operands_;
  std::vector<std::unique_ptr<Buffer>> results_;
  void* state_ = nullptr;
};

}  // namespace epd::jax
