#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/human.h"
#include "client/cli/printers/tables.h"
#include "client/cli/table.h"

namespace epd::cli {
namespace {

using Tenant = epd::v1::GetMemoryResponse::Tenant;

// "  train tenant=b rank 1 (pid 4711)"; an arena that several groups use names them all.
std::string OwnerOf(const epd::v1::MemoryRegion::Arena& arena) {
  const std::string users =
      absl::StrJoin(arena.users(), ", ", [](std::string* out, const auto& user) {
        absl::StrAppend(out, user.group(), user.tenant().empty() ? "" : " tenant=", user.tenant(),
                        " rank ", user.rank());
      });
  return absl::StrCat("  ", users, " (pid ", arena.pid(), ")");
}

}  // namespace

std::string MemoryTable(const epd::v1::GetMemoryResponse& memory) {
  Table table({{"OWNER"},
               {"WORKER"},
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
    table.AddRow({region.owner(), region.worker(), region.kind(),
                  HumanBytes(region.committed_bytes()), HumanBytes(region.in_use_bytes()),
                  HumanBytes(region.peak_bytes()), HumanBytes(region.quarantined_bytes()),
                  HumanBytes(region.address_bytes())});
    for (const epd::v1::MemoryRegion::Arena& arena : region.arenas()) {
      table.AddRow({OwnerOf(arena), "", "arena", HumanBytes(arena.committed_bytes()),
                    HumanBytes(arena.in_use_bytes()), "", "", ""});
    }
    committed += region.committed_bytes();
    in_use += region.in_use_bytes();
    quarantined += region.quarantined_bytes();
  }
  // Peaks of regions need not fall together, and address space costs nothing: neither has a sum.
  table.AddRow(
      {"all", "", "", HumanBytes(committed), HumanBytes(in_use), "", HumanBytes(quarantined), ""});
  table.DropIfEmpty(1);
  std::string gpus;
  for (const epd::v1::Gpu& gpu : memory.gpus()) gpus += GpuText(gpu);
  const Fields<Tenant> fields = {
      {"GROUP", [](const Tenant& t) { return t.group(); }},
      {"TENANT", [](const Tenant& t) { return t.tenant(); }, Align::kLeft, true},
      {"UID", [](const Tenant& t) { return absl::StrCat(t.uid()); }, Align::kRight},
      {"WORKER", [](const Tenant& t) { return t.worker(); }},
      {"STAGING IN USE", [](const Tenant& t) { return QuotaText(t.quota()); }, Align::kRight},
  };
  const std::string tenants =
      memory.tenants().empty() ? "" : absl::StrCat("\n", MakeTable(memory.tenants(), fields, ""));
  return absl::StrCat(table.ToString(), tenants, UsersTable(memory.users()),
                      "\nstaging pool: ", HumanBytes(memory.pool_committed_bytes()), " committed, ",
                      HumanBytes(memory.pool_peak_bytes()), " at most so far, of ",
                      HumanBytes(memory.pool_bytes()), "\n", gpus);
}

std::string PlanTable(const epd::v1::PlanMemoryResponse& plan) {
  const std::string table = AlignedPairs({
      {"one prepare in flight, per rank", HumanBytes(plan.prepare_bytes_per_rank())},
      {"one dispatch", HumanBytes(plan.dispatch_bytes_per_rank())},
      {"one combine", HumanBytes(plan.combine_bytes_per_rank())},
      {"one backward of dispatch", HumanBytes(plan.dispatch_backward_bytes_per_rank())},
      {"one backward of combine", HumanBytes(plan.combine_backward_bytes_per_rank())},
      {"eager buffers, per rank", HumanBytes(plan.eager_bytes_per_rank())},
      {"all of it with calls in turn, per rank", HumanBytes(plan.total_bytes_per_rank())},
      {"all of it, on each node", HumanBytes(plan.total_bytes_per_node())},
      {"op slots, per session", HumanBytes(plan.slots_bytes_per_session())},
      {"a routing plan (handle_mem), in the client", HumanBytes(plan.handle_mem_bytes())},
      {"staging of this node",
       absl::StrCat(HumanBytes(plan.pool_bytes()), ", ", HumanBytes(plan.pool_committed_bytes()),
                    " of it in groups that are there")},
  });
  return plan.verdict().empty() ? table : absl::StrCat(table, "\n", plan.verdict(), "\n");
}

}  // namespace epd::cli
