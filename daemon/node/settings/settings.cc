// Reads flags and file itself. CLI11, which epctl uses, keeps neither a value's origin nor its line,
// takes unknown names and lines without '=' of a file in silence, and reads `--listen= --spin=1ms`
// as the value "--spin=1ms" of `listen`: what would go are 50 lines, what would come to get these
// back are more.
#include "daemon/node/settings/settings.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "daemon/node/settings/peers.h"
#include "daemon/node/settings/settings_table.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/text.h"

namespace epd {
namespace {

// A value and where it was written.
struct Given {
  std::string name;
  std::string value;
  Origin origin;
  std::string where;  // "flag --spin", "line 3 of /etc/epd.conf".
  size_t number = 0;  // Of its argument or line.
};

std::string Canonical(absl::string_view name) { return absl::StrReplaceAll(name, {{"-", "_"}}); }

size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t best = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = std::exchange(row[j], best);
    }
  }
  return row[b.size()];
}

absl::Status Unknown(const Given& given, const std::vector<SettingRow>& table) {
  const auto nearest = absl::c_min_element(table, [&](const SettingRow& a, const SettingRow& b) {
    return EditDistance(a.name, given.name) < EditDistance(b.name, given.name);
  });
  return absl::InvalidArgumentError(absl::StrCat(given.where, ": there is no setting '", given.name,
                                                 "'; did you mean '", nearest->name,
                                                 "'? `epd --help` lists all"));
}

// Values reach workers' messages, other nodes and the log as they are.
constexpr size_t kMaxValueBytes = 32 << 10;

absl::Status Assign(const SettingRow& row, const std::string& value, Settings& settings) {
  if (text::Clean(value, kMaxValueBytes) != value) {
    return absl::InvalidArgumentError(absl::StrCat(
        "got '", text::Clean(value, limits::kNameBytes), "' (", value.size(),
        " bytes), expected UTF-8 without control characters, at most ", kMaxValueBytes, " bytes"));
  }
  if (row.kind.store(value, settings)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("got '", value, "', expected ", row.kind.expected));
}

absl::StatusOr<std::vector<Given>> ReadFile(const std::string& path) {
  // A folder opens as a file does, and reads as an empty one.
  if (std::filesystem::is_directory(path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("flag --config: got the folder '", path, "', expected a file in it"));
  }
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("flag --config: cannot read '", path, "'"));
  std::vector<Given> given;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    absl::string_view text = absl::StripAsciiWhitespace(line);
    if (text.empty() || text[0] == '#' || text[0] == ';') continue;
    const std::string where = absl::StrCat("line ", number, " of ", path);
    const size_t equals = text.find('=');
    if (equals == absl::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": got '", text, "', expected `name = value  # comment`"));
    }
    absl::string_view value = text.substr(equals + 1);
    value = absl::StripAsciiWhitespace(value.substr(0, value.find(" #")));
    if (value.size() >= 2 && value.front() == '"' && value.back() == '"')
      value = value.substr(1, value.size() - 2);
    given.push_back({Canonical(absl::StripAsciiWhitespace(text.substr(0, equals))),
                     std::string(value), Origin::kFile, where, static_cast<size_t>(number)});
  }
  return given;
}

absl::StatusOr<std::vector<Given>> ReadFlags(const std::vector<std::string>& args,
                                             ParsedSettings& parsed) {
  std::vector<Given> flags;
  for (size_t i = 0; i < args.size(); ++i) {
    absl::string_view arg = args[i];
    if (!absl::ConsumePrefix(&arg, "--") || arg.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("got '", args[i], "', expected --name=value; see `epd --help`"));
    }
    const size_t equals = arg.find('=');
    const std::string name = Canonical(arg.substr(0, equals));
    const bool is_switch = name == "help" || name == "version" || name == "print_config";
    if (is_switch && equals != absl::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat("flag --", name, ": takes no value"));
    }
    if (is_switch) {
      (name == "help"      ? parsed.help
       : name == "version" ? parsed.version
                           : parsed.print_config) = true;
      continue;
    }
    const size_t number = i + 1;
    std::string value;
    if (equals != absl::string_view::npos) {
      value = std::string(arg.substr(equals + 1));
    } else if (i + 1 < args.size()) {
      value = args[++i];
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("flag --", name, ": the value is missing, expected --", name, "=..."));
    }
    flags.push_back({name, value, Origin::kFlag, absl::StrCat("flag --", name), number});
  }
  return flags;
}

