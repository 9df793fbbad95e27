// Goal: no command line or node list ends epd otherwise than with an error, and what it prints of its configuration it
// reads again.
#include <string>
#include <vector>

#include "daemon/node/settings/peers.h"
#include "daemon/node/settings/settings.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  epd::fuzz::Input in(data, size);
  const epd::MachineFacts facts{.host_name = "h",
                                .runtime_dir = "/run/epd",
                                .binary_dir = "/bin",
                                .memory_bytes = 1 << 30,
                                .slurm_nodes = in.Text()};
  (void)epd::ExpandNodeList(facts.slurm_nodes);
  (void)epd::FirstPeer(in.Text(), facts.slurm_nodes);
  (void)epd::IsThisNode(in.Text(), {"h", in.Text()});
  std::vector<std::string> arguments;
  while (!in.empty()) {
    std::string argument = in.Text();
    // A file's content is the machine's, not the input's.
    if (argument.find("config") == std::string::npos) arguments.push_back(std::move(argument));
  }
  const auto parsed = epd::ParseSettings(arguments, facts);
  if (parsed.ok()) EPD_FUZZ_CHECK(!epd::PrintConfig(*parsed).empty());
  return 0;
}
