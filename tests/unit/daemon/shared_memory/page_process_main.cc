// What epd-worker does as a page process.
#include "daemon/shared_memory/page_process.h"

int main() { return epd::PageProcessMain(/*socket=*/3); }
