// main() of a fuzz target in an ordinary build: files given as arguments, or else random inputs, the same in every run,
// which keep the target alive between the long runs.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr int kInputs = 2000;
constexpr uint32_t kMaxBytes = 1500;
constexpr uint32_t kSmall = 8;  // Every second byte is below: sizes and kinds that mean something.

void RunFile(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) RunFile(argv[i]);
  if (argc > 1) return 0;
  std::mt19937 random(1);
  for (int i = 0; i < kInputs; ++i) {
    std::vector<uint8_t> bytes(random() % kMaxBytes);
    for (uint8_t& byte : bytes) {
      const uint32_t drawn = random();
      byte = static_cast<uint8_t>(drawn % 2 == 0 ? drawn / 2 % kSmall : drawn / 2);
    }
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::printf("%d inputs\n", kInputs);
  return 0;
}
