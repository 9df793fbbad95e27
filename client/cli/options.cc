#include "client/cli/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "client/cli/command_line.h"
#include "client/cli/error_table.h"
#include "client/cli/exit_code.h"
#include "client/cli/version.h"

namespace epd::cli {
namespace {

constexpr char kDefaultInterval[] = "2s";
constexpr absl::Duration kTopInterval = absl::Seconds(2);

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

// What an option may be, where that is known.
using Choices = std::map<const CLI::Option*, std::vector<std::string>>;

void AddGlobalOptions(CLI::App& app, Options& options, Choices& choices) {
  CLI::Option* const output = app.add_option_function<std::string>(
      "-o,--output",
      [&options](const std::string& text) {
        options.output = text == "json" ? Output::kJson : Output::kTable;
      },
      "table or json");
  choices[output] = {"table", "json"};
  output->check(CLI::IsMember(choices[output], CLI::ignore_case).description(""))
      ->type_name("FORMAT");
  app.add_option("--socket", options.socket,
                 "the daemon's attach socket (default: EPD_SOCKET, else /run/epd/epd.sock, else "
                 "this user's private one)")
      ->type_name("PATH");
  app.add_option("--address", options.address, "the daemon's TCP address instead of a socket")
      ->type_name("HOST:PORT")
      ->excludes("--socket");
  const struct {
    const char* option;
    const char* variable;
    std::string& path;
    const char* help;
  } files[] = {
      {"--tls-ca", "EPD_TLS_CA", options.tls_ca,
       "with --address: who signs the cluster's certificates"},
      {"--tls-cert", "EPD_TLS_CERT", options.tls_cert, "the certificate that says who you are"},
      {"--tls-key", "EPD_TLS_KEY", options.tls_key, "its private key, a file of mode 0600"},
  };
  for (const auto& file : files)
    app.add_option(file.option, file.path, file.help)->type_name("FILE")->envname(file.variable);
  for (const auto& file : files) {
    for (const auto& other : files)
      if (&other != &file) app.get_option(file.option)->needs(other.option);
  }
  AddDuration(app, "--timeout", "how long to wait for an answer (default 5s)",
              [&options](absl::Duration value) { options.timeout = value; });
  AddDuration(app, "--watch", "repeat every interval (--watch alone: 2s)",
              [&options](absl::Duration value) { options.watch = value; });
  app.add_option("--count", options.watch_count, "with --watch: how often; 0: until interrupted");
}

enum class Group { kNone, kOptional, kRequired };

struct CommandHelp {
  const char* name;
  Group group;
  const char* help;
};

constexpr CommandHelp kCommands[] = {
    {"status", Group::kNone, "the daemon, its workers, and whether all is well"},
    {"top", Group::kNone,
     "what each group does now, the busiest first; o b f w s n change the order, q ends"},
    {"groups", Group::kOptional, "groups and the state of each"},
    {"sessions", Group::kNone, "attached processes and the ranks that they hold"},
    {"ranks", Group::kOptional, "ranks: who holds each, and in which phase it is"},
    {"memory", Group::kNone, "every byte of staging and shared memory with its owner"},
    {"health", Group::kOptional, "one word per service and group; the exit code says it too"},
    {"doctor", Group::kNone,
     "what is missing or set up badly on this node; works without a daemon"},
    {"drain", Group::kRequired,
     "let a group's open operations finish, refuse new ones, then close it"},
    {"close", Group::kRequired, "end a group at once; its open operations fail"},
    {"create", Group::kRequired, "make a group that waits for its ranks and outlives them"},
    {"plan", Group::kRequired, "the memory that such a group will need; makes nothing"},
    {"config", Group::kNone, "the daemon's settings and where each comes from"},
    {"version", Group::kNone, "versions of epctl and of the daemon"},
    {"why", Group::kOptional,
     "who waits for whom in a group and since when, and what each rank did last; without a name: "
     "in "
     "the one that has waited longest"},
    {"explain", Group::kNone,
     "what an error means and what to do: its number EPD-nnnn, or its code; all without one"},
    {"completion", Group::kNone, "a script that completes words of epctl, for the shell to read"},
    {"man", Group::kNone, "the manual page, for man -l -"},
    {"support-archive", Group::kNone,
     "all that tells why something is as it is, into one file without secrets; also without a "
     "daemon"},
    {"trace", Group::kRequired,
     "what each rank of a group does when, on all nodes, as JSON for ui.perfetto.dev"},
    {"replace", Group::kNone,
     "run the node's epd from its file again, or from another one, in the same process: sessions, "
     "workers and groups go on"},
};

// A number of the group that `create` and `plan` describe in the same words.
struct SizeHelp {
  const char* option;
  void (epd::v1::GroupSpec::*set)(uint32_t);
  bool required;
  const char* help;
};

constexpr SizeHelp kSizes[] = {
    {"--ranks", &epd::v1::GroupSpec::set_num_ranks, true, "places in the group"},
    {"--experts", &epd::v1::GroupSpec::set_num_experts, true,
     "split over the ranks in equal blocks"},
    {"--max-tokens-per-rank", &epd::v1::GroupSpec::set_max_tokens_per_rank, true,
     "of one dispatch"},
    {"--recv-capacity-per-rank", &epd::v1::GroupSpec::set_recv_capacity_per_rank, true, "slots"},
    {"--hidden", &epd::v1::GroupSpec::set_hidden, true, "elements of a token row"},
    {"--top-k", &epd::v1::GroupSpec::set_top_k, false, "largest of any call; 0: 128, the most"},
};

using Words = std::vector<std::pair<std::string, int>>;

struct NameAndHelp {
  const char* name;
  const char* help;
};

// An option that is one of `words`; `set` gets the word's number.
void AddChoice(CLI::App& command, Choices& choices, const NameAndHelp& choice, const Words& words,
               const std::function<void(int)>& set) {
  CLI::Option* const option = command.add_option_function<std::string>(
      choice.name,
      [words, set](const std::string& text) {
        for (const auto& [word, number] : words) {
          if (word == text) set(number);
        }
      },
      choice.help);
  for (const auto& [word, number] : words) choices[option].push_back(word);
  option->check(CLI::IsMember(choices[option]).description(""));
}

void AddSpec(CLI::App& command, Options& options, Choices& choices) {
  epd::v1::GroupSpec& spec = options.spec;
  for (const SizeHelp& size : kSizes) {
    command
        .add_option_function<uint32_t>(
            size.option, [&spec, set = size.set](uint32_t value) { (spec.*set)(value); }, size.help)
        ->required(size.required);
  }
  spec.set_max_token_dtype(epd::v1::DTYPE_BFLOAT16);
  AddChoice(command, choices, {"--dtype", "float32, bfloat16 (default) or float16"},
            {{"float32", epd::v1::DTYPE_FLOAT32},
             {"bfloat16", epd::v1::DTYPE_BFLOAT16},
             {"float16", epd::v1::DTYPE_FLOAT16}},
            [&spec](int dtype) { spec.set_max_token_dtype(static_cast<epd::v1::Dtype>(dtype)); });
  AddChoice(command, choices, {"--executor", "auto (default), client or worker"},
            {{"auto", epd::v1::EXECUTOR_UNSPECIFIED},
             {"client", epd::v1::EXECUTOR_CLIENT},
             {"worker", epd::v1::EXECUTOR_WORKER}},
            [&spec](int who) { spec.set_executor(static_cast<epd::v1::Executor>(who)); });
  command.add_option("--instance", *spec.mutable_instance(), "one run of the job");
  command.add_option("--tenant", *spec.mutable_tenant(), "whose sessions exchange with each other");
  spec.set_backend("auto");
  command.add_option("--backend", *spec.mutable_backend(),
                     "auto (default; the CPU's), cpu, cuda or nccl_ep");
  command.add_flag_callback(
      "--drop-on-overflow", [&spec] { spec.set_drop_on_overflow(true); }, "instead of an error");
}

// Positionals that are no group's name.
void AddWords(CLI::App& app, Options& options, std::string& shell, Choices& choices) {
  CLI::Option* const error =
      app.get_subcommand("explain")->add_option("error", options.error, "EPD-1302, UNAVAILABLE");
  for (const ErrorEntry& entry : ErrorTable()) choices[error].push_back(NumberText(entry.number));
  CLI::Option* const name =
      app.get_subcommand("completion")->add_option("shell", shell, "bash, zsh or fish");
  choices[name] = {std::begin(kShells), std::end(kShells)};
  name->required()->check(CLI::IsMember(choices[name]).description(""));
}

void AddCommands(CLI::App& app, Options& options, Choices& choices) {
  for (const CommandHelp& help : kCommands) {
    CLI::App& command = *app.add_subcommand(help.name, help.help);
    if (help.group == Group::kNone) continue;
    command.add_option("group", options.group, "name of a group")
        ->type_name("NAME")
        ->required(help.group == Group::kRequired);
  }
  for (const char* name : {"status", "version", "support-archive"}) {
    app.get_subcommand(name)->add_flag("--all-nodes", options.all_nodes,
                                       "of every node of the cluster");
  }
  app.get_subcommand("health")
      ->add_flag("--node", options.node_only,
                 "only whether the node itself serves, for probes: 0 or 1, whatever its groups do")
      ->excludes("group");
  CLI::App& top = *app.get_subcommand("top");
  top.add_flag("--once", options.once, "one table, of totals instead of rates; for scripts");
  AddChoice(
      top, choices,
      {"--sort", "the first order: operations (default), bytes, failed, waits, staging or name"},
      {{"operations", 'o'},
       {"bytes", 'b'},
       {"failed", 'f'},
       {"waits", 'w'},
       {"staging", 's'},
       {"name", 'n'}},
      [&options](int order) { options.order = static_cast<char>(order); });
  AddDuration(*app.get_subcommand("drain"), "--deadline",
              "operations still open then are cut off (default 30s)",
              [&options](absl::Duration value) { options.drain_deadline = value; });
  for (const char* name : {"drain", "close"}) {
    app.get_subcommand(name)->add_option("--epoch", options.epoch,
                                         "only if this is the group's epoch; 0: any");
  }
  app.get_subcommand("support-archive")
      ->add_option("file", options.file, "to write, JSON; it must not exist")
      ->type_name("FILE")
      ->required();
  app.get_subcommand("replace")
      ->add_option("--program", options.program,
                   "absolute path of an epd (default: where the one that runs was started from)")
      ->type_name("FILE");
  app.get_subcommand("why")
      ->add_option("--from", options.from, "a file of support-archive instead of the daemon")
      ->type_name("FILE");
  AddDuration(*app.get_subcommand("trace"), "--seconds", "how long to look (default 5s)",
              [&options](absl::Duration value) { options.seconds = value; });
  for (const char* name : {"drain", "close", "why", "trace"}) {
    app.get_subcommand(name)->add_option("--tenant", options.tenant,
                                         "only this one of the group's tenants");
  }
  for (const char* name : {"create", "plan"}) AddSpec(*app.get_subcommand(name), options, choices);
  app.get_subcommand("plan")
      ->add_option("--element-bytes", options.element_bytes,
                   "of rows that dispatch moves, 1 to 8 (default: those of --dtype)")
      ->check(CLI::Range(1, 8).description(""));
  app.get_subcommand("why")->add_flag(
      "--history", options.all_past,
      "all that is kept of the past, also what went well on every rank");
}

OptionText Describe(const CLI::Option& option, const Choices& choices) {
  OptionText text;
  for (const std::string& name : option.get_snames()) text.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) text.names.push_back("--" + name);
  if (option.get_positional()) text.names.push_back(option.get_name());
  if (option.get_type_size_max() > 0) text.value = option.get_type_name();
  text.help = option.get_description();
  if (const auto known = choices.find(&option); known != choices.end())
    text.choices = known->second;
  return text;
}

CommandLine Describe(const CLI::App& app, const Choices& choices) {
  CommandLine line;
  line.help = app.get_description();
  line.exit_codes = ExitCodeHelp();
  for (const CLI::Option* option : app.get_options())
    line.options.push_back(Describe(*option, choices));
  for (const CLI::App* command : app.get_subcommands({})) {
    CommandText& text = line.commands.emplace_back();
    text.name = command->get_name();
    text.help = command->get_description();
    for (const CLI::Option* option : command->get_options()) {
      const OptionText described = Describe(*option, choices);
      if (option->get_positional()) {
        text.positional = described;
        text.needs_positional = option->get_required();
      } else if (option != command->get_help_ptr()) {
        text.options.push_back(described);
      }
    }
  }
  return line;
}

}  // namespace

ParsedOptions ParseOptions(std::vector<std::string> args) {
  Options options;
  CLI::App app("epctl: look at and steer a node's expert-parallelism daemon (epd)", "epctl");
  app.fallthrough();
  app.require_subcommand(0, 1);
  Choices choices;
  std::string shell;
  AddGlobalOptions(app, options, choices);
  AddCommands(app, options, choices);
  AddWords(app, options, shell, choices);
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
  options.overview = app.get_subcommands().empty();
  options.command = options.overview ? "status" : app.get_subcommands()[0]->get_name();
  if (options.command == "completion")
    return {std::nullopt, CompletionScript(Describe(app, choices), shell), true};
  if (options.command == "man")
    return {std::nullopt, ManPage(Describe(app, choices), kVersion), true};
  if (options.all_nodes && options.command != "support-archive") options.command += " --all-nodes";
  if (options.command == "top" && !options.once && !options.watch.has_value() &&
      options.output == Output::kTable) {
    options.watch = kTopInterval;
  }
  return {std::move(options), "", false};
}

}  // namespace epd::cli
