#include "proto/failpoint/rules.h"

#include <array>
#include <charconv>
#include <utility>

namespace epd::failpoint {
namespace {

constexpr std::array<std::string_view, 10> kNames = {
    "none", "kill", "stop", "delay", "error", "drop", "duplicate", "reorder", "flip", "jump"};

constexpr std::array<std::pair<std::string_view, int64_t>, 4> kUnits = {
    {{"ns", 1}, {"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}}};

// Cuts `text` in two at the first `at`, which goes; without one the second part is empty.
std::pair<std::string_view, std::string_view> Cut(std::string_view text, char at) {
  const size_t where = text.find(at);
  if (where == std::string_view::npos) return {text, {}};
  return {text.substr(0, where), text.substr(where + 1)};
}

template <typename Number>
bool ReadWhole(std::string_view text, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

bool ReadTime(std::string_view text, int64_t* nanoseconds) {
  const size_t digits = text.find_first_not_of("-0123456789");
  if (digits == std::string_view::npos) return false;
  int64_t count = 0;
  if (!ReadWhole(text.substr(0, digits), &count)) return false;
  for (const auto& [unit, factor] : kUnits) {
    if (text.substr(digits) == unit) return !__builtin_mul_overflow(count, factor, nanoseconds);
  }
  return false;
}

bool ReadAction(std::string_view text, Action* action) {
  const auto [name, time] = Cut(text, ':');
  for (size_t i = 1; i < kNames.size(); ++i) {
    if (name == kNames[i]) action->kind = static_cast<Kind>(i);
  }
  if (action->kind == Kind::kNone) return false;
  const bool timed = action->kind == Kind::kDelay || action->kind == Kind::kJump;
  const bool has_time = name.size() != text.size();
  return timed ? ReadTime(time, &action->nanoseconds) : !has_time;
}

bool ReadRule(std::string_view text, Rule* rule) {
  const auto [point, what] = Cut(text, '=');
  auto [action, hit] = Cut(what, '@');
  rule->point = point;
  if (action.size() != what.size()) {
    rule->onwards = hit.ends_with('+');
    if (rule->onwards) hit.remove_suffix(1);
    if (!ReadWhole(hit, &rule->first) || rule->first == 0) return false;
  }
  return !point.empty() && ReadAction(action, &rule->action);
}

}  // namespace

std::string Parse(std::string_view text, std::vector<Rule>* rules) {
  rules->clear();
  while (!text.empty()) {
    const size_t end = text.find_first_of(";\n");
    const std::string_view one = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (one.empty()) continue;
    Rule rule;
    if (!ReadRule(one, &rule)) {
      return "failpoint rule: got '" + std::string(one) +
             "', expected POINT=ACTION[:TIME][@HIT[+]] as in worker.record.decide=kill@3";
    }
    rules->push_back(std::move(rule));
  }
  return "";
}

Action Decide(const std::vector<Rule>& rules, std::string_view point, uint64_t hit) {
  for (const Rule& rule : rules) {
    if (rule.point != point) continue;
    if (hit == rule.first || (rule.onwards && hit > rule.first)) return rule.action;
  }
  return {};
}

std::string_view Name(Kind kind) { return kNames[static_cast<size_t>(kind)]; }

}  // namespace epd::failpoint
