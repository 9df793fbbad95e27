// The answers of the daemon as text for people. Pure: the same message gives the same text.
#pragma once

#include <cstddef>
#include <string>

#include "client/cli/report.pb.h"
#include "client/cli/support_archive.pb.h"
#include "proto/epd/v1/node.pb.h"

namespace epd::cli {

// One line; "" where nothing is known of a GPU.
std::string GpuText(const epd::v1::Gpu& gpu);
// How long the node's certificate is good for; "none": its links are not TLS.
std::string CertificateText(const epd::v1::GetStatusResponse& status);
std::string StatusTable(const epd::v1::GetStatusResponse& status);
// A line for the node and one per tenant of a group, sorted. Rates are against `before`, an earlier answer of the same
// epd; without one they are totals. `order`: one of "obfwsn"; any other is 'o'.
std::string TopText(const epd::v1::GetFiguresResponse& now,
                    const epd::v1::GetFiguresResponse* before, char order);
std::string GroupsTable(const epd::v1::ListGroupsResponse& groups);
// Everything about each group, its ranks and its busiest experts.
std::string GroupDetails(const epd::v1::ListGroupsResponse& groups);
// "OPERATIONS" of max_operations_per_session; "3/256".
std::string QuotaTitle(const epd::v1::Quota& quota);
std::string QuotaText(const epd::v1::Quota& quota);
// A table of its own after an empty line; "" where there are none.
std::string UsersTable(const google::protobuf::RepeatedPtrField<epd::v1::User>& users);
std::string SessionsTable(const epd::v1::ListSessionsResponse& sessions);
std::string RanksTable(const epd::v1::ListRanksResponse& ranks);
// A line for each process that asked for the rank while another one held it.
std::string ContestedText(const epd::v1::Rank& rank);
std::string MemoryTable(const epd::v1::GetMemoryResponse& memory);
std::string PlanTable(const epd::v1::PlanMemoryResponse& plan);
std::string HealthTable(const HealthReport& health);
std::string DoctorTable(const DoctorReport& doctor);
// A paragraph for one, a table for several.
std::string ExplainText(const ExplainReport& report);
std::string DrainTable(const epd::v1::DrainGroupResponse& drained);
std::string ConfigTable(const epd::v1::GetConfigResponse& config);
std::string VersionTable(const VersionReport& version);
std::string NodesTable(const epd::v1::ListNodesResponse& nodes);
// With the odd ones marked: those whose version is not what most nodes have.
std::string NodeVersionsTable(const epd::v1::ListNodesResponse& nodes);
// `all_past`: also the operations of the past that went well everywhere.
std::string WhyText(const epd::v1::ExplainGroupResponse& why, bool all_past);
std::string SupportArchiveTable(const SupportArchiveReport& report);
// The last operations of a group's ranks, side by side: a line per operation, the newest first; a
// column per set of ranks that are in the same phase of every one of them. Operations that all ranks
// have done and that are followed by no other are counted only, unless `all`. Empty when nothing is
// known. At most 100 columns wide.
std::string PastText(const epd::v1::ExplainGroupResponse& why, bool all);

// Client names may be whole command lines; tables show so much of them, JSON all.
inline constexpr size_t kMaxClientName = 48;

// "GROUP_STATE_RE_FORMING" -> "re-forming": the value's name without its type's, in lower case with
// hyphens.
std::string EnumWord(const std::string& value_name, const std::string& prefix);

}  // namespace epd::cli