// A flag over a line of the file is no second time.
absl::Status CheckGivenOnce(const std::vector<Given>& all) {
  std::map<std::string, const Given*> first;
  for (const Given& given : all) {
    const auto [known, is_new] = first.emplace(given.name, &given);
    if (is_new) continue;
    const Given& before = *known->second;
    const absl::string_view unit = given.origin == Origin::kFlag ? "argument " : "line ";
    return absl::InvalidArgumentError(absl::StrCat(
        given.where, ": '", given.name, "' is given twice, in ", unit, before.number, " ('",
        before.value, "') and ", unit, given.number, " ('", given.value, "'); keep one of them"));
  }
  return absl::OkStatus();
}

// Splits "--config" off the flags and reads its file.
absl::StatusOr<std::vector<Given>> TakeFile(std::vector<Given>& flags) {
  std::vector<Given> from_file;
  for (const Given& flag : flags) {
    if (flag.name != "config") continue;
    absl::StatusOr<std::vector<Given>> file = ReadFile(flag.value);
    if (!file.ok()) return file;
    if (absl::Status bad = CheckGivenOnce(*file); !bad.ok()) return bad;
    from_file.insert(from_file.end(), file->begin(), file->end());
  }
  std::erase_if(flags, [](const Given& g) { return g.name == "config"; });
  return from_file;
}

void FillDerived(ParsedSettings& parsed) {
  Settings& s = parsed.settings;
  if (!s.grpc_socket.empty()) return;
  absl::string_view stem = s.socket;
  const bool has_ending = absl::ConsumeSuffix(&stem, ".sock");
  s.grpc_socket = absl::StrCat(stem, "-grpc", has_ending ? ".sock" : "");
  for (EffectiveSetting& e : parsed.effective) {
    if (e.name == "grpc_socket") e.value = s.grpc_socket;
  }
}

absl::Status CheckEtcd(const Settings& s) {
  if (s.etcd_cert.empty() != s.etcd_key.empty())
    return absl::InvalidArgumentError("etcd_cert and etcd_key: got one of them, expected both");
  if (s.etcd_user.empty() != s.etcd_password_file.empty())
    return absl::InvalidArgumentError(
        "etcd_user and etcd_password_file: got one of them, expected both");
  const bool any = !s.etcd_cert.empty() || !s.etcd_user.empty();
  if (any && s.etcd_ca.empty())
    return absl::InvalidArgumentError(
        "etcd_ca: got nothing, expected the file of etcd's authority: neither certificates nor "
        "passwords are for plain connections");
  if (!s.etcd_ca.empty() && s.rendezvous.empty())
    return absl::InvalidArgumentError("etcd_ca: expected rendezvous=etcd://... with it");
  return absl::OkStatus();
}

// Who coordinates, so that all nodes may have the same settings.
absl::Status ChooseCoordinator(const MachineFacts& facts, Settings& s) {
  if (!s.peers.empty() + !s.coordinator.empty() + !s.rendezvous.empty() > 1) {
    return absl::InvalidArgumentError(
        "peers, coordinator and rendezvous: got several, expected at most one of them");
  }
  if (absl::Status bad = CheckEtcd(s); !bad.ok()) return bad;
  if (!s.peers.empty()) {
    absl::StatusOr<std::string> first = FirstPeer(s.peers, facts.slurm_nodes);
    if (!first.ok()) return first.status();
    s.coordinator = *std::move(first);
  }
  const auto part = [](const std::string& address, bool host) {
    const size_t colon = std::min(address.rfind(':'), address.size());
    return host ? address.substr(0, colon) : address.substr(colon);
  };
  const std::string& reached_at = s.advertise.empty() ? s.listen : s.advertise;
  const bool same_port =
      !reached_at.empty() && part(reached_at, false) == part(s.coordinator, false);
  if (same_port && IsThisNode(s.coordinator, {s.node, facts.host_name, part(reached_at, true)}))
    s.coordinator.clear();
  return absl::OkStatus();
}

}  // namespace

