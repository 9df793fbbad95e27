#include "client/cli/version.h"

namespace epd::cli {

const char kVersion[] = EPD_RELEASE;

}  // namespace epd::cli
