// Adds more to an int than it holds.
#include <limits>

int main(int argc, char**) {
  const volatile int most = std::numeric_limits<int>::max();
  return most + argc == 0 ? 1 : 0;
}
