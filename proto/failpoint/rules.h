// What a failpoint does, and when: read from text, and decided without a clock, a signal or a file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace epd::failpoint {

enum class Kind { kNone, kKill, kStop, kDelay, kError, kDrop, kDuplicate, kReorder, kFlip, kJump };

struct Action {
  Kind kind = Kind::kNone;
  int64_t nanoseconds = 0;  // Of delay and jump; a jump may be negative.
};

// `action` at hit number `first` of `point`, counted from 1; with `onwards` at all later ones, too.
struct Rule {
  std::string point;
  Action action;
  uint64_t first = 1;
  bool onwards = false;
};

// Reads rules of the form POINT=ACTION[:TIME][@HIT[+]], between them ';' or new lines:
//   worker.record.decide=kill@3    epd.view.send=drop@1+    client.pull.begin=delay:200ms
// TIME is a whole number with ns, us, ms or s; delay and jump need one, no other action takes one.
// Returns what is wrong, naming the rule; "": `rules` holds them.
std::string Parse(std::string_view text, std::vector<Rule>* rules);

// What happens at hit number `hit` of `point`: what the first rule that fits says.
Action Decide(const std::vector<Rule>& rules, std::string_view point, uint64_t hit);

// As it stands in a rule: "kill".
std::string_view Name(Kind kind);

}  // namespace epd::failpoint
