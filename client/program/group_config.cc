#include "client/program/group_config.h"

#include <cstddef>

#include "client/c/struct_size.h"

namespace epd::program {
namespace {

std::string Text(const char* given) { return given == nullptr ? "" : given; }

// Calls `add` for each rank. The caller's structs may be longer or shorter than ours.
template <typename Add>
Status ReadRanks(const epd_program_rank* given, std::size_t count, const char* what,
                 const Add& add) {
  const char* at = reinterpret_cast<const char*>(given);
  for (std::size_t i = 0; i < count; ++i) {
    epd_program_rank rank;
    const auto* const one = reinterpret_cast<const epd_program_rank*>(at);
    if (Status status = client::ReadStruct(one, what, &rank); !status.ok()) return status;
    add(rank);
    at += one->struct_size;
  }
  return {};
}

std::chrono::milliseconds ReconnectTimeout(const epd_program_group& group,
                                           const epd_group_spec& spec) {
  constexpr std::chrono::minutes kForming{5};  // The daemons' default.
  if (group.reconnect_timeout_ms < 0) return std::chrono::milliseconds(0);
  if (group.reconnect_timeout_ms > 0) return std::chrono::milliseconds(group.reconnect_timeout_ms);
  return spec.form_ms > 0 ? std::chrono::milliseconds(spec.form_ms) : kForming;
}

}  // namespace

Status GroupConfig::ReadSpec(const epd_group_spec* given) {
  if (Status status = client::ReadStruct(given, "group.spec", &spec); !status.ok()) return status;
  spec.struct_size = sizeof spec;
  for (const char** const text : {&spec.instance, &spec.tenant, &spec.backend}) {
    if (*text != nullptr) *text = texts_.emplace_back(*text).c_str();
  }
  if (spec.expert_owner != nullptr) {
    expert_owner_.assign(spec.expert_owner, spec.expert_owner + spec.num_experts);
    spec.expert_owner = expert_owner_.data();
  }
  return {};
}

Status GroupConfig::Read(const epd_program_group* given,
                         std::shared_ptr<const GroupConfig>* config) {
  epd_program_group group;
  if (Status status = client::ReadStruct(given, "group", &group); !status.ok()) return status;
  const std::shared_ptr<GroupConfig> made(new GroupConfig);
  if (Status status = made->ReadSpec(group.spec); !status.ok()) return status;
  made->alias = Text(group.alias);
  made->job = Text(group.job);
  made->endpoint = {Text(group.socket_path), Text(group.daemon_path)};
  made->local_experts = group.local_experts;
  made->owners = group.owners;
  made->by_rank = group.by_rank != 0;
  made->joins_by_call = group.joins_by_call != 0;
  Status read =
      ReadRanks(group.held, group.num_held, "group.held", [&](const epd_program_rank& rank) {
        made->held[rank.domain][rank.position] = Text(rank.device);
      });
  if (!read.ok()) return read;
  read = ReadRanks(group.elsewhere, group.num_elsewhere, "group.elsewhere",
                   [&](const epd_program_rank& rank) {
                     made->elsewhere[{rank.domain, rank.position}] = Text(rank.device);
                   });
  if (!read.ok()) return read;
  made->devices = Text(group.devices);
  made->program = Text(group.program);
  made->metadata = Text(group.metadata);
  made->reconnect_timeout = ReconnectTimeout(group, made->spec);
  *config = made;
  return {};
}

}  // namespace epd::program
