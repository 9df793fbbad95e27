#include "daemon/version.h"

namespace epd {

const char kVersion[] = EPD_RELEASE;

}  // namespace epd
