// On machines of several NUMA nodes: where the pages of a rank's own staging are to be. epd's processes make them, on
// whichever node these run, while the rank writes them, and every peer reads them once.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace epd::client {

// Whether `online`, as the kernel lists nodes ("0", "0-1", "0,2"), are several.
bool AreSeveralNodes(std::string_view online);

// The node on which this thread runs; nothing on a machine of one.
std::optional<unsigned> OwnNode();

// Asks for the pages of this shared memory to be made on the node, by whoever makes them, as long as it has room; those that are
// there stay. Whole pages. Advice: false if the system does not take it, as in a container without CAP_SYS_NICE.
bool PreferNode(void* memory, std::size_t bytes, unsigned node);

}  // namespace epd::client
