#include "client/c/machine_device.h"

#include <charconv>
#include <string_view>

namespace epd::client {
namespace {

constexpr std::string_view kCuda = "cuda:";

bool ReadNumber(std::string_view text, size_t* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string MachineDevice(const std::string& device, const char* visible) {
  size_t ordinal = 0;
  if (visible == nullptr || device.rfind(kCuda, 0) != 0 ||
      !ReadNumber(std::string_view(device).substr(kCuda.size()), &ordinal)) {
    return device;
  }
  std::string_view rest = visible;
  for (; ordinal > 0; --ordinal) {
    const size_t comma = rest.find(',');
    if (comma == std::string_view::npos) return device;  // There is no such device here.
    rest.remove_prefix(comma + 1);
  }
  const std::string_view entry = rest.substr(0, rest.find(','));
  size_t number = 0;
  if (ReadNumber(entry, &number)) return std::string(kCuda) + std::to_string(number);
  return entry.empty() ? device : std::string(entry);
}

}  // namespace epd::client
