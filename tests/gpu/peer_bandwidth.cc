#include "tests/gpu/peer_bandwidth.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace epd::gpu {
namespace {

constexpr std::uint64_t kRowBytes = 7168 * 2;

std::vector<Device> OpenAll(const Driver& driver) {
  int count = 0;
  Check(driver, driver.DeviceGetCount(&count), "cuDeviceGetCount");
  std::vector<Device> devices(static_cast<std::size_t>(count));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    std::string why;
    if (OpenDevice(driver, ordinal, &devices[static_cast<std::size_t>(ordinal)], &why)) continue;
    std::fprintf(stderr, "%s\n", why.c_str());
    std::exit(kFailed);
  }
  return devices;
}

CUdeviceptr AllocateOn(const Driver& driver, const Device& device, std::size_t bytes) {
  CUdeviceptr memory = 0;
  Check(driver, driver.CtxSetCurrent(device.context), "cuCtxSetCurrent");
  Check(driver, driver.MemAlloc(&memory, bytes), "cuMemAlloc");
  Check(driver, driver.MemsetD8(memory, 1, bytes), "cuMemsetD8");
  Check(driver, driver.CtxSynchronize(), "cuCtxSynchronize");
  return memory;
}

double Gbps(std::size_t bytes, Timing timing) {
  return static_cast<double>(bytes) / timing.p50_us / 1000.0;
}

// Of memory at `from`, into memory at `to`, of a device whose context is current.
double ByKernel(TimedDevice& timed, const Device& reader, CUdeviceptr to, CUdeviceptr from,
                std::size_t bytes) {
  cuda::CopyRowsArgs args;
  args.from = reinterpret_cast<const std::uint8_t*>(from);
  args.to = reinterpret_cast<std::uint8_t*>(to);
  args.max_rows = static_cast<std::int64_t>(bytes / kRowBytes);
  args.row_bytes = kRowBytes;
  const cuda::DeviceShape shape = {.num_sms = reader.num_sms,
                                   .compute_capability = reader.compute_capability};
  return Gbps(bytes / kRowBytes * kRowBytes, timed.TimeList(CopyRowsLaunches(args, shape)));
}

}  // namespace

std::vector<PeerBandwidth> MeasurePeers(const Driver& driver, const void* image, Repeats repeats,
                                        std::size_t bytes) {
  std::vector<PeerBandwidth> peers;
  const std::vector<Device> devices = OpenAll(driver);
  if (devices.size() < 2) return peers;
  std::vector<CUdeviceptr> memory;
  for (const Device& device : devices) memory.push_back(AllocateOn(driver, device, bytes));
  for (std::size_t r = 0; r < devices.size(); ++r) {
    const Device& reader = devices[r];
    const CUdeviceptr to = AllocateOn(driver, reader, bytes);
    TimedDevice timed(driver, image, repeats);
    for (std::size_t o = 0; o < devices.size(); ++o) {
      if (o == r) continue;
      PeerBandwidth& peer = peers.emplace_back();
      peer.reader = static_cast<int>(r);
      peer.owner = static_cast<int>(o);
      int can = 0;
      Check(driver, driver.DeviceCanAccessPeer(&can, reader.device, devices[o].device),
            "cuDeviceCanAccessPeer");
      peer.access = can != 0;
      if (peer.access) {
        Check(driver, driver.CtxEnablePeerAccess(devices[o].context, 0), "cuCtxEnablePeerAccess");
        peer.kernel_gbps = ByKernel(timed, reader, to, memory[o], bytes);
      }
      peer.copy_gbps = Gbps(bytes, timed.Time([&] {
        Check(driver,
              driver.MemcpyPeerAsync(to, reader.context, memory[o], devices[o].context, bytes,
                                     timed.stream()),
              "cuMemcpyPeerAsync");
      }));
    }
    Check(driver, driver.MemFree(to), "cuMemFree");
  }
  Check(driver, driver.CtxSetCurrent(devices[0].context), "cuCtxSetCurrent");
  for (const CUdeviceptr address : memory) Check(driver, driver.MemFree(address), "cuMemFree");
  return peers;
}

void PrintPeers(const std::vector<PeerBandwidth>& peers) {
  std::printf("[");
  const char* before = "";
  for (const PeerBandwidth& peer : peers) {
    std::printf("%s\n  {\"reader\": %d, \"owner\": %d, \"access\": %s, \"copy_gbytes_per_s\": %.1f",
                before, peer.reader, peer.owner, peer.access ? "true" : "false", peer.copy_gbps);
    if (peer.access) std::printf(", \"kernel_gbytes_per_s\": %.1f", peer.kernel_gbps);
    std::printf("}");
    before = ",";
  }
  std::printf("]");
}

}  // namespace epd::gpu
