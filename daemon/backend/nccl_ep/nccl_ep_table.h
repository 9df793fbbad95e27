// Every call that epd makes to NCCL EP, as one struct of function pointers.
//
// The library ends its process on most errors: whoever calls it must be able to die. Calls that all
// members make block where one is missing.
#pragma once

#include <string>
#include <vector>

#include "daemon/backend/cuda/members/nccl_table.h"
#include "daemon/backend/nccl_ep/nccl_ep_abi.h"

namespace epd::nccl_ep {

struct Table {
  Result (*get_version)(int* version) = nullptr;
  // All members. `comm` must be one whose calls block: the library takes "in progress" for a failure.
  Result (*create_group)(Group* group, cuda::NcclComm comm, const GroupConfig* config) = nullptr;
  Result (*destroy_group)(Group group) = nullptr;
  // Local. `top_k`: of every routing. `memory` null: the library allocates.
  Result (*init_handle)(Handle* handle, Group group, int layout, const HandleConfig* config,
                        int top_k, const Tensor* memory) = nullptr;
  Result (*destroy_handle)(Handle handle) = nullptr;
  // All members, in one order; in the stream. What a handle was told last serves all calls that follow.
  Result (*update_handle)(Handle handle, const Tensor* topk_idx, const LayoutReport* report,
                          cuda::Stream stream) = nullptr;
  Result (*dispatch)(Handle handle, const DispatchInputs* inputs, const DispatchOutputs* outputs,
                     const LayoutReport* none, const DispatchConfig* config,
                     cuda::Stream stream) = nullptr;
  Result (*combine)(Handle handle, const CombineInputs* inputs, const CombineOutputs* outputs,
                    const CombineConfig* config, cuda::Stream stream) = nullptr;
};

struct Loaded {
  Table table;
  std::string path;     // "": none.
  int version = 0;      // 10000 * major + 100 * minor + patch.
  std::string problem;  // "": usable, as far as its version and its symbols tell.

  bool ok() const { return problem.empty(); }
};

// Opens the first of the candidates that opens and fills the table. The library stays open for the life
// of the process, which may end here.
Loaded Load(const std::vector<std::string>& candidates);

}  // namespace epd::nccl_ep
