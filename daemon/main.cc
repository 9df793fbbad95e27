// epd.
#include <string>
#include <vector>

#include "daemon/epd_main.h"

int main(int argc, char** argv) {
  return epd::RunEpd(std::vector<std::string>(argv + 1, argv + argc), epd::OfThisSource());
}
