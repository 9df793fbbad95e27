// Every call that epd makes to a CUDA driver, as one struct of function pointers.
//
// The driver is what is found at run time: nothing links libcuda, and a machine without one runs the
// same binaries. Tests put a fake into the table; no code outside it names a CUDA function.
#pragma once

#include <string>
#include <vector>

#include "kernels/cuda/driver/cuda_abi.h"

namespace epd::cuda {

// Symbols are taken as they were in this version, whatever newer ones the driver has.
inline constexpr int kDriverAbi = 12000;

// Not in it is what waits for all work of a context: in a client it would end every capture of the program's.
struct DriverTable {
  Result (*init)(unsigned flags) = nullptr;
  Result (*driver_get_version)(int* version) = nullptr;
  Result (*get_error_name)(Result code, const char** name) = nullptr;

  Result (*device_get_count)(int* count) = nullptr;
  Result (*device_get)(Device* device, int ordinal) = nullptr;
  Result (*device_get_name)(char* name, int bytes, Device device) = nullptr;
  Result (*device_get_uuid)(Uuid* uuid, Device device) = nullptr;
  Result (*device_get_attribute)(int* value, int attribute, Device device) = nullptr;
  Result (*device_total_memory)(size_t* bytes, Device device) = nullptr;
  Result (*device_can_access_peer)(int* can, Device device, Device peer) = nullptr;

  Result (*primary_context_retain)(Context* context, Device device) = nullptr;
  Result (*primary_context_release)(Device device) = nullptr;
  Result (*context_set_current)(Context context) = nullptr;
  Result (*memory_get_free)(size_t* free, size_t* total) = nullptr;

  // Virtual memory management; null when the driver has none (has_virtual_memory()).
  Result (*memory_granularity)(size_t* bytes, const AllocationProperties* properties,
                               int option) = nullptr;
  Result (*memory_create)(MemoryHandle* handle, size_t bytes,
                          const AllocationProperties* properties, uint64_t flags) = nullptr;
  Result (*memory_release)(MemoryHandle handle) = nullptr;
  Result (*memory_export)(void* shareable, MemoryHandle handle, int handle_type,
                          uint64_t flags) = nullptr;
  Result (*memory_import)(MemoryHandle* handle, void* shareable, int handle_type) = nullptr;
  Result (*address_reserve)(DevicePointer* address, size_t bytes, size_t alignment,
                            DevicePointer hint, uint64_t flags) = nullptr;
  Result (*address_free)(DevicePointer address, size_t bytes) = nullptr;
  Result (*memory_map)(DevicePointer address, size_t bytes, size_t offset, MemoryHandle handle,
                       uint64_t flags) = nullptr;
  Result (*memory_unmap)(DevicePointer address, size_t bytes) = nullptr;
  Result (*memory_set_access)(DevicePointer address, size_t bytes,
                              const AccessDescription* descriptions, size_t count) = nullptr;

  // Plain allocations, shared by 64-byte handles.
  Result (*memory_allocate)(DevicePointer* address, size_t bytes) = nullptr;
  Result (*memory_free)(DevicePointer address) = nullptr;
  Result (*ipc_get_handle)(IpcHandle* handle, DevicePointer address) = nullptr;
  Result (*ipc_open_handle)(DevicePointer* address, IpcHandle handle, unsigned flags) = nullptr;
  Result (*ipc_close_handle)(DevicePointer address) = nullptr;

  Result (*host_register)(void* memory, size_t bytes, unsigned flags) = nullptr;
  Result (*host_unregister)(void* memory) = nullptr;
  Result (*host_get_device_pointer)(DevicePointer* address, void* memory, unsigned flags) = nullptr;

  Result (*stream_create)(Stream* stream, unsigned flags) = nullptr;
  Result (*stream_destroy)(Stream stream) = nullptr;
  Result (*stream_query)(Stream stream) = nullptr;  // kNotReady: work is left.
  Result (*stream_is_capturing)(Stream stream, int* status) = nullptr;
  // What the calling thread may do beside captures; gives the mode that it had.
  Result (*thread_exchange_capture_mode)(int* mode) = nullptr;
  // Null when the driver has no stream memory operations (has_stream_memory_operations()).
  Result (*stream_batch)(Stream stream, unsigned count, BatchedOperation* operations,
                         unsigned flags) = nullptr;

  Result (*event_create)(Event* event, unsigned flags) = nullptr;
  Result (*event_destroy)(Event event) = nullptr;
  Result (*event_record)(Event event, Stream stream) = nullptr;
  Result (*event_query)(Event event) = nullptr;  // kNotReady: not reached.

  Result (*copy_async)(DevicePointer to, DevicePointer from, size_t bytes, Stream stream) = nullptr;
  Result (*fill_async)(DevicePointer to, unsigned char byte, size_t bytes, Stream stream) = nullptr;

  Result (*module_load)(Module* module, const void* image) = nullptr;
  Result (*module_unload)(Module module) = nullptr;
  Result (*module_get_function)(Function* function, Module module, const char* name) = nullptr;
  Result (*function_set_attribute)(Function function, int attribute, int value) = nullptr;
  Result (*launch_kernel)(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z,
                          unsigned shared_bytes, Stream stream, void** arguments,
                          void** extra) = nullptr;

  // cudaGetLastError of the runtime that is linked into this process; null: none is. A failed call
  // that the runtime saw stays there until it is read, and fails the next launch.
  int (*runtime_take_last_error)() = nullptr;

  bool has_virtual_memory() const { return memory_create != nullptr; }
  bool has_stream_memory_operations() const { return stream_batch != nullptr; }
};

// A driver that was opened, or the reason why there is none.
struct LoadedDriver {
  DriverTable table;
  std::string path;     // Of the file that was opened; "": none.
  std::string problem;  // "": every call that epd cannot do without is there.
  // Calls that this driver lacks and epd can do without, each with the reason.
  std::vector<std::string> missing;

  bool ok() const { return problem.empty(); }
};

// Opens `name` ("libcuda.so.1" unless a test says otherwise) and fills the table; calls nothing in it
// but cuGetProcAddress. The library stays open for the life of the process.
LoadedDriver LoadDriver(const std::string& name = "libcuda.so.1");

// "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2)".
std::string Describe(const DriverTable& table, const char* call, Result code);

}  // namespace epd::cuda
