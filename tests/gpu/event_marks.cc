#include "tests/gpu/event_marks.h"

namespace epd::gpu {

std::string EventMarks::Make(int devices, int marks) {
  for (int ordinal = 0; ordinal < devices; ++ordinal) {
    CUdevice device = 0;
    CUcontext context = nullptr;
    CUresult result = driver_.DeviceGet(&device, ordinal);
    if (result != CUDA_SUCCESS) return Named(result, "cuDeviceGet");
    result = driver_.DevicePrimaryCtxRetain(&context, device);
    if (result != CUDA_SUCCESS) return Named(result, "cuDevicePrimaryCtxRetain");
    result = driver_.CtxSetCurrent(context);
    if (result != CUDA_SUCCESS) return Named(result, "cuCtxSetCurrent");
    std::vector<CUevent>& events = events_.emplace_back(marks);
    for (CUevent& event : events) {
      result = driver_.EventCreate(&event, CU_EVENT_DEFAULT);
      if (result != CUDA_SUCCESS) return Named(result, "cuEventCreate");
    }
  }
  return "";
}

std::string EventMarks::Record(int device, std::int64_t number, CUstream stream) {
  CUevent const event = At(device, number);
  if (event == nullptr) {
    return "no event " + std::to_string(number) + " of device " + std::to_string(device);
  }
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult result = driver_.StreamIsCapturing(stream, &status);
  if (result != CUDA_SUCCESS) return Named(result, "cuStreamIsCapturing");
  if (status == CU_STREAM_CAPTURE_STATUS_NONE) {
    result = driver_.EventRecord(event, stream);
    return result == CUDA_SUCCESS ? "" : Named(result, "cuEventRecord");
  }
  result = driver_.EventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL);
  if (result != CUDA_SUCCESS) return Named(result, "cuEventRecordWithFlags");
  ++captured_;
  return "";
}

double EventMarks::ElapsedUs(int device, std::int64_t from, std::int64_t to) const {
  constexpr double kNone = -1;
  CUevent const begin = At(device, from);
  CUevent const end = At(device, to);
  float ms = 0;
  if (begin == nullptr || end == nullptr) return kNone;
  return driver_.EventElapsedTime(&ms, begin, end) == CUDA_SUCCESS ? ms * 1000.0 : kNone;
}

CUevent EventMarks::At(int device, std::int64_t number) const {
  if (device < 0 || static_cast<std::size_t>(device) >= events_.size()) return nullptr;
  const std::vector<CUevent>& events = events_[device];
  return number >= 0 && static_cast<std::size_t>(number) < events.size() ? events[number] : nullptr;
}

std::string EventMarks::Named(CUresult result, const char* what) const {
  const char* name = nullptr;
  driver_.GetErrorName(result, &name);
  return std::string(what) + ": " + (name != nullptr ? name : "unknown error");
}

}  // namespace epd::gpu
