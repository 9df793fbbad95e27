// Reads one byte behind an allocation of as many as there are arguments.
#include <cstddef>
#include <vector>

int main(int argc, char**) {
  const std::vector<char> bytes(static_cast<size_t>(argc));
  const volatile char* data = bytes.data();
  return data[argc];
}
