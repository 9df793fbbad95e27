// Scripts for bash, zsh and fish. All words come from the command line's own table; texts are quoted for the shell.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/cli/command_line.h"

namespace epd::cli {
namespace {

// In bash and zsh.
constexpr char kGroups[] =
    "_epctl_groups() { epctl groups --timeout 1s 2>/dev/null | awk 'NR > 1 { print $1 }'; }\n";
constexpr char kAskGroups[] = "(epctl groups --timeout 1s 2>/dev/null | awk 'NR > 1 { print $1 }')";

std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::string Names(const std::vector<OptionText>& options) {
  return absl::StrJoin(options, " ", [](std::string* out, const OptionText& option) {
    absl::StrAppend(out, absl::StrJoin(option.names, " "));
  });
}

std::string CommandNames(const CommandLine& line, const std::string& separator) {
  return absl::StrJoin(line.commands, separator, [](std::string* out, const CommandText& command) {
    absl::StrAppend(out, command.name);
  });
}

// ---- bash ----

// How the words after an option that takes a value, or of a positional, are found.
std::string BashWords(const OptionText& option) {
  if (option.is_file()) return "COMPREPLY=($(compgen -f -- \"$cur\"))";
  if (!option.choices.empty()) {
    return absl::StrCat("COMPREPLY=($(compgen -W ", Quoted(absl::StrJoin(option.choices, " ")),
                        " -- \"$cur\"))");
  }
  return ":";
}

std::string BashValues(const std::string& command, const std::vector<OptionText>& options) {
  std::string text;
  for (const OptionText& option : options) {
    if (option.value.empty()) continue;
    const std::string patterns =
        absl::StrJoin(option.names, "|", [&](std::string* out, const std::string& name) {
          absl::StrAppend(out, command, ":", name);
        });
    absl::StrAppend(&text, "    ", patterns, ") ", BashWords(option), "; return ;;\n");
  }
  return text;
}

std::string Bash(const CommandLine& line) {
  std::string text =
      absl::StrCat("# bash completion of epctl: source <(epctl completion bash)\n", kGroups, R"(
_epctl() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= i
  COMPREPLY=()
  # "--name=value" comes as three words.
  if [[ $cur == = ]]; then
    cur=
  elif [[ $prev == = ]]; then
    prev=${COMP_WORDS[COMP_CWORD-2]}
  fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    case ${COMP_WORDS[i]} in
    )",
                   CommandNames(line, "|"), R"()
      command=${COMP_WORDS[i]}
      break
      ;;
    esac
  done
  case $command:$prev in
)",
                   BashValues("*", line.options));
  for (const CommandText& command : line.commands)
    absl::StrAppend(&text, BashValues(command.name, command.options));
  absl::StrAppend(&text, "  esac\n  local options=", Quoted(Names(line.options)), " words=\n",
                  "  case $command in\n    '') words=", Quoted(CommandNames(line, " ")), " ;;\n");
  for (const CommandText& command : line.commands) {
    std::string words;
    if (command.positional.has_value()) {
      words = command.positional->choices.empty()
                  ? "[[ $cur == -* ]] || words=$(_epctl_groups); "
                  : absl::StrCat("words=", Quoted(absl::StrJoin(command.positional->choices, " ")),
                                 "; ");
    }
    absl::StrAppend(&text, "    ", command.name, ") ", words,
                    "options+=", Quoted(absl::StrCat(" ", Names(command.options))), " ;;\n");
  }
  absl::StrAppend(&text, R"(  esac
  [[ $cur != -* ]] || words=$options
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -F _epctl epctl
)");
  return text;
}

// ---- zsh ----

