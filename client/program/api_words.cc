#include "client/program/api_words.h"

#include <cctype>
#include <cstdlib>
#include <utility>

namespace epd::program {
namespace {

using client::Code;

// What the daemon says of ranks whose functions are not the same.
constexpr std::string_view kOtherPrograms = "in different programs";

// The first row that fits is the one.
constexpr Remedy kRemedies[] = {
    {Code::kAborted, "", "call again", "call again: repeat the step on all ranks, from prepare on"},
    {Code::kUnavailable, "no epd answers", "call again", ""},
    {Code::kUnavailable, "", "call again",
     "call again: repeat the step on all ranks, which then join again"},
    {Code::kDeadlineExceeded, "", "call again",
     "call again once the ranks that are missing are there"},
    {Code::kFailedPrecondition, "two executions", "no",
     "launch the executions of a program from one thread"},
    {Code::kFailedPrecondition, "not bootstrapped in this process", "connect again", ""},
    {Code::kFailedPrecondition, "has no group", "connect again", ""},
    {Code::kFailedPrecondition, "was left", "connect again",
     "connect again: group.connect(), or ep_bootstrap for the default group"},
    {Code::kFailedPrecondition, "drain", "connect again",
     "connect again when the operator is done: group.finalize(); group.connect()"},
    {Code::kFailedPrecondition, "closed by an operator", "connect again",
     "connect again when the operator is done: group.finalize(); group.connect()"},
    {Code::kInvalidArgument, "do not agree in", "no",
     "call the operation with the same static arguments on all ranks"},
    {Code::kInvalidArgument, kOtherPrograms, "no",
     "run the same functions in one order on all ranks, or give the calls name="},
    {Code::kInvalidArgument, "specs differ", "no", "give every rank the same arguments"},
    {Code::kResourceExhausted, "would receive", "no",
     "raise recv_capacity_per_rank, balance the routing, or make the group with "
     "drop_on_overflow=True"},
    {Code::kDataLoss, "", "no", "pass handle_mem as prepare or dispatch returned it"},
    {Code::kUnimplemented, "", "no", "install the same version of epd on both sides"},
};
constexpr Remedy kNone = {Code::kOk, "", "no", ""};

struct Replacement {
  std::string_view from;
  std::string_view to;
};

// Whole words.
constexpr Replacement kNames[] = {
    {"hidden", "hidden_dim"},
    {"recv_capacity", "recv_capacity_per_rank"},
    {"num_ranks", "ranks"},
    {"idx_bytes", "topk_idx"},
    {"handle_mem_bytes", "handle_mem"},
    {"row_bytes", "the bytes of a row"},
    {"spec_hash", "the sizes of the group"},
    {"plan_id", "handle_mem"},
    {"has_weights", "topk_weights"},
    {"EPD_DTYPE_FLOAT32", "float32"},
    {"EPD_DTYPE_BFLOAT16", "bfloat16"},
    {"EPD_DTYPE_FLOAT16", "float16"},
};

// What the remedy says already, or what a call does by itself.
constexpr Replacement kPhrases[] = {
    {"spec.", ""},
    {"; finalise and join again", ""},
    {"; connect and join again", ""},
    {" and join again", ""},
    {" or join again", ""},
    {"; join again", ""},
    {"; call again", ""},
    {"; run it again", ""},
    {": prepare again and repeat the step", ""},
    {"; raise the receive capacity, balance the routing, or set drop_on_overflow", ""},
    {"; call the operation alike on all ranks", ""},
    {"; run the same programs on all ranks, in one order, or give the calls names", ""},
    {"; give every rank the same spec", ""},
};

// Ends what a Python client refused itself and told the others (epd.torch's _operands.py), which has the public names.
constexpr std::string_view kOfThePackage = "; correct it on this rank, and call again on all ranks";

bool IsWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

bool IsWholeWord(const std::string& text, size_t at, size_t length) {
  const size_t end = at + length;
  return (at == 0 || !IsWord(text[at - 1])) && (end == text.size() || !IsWord(text[end]));
}

void ReplaceAll(std::string& text, const Replacement& rule, bool whole_words) {
  for (size_t at = text.find(rule.from); at != std::string::npos; at = text.find(rule.from, at)) {
    if (whole_words && !IsWholeWord(text, at, rule.from.size())) {
      at += rule.from.size();
      continue;
    }
    text.replace(at, rule.from.size(), rule.to);
    at += rule.to.size();
  }
}

// "<before>5<between>6" -> "<argument> is 10, ... 12" of two ranks: what the caller passed counts all shards.
void SayGlobalTokens(std::string& text, const CallWords& call) {
  constexpr std::string_view kBefore = "num_tokens: got ";
  constexpr std::string_view kBetween = ", handle_mem was prepared for ";
  const size_t begin = text.find(kBefore);
  if (begin == std::string::npos) return;
  const char* const first = text.c_str() + begin + kBefore.size();
  char* after = nullptr;
  const long long got = std::strtoll(first, &after, 10);
  if (std::string_view(after).substr(0, kBetween.size()) != kBetween) return;
  const long long prepared = std::strtoll(after + kBetween.size(), &after, 10);
  const size_t end = static_cast<size_t>(after - text.c_str());
  std::string said = std::string(call.tokens_argument) + " is " +
                     std::to_string(got * call.shards) + ", but prepare was given " +
                     std::to_string(prepared * call.shards) + " tokens for this handle_mem";
  if (call.shards > 1) {
    said += " (" + std::to_string(got) + " and " + std::to_string(prepared) + " of each of " +
            std::to_string(call.shards) + " ranks)";
  }
  text.replace(begin, end - begin, said);
}

// Takes " key=value" away wherever the text says again what its first one says.
void SayOnce(std::string& text, std::string_view key) {
  const size_t first = text.find(key);
  if (first == std::string::npos) return;
  const size_t end = text.find_first_of(" :;,)", first);
  if (end == std::string::npos) return;
  const std::string said = " " + text.substr(first, end - first);
  for (size_t at = text.find(said, end); at != std::string::npos; at = text.find(said, at)) {
    const size_t after = at + said.size();
    if (after == text.size() || std::string_view(" :;,)").find(text[after]) != std::string::npos) {
      text.erase(at, said.size());
    } else {
      at = after;
    }
  }
}

// Where the text begins behind "[epd:CODE] group=... phase=...: ".
size_t BodyOf(const std::string& text) {
  if (text.rfind("[epd:", 0) != 0) return 0;
  const size_t bracket = text.find("] ");
  if (bracket == std::string::npos) return 0;
  size_t at = bracket + 2;
  while (at < text.size()) {
    const size_t end = text.find(' ', at);
    const size_t equals = text.find('=', at);
    if (end == std::string::npos || equals > end) break;
    at = end + 1;
    if (text[end - 1] == ':') break;
  }
  return at;
}

}  // namespace

const Remedy& FindRemedy(client::Code code, std::string_view text) {
  for (const Remedy& remedy : kRemedies) {
    if (remedy.code == code && text.find(remedy.when) != std::string_view::npos) return remedy;
  }
  return kNone;
}

std::string InApiWords(client::Code code, std::string text, const CallWords* call) {
  const Remedy& remedy = FindRemedy(code, text);
  if (call != nullptr) SayGlobalTokens(text, *call);
  const bool forming = text.find("phase=forming") != std::string::npos;
  if (text.find(kOfThePackage) == std::string::npos) {
    for (const Replacement& name : kNames) ReplaceAll(text, name, /*whole_words=*/true);
  }
  if (forming) ReplaceAll(text, {"top_k", "max_top_k"}, /*whole_words=*/true);
  for (const Replacement& phrase : kPhrases) ReplaceAll(text, phrase, /*whole_words=*/false);
  for (const std::string_view key : {"group=", "tenant=", "epoch="}) SayOnce(text, key);
  ReplaceAll(text, {":: ", ": "}, /*whole_words=*/false);  // Of a place that was said once.
  if (!remedy.text.empty() && text.find(remedy.text) == std::string::npos) {
    text.insert(BodyOf(text), std::string(remedy.text) + ": ");
    if (call != nullptr && remedy.when == kOtherPrograms) {
      text += "; this rank runs " + std::string(call->program);
    }
  }
  return text;
}

}  // namespace epd::program
