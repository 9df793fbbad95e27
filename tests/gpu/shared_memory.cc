// T5: device memory made with cuMemCreate goes to another process as a descriptor; both see one
// memory; either side may be killed and the other goes on; the memory comes back.
#include <cstdio>

#include "tests/gpu/processes.h"
#include "tests/gpu/words.h"

namespace epd::gpu {
namespace {

constexpr std::size_t kBytes = std::size_t{256} << 20;
constexpr std::size_t kWords = kBytes / 4;

CUmemAllocationProp Properties(const Device& device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device.device;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

CUdeviceptr Map(const Driver& driver, const Device& device, CUmemGenericAllocationHandle handle) {
  CUdeviceptr address = 0;
  Check(driver, driver.MemAddressReserve(&address, kBytes, 0, 0, 0), "cuMemAddressReserve");
  Check(driver, driver.MemMap(address, kBytes, 0, handle, 0), "cuMemMap");
  CUmemAccessDesc access = {};
  access.location = Properties(device).location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  Check(driver, driver.MemSetAccess(address, kBytes, &access, 1), "cuMemSetAccess");
  return address;
}

// Fills with a byte and reads the last word back.
bool FillAndRead(const Driver& driver, CUdeviceptr address, unsigned char value) {
  Check(driver, driver.MemsetD8(address, value, kBytes), "cuMemsetD8");
  Check(driver, driver.CtxSynchronize(), "cuCtxSynchronize");
  std::uint32_t last = 0;
  Check(driver, driver.MemcpyDtoH(&last, address + (kWords - 1) * 4, 4), "cuMemcpyDtoH");
  return last == value * 0x01010101u;
}

// Makes the memory, sends its descriptor, then does what it is told until it is killed.
int Export(int socket) {
  Driver driver;
  Device device;
  OpenOrExit(&driver, &device);
  const CUmemAllocationProp properties = Properties(device);
  CUmemGenericAllocationHandle handle = 0;
  Check(driver, driver.MemCreate(&handle, kBytes, &properties, 0), "cuMemCreate");
  const CUdeviceptr address = Map(driver, device, handle);
  int descriptor = -1;
  Check(driver,
        driver.MemExportToShareableHandle(&descriptor, handle,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "cuMemExportToShareableHandle");
  if (!FillAndRead(driver, address, 0x5a)) return kFailed;
  SendDescriptor(socket, descriptor);
  while (Hear(socket) == 'f') Say(socket, FillAndRead(driver, address, 0x3c) ? 'y' : 'n');
  return kPassed;
}

// Maps what the descriptor names; tells what it reads.
int Import(int socket) {
  const int descriptor = ReceiveDescriptor(socket);
  Driver driver;
  Device device;
  OpenOrExit(&driver, &device);
  CUmemGenericAllocationHandle handle = 0;
  Check(driver,
        driver.MemImportFromShareableHandle(
            &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "cuMemImportFromShareableHandle");
  const CUdeviceptr address = Map(driver, device, handle);
  std::uint32_t last = 0;
  Check(driver, driver.MemcpyDtoH(&last, address + (kWords - 1) * 4, 4), "cuMemcpyDtoH");
  Say(socket, last == 0x5a5a5a5au ? 'y' : 'n');
  while (Hear(socket) == 'f') Say(socket, FillAndRead(driver, address, 0x77) ? 'y' : 'n');
  return kPassed;
}

bool Ask(const Child& child) {
  Say(child.socket, 'f');
  return Hear(child.socket) == 'y';
}

struct Pair {
  Child exporter;
  Child importer;
  bool sees_bytes;
};

Pair Connect() {
  Pair pair;
  pair.exporter = Spawn(Export);
  pair.importer = Spawn(Import);
  const int descriptor = ReceiveDescriptor(pair.exporter.socket);
  if (descriptor < 0) std::exit(kFailed);
  SendDescriptor(pair.importer.socket, descriptor);
  close(descriptor);
  pair.sees_bytes = Hear(pair.importer.socket) == 'y';
  return pair;
}

void Kill(const Child& child) {
  kill(child.pid, SIGKILL);
  Join(child);
}

std::size_t FreeBytes() {
  const Child child = Spawn([](int socket) {
    Driver driver;
    Device device;
    OpenOrExit(&driver, &device);
    std::size_t free_bytes = 0;
    std::size_t total = 0;
    Check(driver, driver.MemGetInfo(&free_bytes, &total), "cuMemGetInfo");
    return send(socket, &free_bytes, sizeof(free_bytes), 0) < 0 ? kFailed : kPassed;
  });
  std::size_t free_bytes = 0;
  if (recv(child.socket, &free_bytes, sizeof(free_bytes), 0) < 0) std::abort();
  Join(child);
  return free_bytes;
}

int Main() {
  if (const int status = ProbeGpu(); status != kPassed) return status;
  const std::size_t free_before = FreeBytes();
  Pair first = Connect();
  Kill(first.importer);
  const bool exporter_lives = Ask(first.exporter);
  Kill(first.exporter);
  Pair second = Connect();
  Kill(second.exporter);
  const bool importer_lives = Ask(second.importer);
  Kill(second.importer);
  const bool returned = PollFor(10, [&] {
    usleep(100000);
    return FreeBytes() + kBytes / 2 > free_before;
  });
  const bool passed =
      first.sees_bytes && second.sees_bytes && exporter_lives && importer_lives && returned;
  std::printf(
      "{\"name\": \"T5 shared memory\", \"importer_sees_bytes\": %s, "
      "\"exporter_survives_importer\": %s, \"importer_survives_exporter\": %s, "
      "\"memory_returned\": %s, \"passed\": %s}\n",
      Json(first.sees_bytes && second.sees_bytes), Json(exporter_lives), Json(importer_lives),
      Json(returned), Json(passed));
  return passed ? kPassed : kFailed;
}

}  // namespace
}  // namespace epd::gpu

int main() { return epd::gpu::Main(); }