// In an argument's description some characters mean something.
std::string ZshText(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

std::string ZshAction(const OptionText& option) {
  if (option.is_file()) return "_files";
  if (option.choices.empty()) return " ";
  return absl::StrCat("(", absl::StrJoin(option.choices, " "), ")");
}

std::string ZshOptions(const std::vector<OptionText>& options, const std::string& indent) {
  std::string text;
  for (const OptionText& option : options) {
    for (const std::string& name : option.names) {
      const bool is_long = name.size() > 2;
      const std::string value =
          option.value.empty() ? ""
                               : absl::StrCat(":", ZshText(option.value), ":", ZshAction(option));
      absl::StrAppend(
          &text, indent,
          Quoted(absl::StrCat(option.names.size() > 1
                                  ? absl::StrCat("(", absl::StrJoin(option.names, " "), ")")
                                  : "",
                              name, is_long && !option.value.empty() ? "=" : "", "[",
                              ZshText(option.help), "]", value)),
          " \\\n");
    }
  }
  return text;
}

std::string Zsh(const CommandLine& line) {
  std::string text =
      absl::StrCat("#compdef epctl\n# zsh completion of epctl: epctl completion zsh > ",
                   "a folder of $fpath/_epctl\n", kGroups, R"(
_epctl() {
  local context state state_descr line
  typeset -A opt_args
  local -a common=(
)");
  std::string common = ZshOptions(line.options, "    ");
  absl::StrAppend(&text, absl::StrReplaceAll(common, {{" \\\n", "\n"}}), "  )\n",
                  "  _arguments -C $common '1: :->command' '*:: :->rest'\n  case $state in\n",
                  "  command)\n    local -a commands=(\n");
  for (const CommandText& command : line.commands) {
    absl::StrAppend(&text, "      ", Quoted(absl::StrCat(command.name, ":", ZshText(command.help))),
                    "\n");
  }
  absl::StrAppend(
      &text, "    )\n    _describe command commands\n    ;;\n  rest)\n    case $words[1] in\n");
  for (const CommandText& command : line.commands) {
    std::string positional;
    if (command.positional.has_value()) {
      positional =
          command.positional->choices.empty()
              ? " '1:group:($(_epctl_groups))'"
              : absl::StrCat(" ", Quoted(absl::StrCat("1: :", ZshAction(*command.positional))));
    }
    absl::StrAppend(&text, "    ", command.name, ")\n      _arguments $common \\\n",
                    ZshOptions(command.options, "        "), "       ", positional, "\n      ;;\n");
  }
  absl::StrAppend(
      &text,
      "    esac\n    ;;\n  esac\n}\n"
      // Read as a file of $fpath it is the function's first call; sourced it is not.
      "if [[ $funcstack[1] == _epctl ]]; then _epctl \"$@\"; else compdef _epctl epctl; fi\n");
  return text;
}

// ---- fish ----

std::string FishOptions(const std::vector<OptionText>& options, const std::string& when) {
  std::string text;
  for (const OptionText& option : options) {
    absl::StrAppend(&text, "complete -c epctl", when);
    for (const std::string& name : option.names) {
      const bool is_long = name.size() > 2;
      absl::StrAppend(&text, is_long ? " -l " : " -s ",
                      absl::StripPrefix(name, is_long ? "--" : "-"));
    }
    if (!option.value.empty()) text += option.is_file() ? " -r -F" : " -x";
    if (!option.choices.empty())
      absl::StrAppend(&text, " -a ", Quoted(absl::StrJoin(option.choices, " ")));
    absl::StrAppend(&text, " -d ", Quoted(option.help), "\n");
  }
  return text;
}

std::string Fish(const CommandLine& line) {
  std::string text = absl::StrCat(
      "# fish completion of epctl: epctl completion fish > ~/.config/fish/completions/epctl.fish\n"
      "complete -c epctl -f\n",
      FishOptions(line.options, ""));
  for (const CommandText& command : line.commands) {
    absl::StrAppend(&text, "complete -c epctl -n __fish_use_subcommand -a ", command.name, " -d ",
                    Quoted(command.help), "\n");
    const std::string when = absl::StrCat(" -n '__fish_seen_subcommand_from ", command.name, "'");
    text += FishOptions(command.options, when);
    if (!command.positional.has_value()) continue;
    const std::vector<std::string>& choices = command.positional->choices;
    absl::StrAppend(&text, "complete -c epctl", when, " -a ",
                    Quoted(choices.empty() ? kAskGroups : absl::StrJoin(choices, " ")), "\n");
  }
  return text;
}

}  // namespace

std::string CompletionScript(const CommandLine& line, const std::string& shell) {
  if (shell == "zsh") return Zsh(line);
  return shell == "fish" ? Fish(line) : Bash(line);
}

}  // namespace epd::cli
