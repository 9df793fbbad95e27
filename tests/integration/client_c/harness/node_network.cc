#include "tests/integration/client_c/harness/node_network.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace epd::testing {
namespace {

constexpr char kIp[] = "/usr/sbin/ip";

bool Ip(const std::string& arguments) {
  const std::string command = std::string(kIp) + " " + arguments + " >/dev/null 2>&1";
  return WEXITSTATUS(std::system(command.c_str())) == 0;
}

}  // namespace

NodeNetwork::NodeNetwork(int num_nodes)
    : prefix_("epd" + std::to_string(getpid()) + "-"), num_nodes_(num_nodes) {
  namespaces_ = Make(num_nodes);
  if (namespaces_) return;
  Remove();
  std::fprintf(stderr,
               "note: network namespaces are not allowed here, so the nodes are addresses of the "
               "loopback (127.0.0.1 and on)\n");
}

NodeNetwork::~NodeNetwork() {
  if (namespaces_) Remove();
}

bool NodeNetwork::Make(int num_nodes) {
  const std::string hub = Name("hub");
  if (!Ip("netns add " + hub) || !Ip("-n " + hub + " link add br0 type bridge") ||
      !Ip("-n " + hub + " link set br0 up")) {
    return false;
  }
  for (int node = 0; node < num_nodes; ++node) {
    const std::string name = Name(std::to_string(node));
    const std::string port = "p" + std::to_string(node);
    const bool made =
        Ip("netns add " + name) &&
        Ip("-n " + hub + " link add " + port + " type veth peer name eth0 netns " + name) &&
        Ip("-n " + hub + " link set " + port + " master br0 up") &&
        Ip("-n " + name + " addr add 10.77.0." + std::to_string(node + 1) + "/24 dev eth0") &&
        Ip("-n " + name + " addr add 10.78.0." + std::to_string(node + 1) + "/24 dev eth0") &&
        Ip("-n " + name + " link set eth0 up") && Ip("-n " + name + " link set lo up");
    if (!made) return false;
  }
  return true;
}

void NodeNetwork::Remove() {
  for (int node = 0; node < num_nodes_; ++node) Ip("netns del " + Name(std::to_string(node)));
  Ip("netns del " + Name("hub"));
}

std::string NodeNetwork::address(int node) const {
  return (namespaces_ ? "10.77.0." : "127.0.0.") + std::to_string(node + 1);
}

std::string NodeNetwork::wire_address(int node) const {
  return "10.78.0." + std::to_string(node + 1);
}

bool NodeNetwork::Hide(int to, int from) const {
  // Of a machine that does not exist.
  return namespaces_ && Ip("-n " + Name(std::to_string(from)) + " neigh replace " +
                           wire_address(to) + " lladdr 02:00:00:00:00:99 dev eth0 nud permanent");
}

std::vector<std::string> NodeNetwork::wrap(int node) const {
  if (!namespaces_) return {};
  return {kIp, "netns", "exec", Name(std::to_string(node))};
}

uint64_t NodeNetwork::SentBytes(int node) const {
  const std::string command = std::string(kIp) + " netns exec " + Name(std::to_string(node)) +
                              " cat /sys/class/net/eth0/statistics/tx_bytes";
  FILE* const pipe = popen(command.c_str(), "r");
  unsigned long long bytes = 0;
  if (pipe == nullptr || std::fscanf(pipe, "%llu", &bytes) != 1) bytes = 0;
  if (pipe != nullptr) pclose(pipe);
  return bytes;
}

bool NodeNetwork::SetLink(int node, bool up) const {
  return namespaces_ &&
         Ip("-n " + Name("hub") + " link set p" + std::to_string(node) + (up ? " up" : " down"));
}

}  // namespace epd::testing
