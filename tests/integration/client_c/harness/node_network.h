// Nodes with addresses of their own on one machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace epd::testing {

// A network namespace per node, joined by a bridge in one more; nothing outside of them changes.
// Where namespaces are not allowed, the nodes are addresses of the loopback, and a line on standard
// error says so.
class NodeNetwork {
 public:
  explicit NodeNetwork(int num_nodes);
  ~NodeNetwork();
  NodeNetwork(const NodeNetwork&) = delete;
  NodeNetwork& operator=(const NodeNetwork&) = delete;

  bool namespaces() const { return namespaces_; }
  std::string address(int node) const;
  // Namespaces only: a second address of the node.
  std::string wire_address(int node) const;
  // Namespaces only: what node `from` sends to wire_address(to) vanishes, without an answer.
  bool Hide(int to, int from) const;
  // The command that runs another one on the node; empty: nothing is needed.
  std::vector<std::string> wrap(int node) const;
  // Namespaces only: what the node has sent so far, in bytes with all headers.
  uint64_t SentBytes(int node) const;
  // Namespaces only. The node's link goes down or up.
  bool SetLink(int node, bool up) const;

 private:
  std::string Name(const std::string& node) const { return prefix_ + node; }
  bool Make(int num_nodes);
  void Remove();

  const std::string prefix_;
  const int num_nodes_;
  bool namespaces_ = false;
};

}  // namespace epd::testing
