#include "client/cli/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/cli/exit_code.h"

namespace epd::cli {
namespace {

constexpr char kDefaultInterval[] = "2s";

// "2" are seconds, else what absl reads: "500ms", "1m30s".
std::optional<absl::Duration> ParseDuration(const std::string& text) {
  absl::Duration duration;
  const bool digits = !text.empty() && text.find_first_not_of("0123456789.") == std::string::npos;
  if (!absl::ParseDuration(digits ? text + "s" : text, &duration)) return std::nullopt;
  if (duration <= absl::ZeroDuration() || duration == absl::InfiniteDuration()) return std::nullopt;
  return duration;
}

void AddDuration(CLI::App& app, const std::string& name, const std::string& help,
                 const std::function<void(absl::Duration)>& set) {
  app.add_option_function<std::string>(
         name,
         [name, set](const std::string& text) {
           const std::optional<absl::Duration> duration = ParseDuration(text);
           if (!duration) {
             throw CLI::ValidationError(
                 name, absl::StrCat("got '", text,
                                    "', expected a time above zero such as 2s, 500ms or 1m"));
           }
           set(*duration);
         },
         help)
      ->type_name("TIME");
}

void AddGlobalOptions(CLI::App& app, Options& options) {
  app.add_option_function<std::string>(
         "-o,--output",
         [&options](const std::string& text) {
           options.output = text == "json" ? Output::kJson : Output::kTable;
         },
         "table or json")
      ->check(CLI::IsMember({"table", "json"}, CLI::ignore_case).description(""))
      ->type_name("FORMAT");
  app.add_option("--socket", options.socket,
                 "the daemon's attach socket (default: EPD_SOCKET, else /run/epd/epd.sock, else "
                 "this user's private one)")
      ->type_name("PATH");
  app.add_option("--address", options.address, "the daemon's TCP address instead of a socket")
      ->type_name("HOST:PORT")
      ->excludes("--socket");
  AddDuration(app, "--timeout", "how long to wait for an answer (default 5s)",
              [&options](absl::Duration value) { options.timeout = value; });
  AddDuration(app, "--watch", "repeat every interval (--watch alone: 2s)",
              [&options](absl::Duration value) { options.watch = value; });
  app.add_option("--count", options.watch_count, "with --watch: how often; 0: until interrupted");
}

void AddGroup(CLI::App& command, Options& options, bool required) {
  auto* option = command.add_option("group", options.group, "name of a group")->type_name("NAME");
  if (required) option->required();
}

void AddAllNodes(CLI::App& command, Options& options) {
  command.add_flag("--all-nodes", options.all_nodes, "of every node of the cluster");
}

// `create` and `plan` describe a group in the same words.
void AddSpec(CLI::App& command, Options& options) {
  AddGroup(command, options, true);
  SpecOptions& spec = options.spec;
  command.add_option("--ranks", spec.num_ranks, "places in the group")->required();
  command.add_option("--experts", spec.num_experts, "split over the ranks in equal blocks")
      ->required();
  command.add_option("--max-tokens-per-rank", spec.max_tokens_per_rank, "of one dispatch")
      ->required();
  command.add_option("--recv-capacity-per-rank", spec.recv_capacity_per_rank, "slots")->required();
  command.add_option("--hidden", spec.hidden, "elements of a token row")->required();
  command.add_option("--top-k", spec.top_k, "largest of any call; 0: 1024");
  command.add_option("--dtype", spec.dtype, "float32, bfloat16 (default) or float16")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}).description(""));
  command.add_option("--instance", spec.instance, "one run of the job");
  command.add_option("--tenant", spec.tenant, "whose sessions exchange with each other");
  command.add_option("--executor", spec.executor, "auto (default), client or worker")
      ->check(CLI::IsMember({"auto", "client", "worker"}).description(""));
  command.add_option("--backend", spec.backend, "auto (default), cpu, cuda or nccl_ep");
  command.add_flag("--drop-on-overflow", spec.drop_on_overflow, "instead of an error");
}

