#include "client/jax/epd_jax.h"

#include <xla/ffi/api/c_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "client/jax/call_site.h"
#include "client/jax/groups.h"
#include "client/jax/meeting.h"

namespace {

epd::jax::Status OtherVersion() {
  return {epd::jax::kInvalidArgument,
          "[epd:INVALID_ARGUMENT] libepd_jax.so and the Python package epd are of different "
          "versions; install the package again"};
}

epd::jax::Meeting MeetingOf(const epd_jax_meeting& meeting) {
  return {.alias = meeting.alias,
          .domain = meeting.domain,
          .position = meeting.position,
          .key = meeting.key,
          .ranks = meeting.ranks,
          .experts = meeting.experts,
          .local_experts = meeting.local_experts,
          .max_tokens = meeting.max_tokens};
}

epd::jax::GroupConfig ConfigOf(const epd_jax_group& group) {
  epd::jax::GroupConfig config;
  config.alias = group.alias;
  config.job = group.job;
  config.instance = group.instance;
  config.endpoint = {group.socket_path, group.daemon_path};
  config.num_domains = group.num_domains;
  config.ranks = group.ranks;
  config.experts = group.experts;
  config.local_experts = group.local_experts;
  if (group.expert_owner != nullptr) {
    config.expert_owner.assign(group.expert_owner, group.expert_owner + group.experts);
  }
  config.owners = group.owners;
  config.by_rank = group.by_rank != 0;
  config.max_tokens = group.max_tokens;
  config.recv_capacity = group.recv_capacity;
  config.hidden = group.hidden;
  config.top_k = group.top_k;
  config.max_dtype = static_cast<epd_dtype>(group.max_dtype);
  config.drop_on_overflow = group.drop_on_overflow != 0;
  config.executor = static_cast<epd_executor>(group.executor);
  config.warn_after_ms = group.warn_after_ms;
  config.absent_ms = group.absent_ms;
  config.undecided_ms = group.undecided_ms;
  config.form_ms = group.form_ms;
  for (std::size_t i = 0; i < group.num_held; ++i) {
    config.held[group.held[i].domain][group.held[i].position] = group.held[i].device;
  }
  for (std::size_t i = 0; i < group.num_elsewhere; ++i) {
    const epd_jax_rank& rank = group.elsewhere[i];
    config.elsewhere[{rank.domain, rank.position}] = rank.device;
  }
  config.devices = group.devices;
  config.program = group.program;
  config.metadata = group.metadata;
  config.backend = group.backend;
  return config;
}

}  // namespace

const char* epd_jax_version(void) { return epd_client_version(); }

int epd_jax_ffi_api_major(void) { return XLA_FFI_API_MAJOR; }
int epd_jax_ffi_api_minor(void) { return XLA_FFI_API_MINOR; }

int epd_jax_connect(const char* socket_path, const char* daemon_path, epd_error* error) {
  return epd::jax::Report(epd::jax::Groups::Shared().Connect({socket_path, daemon_path}), error);
}

size_t epd_jax_socket_path(char* path, size_t path_bytes) {
  const std::string found = epd::jax::Groups::Shared().socket_path();
  if (path_bytes > 0) std::snprintf(path, path_bytes, "%s", found.c_str());
  return found.size();
}

int epd_jax_bootstrap(const epd_jax_group* group, epd_error* error) {
  if (group->struct_size != sizeof *group) return epd::jax::Report(OtherVersion(), error);
  return epd::jax::Report(epd::jax::Groups::Shared().Bootstrap(ConfigOf(*group)), error);
}

void epd_jax_finalize(const char* alias) { epd::jax::Groups::Shared().Finalize(alias); }

int epd_jax_meet(const epd_jax_meeting* meeting, epd_error* error) {
  if (meeting->struct_size != sizeof *meeting) return epd::jax::Report(OtherVersion(), error);
  return epd::jax::Report(epd::jax::Meet(epd::jax::Groups::Shared(), MeetingOf(*meeting)), error);
}

int epd_jax_refuse(const epd_jax_meeting* meeting, int32_t code, const char* text,
                   epd_error* error) {
  if (meeting->struct_size != sizeof *meeting) return epd::jax::Report(OtherVersion(), error);
  return epd::jax::Report(
      epd::jax::Refuse(epd::jax::Groups::Shared(), MeetingOf(*meeting), {code, text}), error);
}

size_t epd_jax_handle_mem_size(uint32_t ranks, uint32_t experts, uint32_t max_tokens,
                               uint32_t top_k) {
  return epd_handle_mem_size(ranks, experts, max_tokens, top_k);
}

void epd_jax_end_compile(void) { epd::jax::EndCompile(); }

void epd_jax_follow_compiles_process_wide(void) { epd::jax::FollowCompilesProcessWide(); }
