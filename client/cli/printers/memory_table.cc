#include "absl/strings/str_cat.h"
#include "client/cli/human.h"
#include "client/cli/printers/tables.h"
#include "client/cli/table.h"

namespace epd::cli {

std::string MemoryTable(const epd::v1::GetMemoryResponse& memory) {
  Table table({{"OWNER"},
               {"KIND"},
               {"COMMITTED", Align::kRight},
               {"IN USE", Align::kRight},
               {"PEAK", Align::kRight},
               {"QUARANTINED", Align::kRight},
               {"ADDRESS SPACE", Align::kRight}});
  uint64_t committed = 0;
  uint64_t in_use = 0;
  uint64_t quarantined = 0;
  for (const epd::v1::MemoryRegion& region : memory.regions()) {
    table.AddRow({region.owner(), region.kind(), HumanBytes(region.committed_bytes()),
                  HumanBytes(region.in_use_bytes()), HumanBytes(region.peak_bytes()),
                  HumanBytes(region.quarantined_bytes()), HumanBytes(region.address_bytes())});
    committed += region.committed_bytes();
    in_use += region.in_use_bytes();
    quarantined += region.quarantined_bytes();
  }
  // Peaks of regions need not fall together, and address space costs nothing: neither has a sum.
  table.AddRow(
      {"all", "", HumanBytes(committed), HumanBytes(in_use), "", HumanBytes(quarantined), ""});
  return absl::StrCat(table.ToString(),
                      "\nstaging pool: ", HumanBytes(memory.pool_committed_bytes()), " committed, ",
                      HumanBytes(memory.pool_peak_bytes()), " at most so far, of ",
                      HumanBytes(memory.pool_bytes()), "\n");
}

std::string PlanTable(const epd::v1::PlanMemoryResponse& plan) {
  return AlignedPairs({
      {"one dispatch in flight, per rank", HumanBytes(plan.dispatch_bytes_per_rank())},
      {"one combine in flight, per rank", HumanBytes(plan.combine_bytes_per_rank())},
      {"op slots, per session", HumanBytes(plan.slots_bytes_per_session())},
      {"a routing plan (handle_mem), in the client", HumanBytes(plan.handle_mem_bytes())},
  });
}

}  // namespace epd::cli