void AddCommands(CLI::App& app, Options& options) {
  AddAllNodes(*app.add_subcommand("status", "the daemon, its workers, and whether all is well"),
              options);
  AddGroup(*app.add_subcommand("groups", "groups and the state of each"), options, false);
  app.add_subcommand("sessions", "attached processes and the ranks that they hold");
  AddGroup(*app.add_subcommand("ranks", "ranks: who holds each, and in which phase it is"), options,
           false);
  app.add_subcommand("memory", "every byte of staging and shared memory with its owner");
  AddGroup(
      *app.add_subcommand("health", "one word per service and group; the exit code says it too"),
      options, false);
  app.add_subcommand("doctor",
                     "what is missing or set up badly on this node; works without a daemon");
  CLI::App& drain = *app.add_subcommand(
      "drain", "let a group's open operations finish, refuse new ones, then close it");
  AddGroup(drain, options, true);
  AddDuration(drain, "--deadline", "operations still open then are cut off (default 30s)",
              [&options](absl::Duration value) { options.drain_deadline = value; });
  drain.add_option("--epoch", options.epoch, "only if this is the group's epoch; 0: any");
  drain.add_option("--tenant", options.tenant, "only this one of the group's tenants");
  CLI::App& close = *app.add_subcommand("close", "end a group at once; its open operations fail");
  AddGroup(close, options, true);
  close.add_option("--epoch", options.epoch, "only if this is the group's epoch; 0: any");
  close.add_option("--tenant", options.tenant, "only this one of the group's tenants");
  AddSpec(*app.add_subcommand("create", "make a group that waits for its ranks and outlives them"),
          options);
  CLI::App& plan =
      *app.add_subcommand("plan", "the memory that such a group will need; makes nothing");
  AddSpec(plan, options);
  plan.add_option("--element-bytes", options.spec.element_bytes,
                  "of rows that dispatch moves, 1 to 8 (default: those of --dtype)")
      ->check(CLI::Range(1, 8).description(""));
  app.add_subcommand("config", "the daemon's settings and where each comes from");
  AddAllNodes(*app.add_subcommand("version", "versions of epctl and of the daemon"), options);
  CLI::App& why = *app.add_subcommand(
      "why", "who waits for whom in a group and since when, and what each rank did last");
  AddGroup(why, options, true);
  why.add_flag("--history", options.all_past,
               "all that is kept of the past, also what went well on every rank");
}

}  // namespace

ParsedOptions ParseOptions(std::vector<std::string> args) {
  Options options;
  CLI::App app("epctl: look at and steer a node's expert-parallelism daemon (epd)", "epctl");
  app.fallthrough();
  app.require_subcommand(1);
  AddGlobalOptions(app, options);
  AddCommands(app, options);
  app.footer(ExitCodeHelp());
  // An option whose value may be left out would swallow the word that follows, so the value is
  // always written out.
  for (std::string& arg : args) {
    if (arg == "--watch") arg = absl::StrCat("--watch=", kDefaultInterval);
  }
  std::reverse(args.begin(), args.end());  // CLI11 takes them last first.
  try {
    app.parse(args);
  } catch (const CLI::CallForHelp&) {
    const auto chosen = app.get_subcommands();
    return {std::nullopt, chosen.empty() ? app.help() : chosen[0]->help("epctl"), true};
  } catch (const CLI::ParseError& error) {
    const bool is_unknown = app.get_subcommands().empty() && !app.remaining().empty();
    const std::string wrong =
        is_unknown ? absl::StrCat("unknown command '", app.remaining()[0], "'") : error.what();
    return {std::nullopt, absl::StrCat("epctl: ", wrong, "\nRun 'epctl --help' for the usage.\n"),
            false};
  }
  options.command = app.get_subcommands()[0]->get_name();
  if (options.all_nodes) options.command += " --all-nodes";
  return {std::move(options), "", false};
}

}  // namespace epd::cli