absl::Duration NodeSilence(const Settings& settings) {
  return settings.node_silence > absl::ZeroDuration() ? settings.node_silence
                                                      : settings.heartbeat * 5 / 2;
}

absl::string_view Name(Origin origin) {
  constexpr absl::string_view kNames[] = {"default", "file", "flag"};
  return kNames[static_cast<size_t>(origin)];
}

absl::StatusOr<ParsedSettings> ParseSettings(const std::vector<std::string>& args,
                                             const MachineFacts& facts) {
  ParsedSettings parsed;
  const std::vector<SettingRow> table = SettingTable(facts);
  absl::StatusOr<std::vector<Given>> flags = ReadFlags(args, parsed);
  if (!flags.ok()) return flags.status();
  if (absl::Status bad = CheckGivenOnce(*flags); !bad.ok()) return bad;
  absl::StatusOr<std::vector<Given>> all = TakeFile(*flags);
  if (!all.ok()) return all.status();
  all->insert(all->end(), flags->begin(), flags->end());

  for (const SettingRow& row : table) {
    parsed.effective.push_back({row.name, row.default_value, Origin::kDefault, row.help});
    if (absl::Status bad = Assign(row, row.default_value, parsed.settings); !bad.ok()) {
      return absl::InternalError(absl::StrCat("the default of '", row.name, "': ", bad.message()));
    }
  }
  for (const Given& given : *all) {
    const auto row =
        absl::c_find_if(table, [&](const SettingRow& r) { return r.name == given.name; });
    if (row == table.end()) return Unknown(given, table);
    if (absl::Status bad = Assign(*row, given.value, parsed.settings); !bad.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(given.where, ": ", bad.message()));
    }
    EffectiveSetting& effective = parsed.effective[static_cast<size_t>(row - table.begin())];
    effective.value = given.value;
    effective.origin = given.origin;
  }
  if (parsed.settings.worker_backoff_max < parsed.settings.worker_backoff_min) {
    return absl::InvalidArgumentError(absl::StrCat(
        "worker_backoff_max: got ", absl::FormatDuration(parsed.settings.worker_backoff_max),
        ", expected at least worker_backoff_min, ",
        absl::FormatDuration(parsed.settings.worker_backoff_min)));
  }
  FillDerived(parsed);
  if (absl::Status bad = ChooseCoordinator(facts, parsed.settings); !bad.ok()) return bad;
  for (EffectiveSetting& e : parsed.effective) {
    if (e.name == "coordinator") e.value = parsed.settings.coordinator;
  }
  return parsed;
}

std::string HelpText(const MachineFacts& facts) {
  std::string text =
      "epd, the per-node daemon for expert-parallel exchanges: serves local clients, supervises "
      "epd-worker.\n\n"
      "usage: epd [--config=FILE] [--name=value ...]\n\n"
      "  --config=FILE     read settings from FILE, lines of `name = value`; flags win over the "
      "file\n"
      "  --print-config    print the effective settings with their origin, and end\n"
      "  --version         print the version, and end\n"
      "  --help            print this, and end\n\nsettings:\n\n";
  for (const SettingRow& row : SettingTable(facts)) {
    absl::StrAppend(&text, "  --", row.name, "=",
                    row.default_value.empty() ? "(empty)" : row.default_value, "\n      ", row.help,
                    "\n      Expects ", row.kind.expected, ".",
                    row.live ? " Read again on SIGHUP.\n" : "\n");
  }
  return text;
}

std::string PrintConfig(const ParsedSettings& parsed) {
  std::string text;
  for (const EffectiveSetting& e : parsed.effective) {
    absl::StrAppendFormat(&text, "%-45s # %s\n", absl::StrCat(e.name, " = ", e.value),
                          Name(e.origin));
  }
  return text;
}

}  // namespace epd
