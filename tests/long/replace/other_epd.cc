// epd as a build of another version of the state would be.
#include <string>
#include <vector>

#include "daemon/epd_main.h"

#ifndef EPD_TEST_MAJOR
#define EPD_TEST_MAJOR epd::kHandoverMajor
#endif
#ifndef EPD_TEST_MINOR
#define EPD_TEST_MINOR epd::kHandoverMinor
#endif

int main(int argc, char** argv) {
  epd::HandoverVersion version = epd::OfThisSource();
  version.major = EPD_TEST_MAJOR;
  version.minor = EPD_TEST_MINOR;
#ifdef EPD_TEST_MUST_KNOW
  version.must_know.emplace_back(EPD_TEST_MUST_KNOW);
  version.knows.emplace_back(EPD_TEST_MUST_KNOW);
#endif
  return epd::RunEpd(std::vector<std::string>(argv + 1, argv + argc), version);
}
