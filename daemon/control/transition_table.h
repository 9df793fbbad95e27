// A state machine as data: which event leads from which state to which, and that everything else is
// illegal.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string_view>

namespace epd {

// One line of a table: `event` leads to `to` from each of these states.
template <typename State, typename Event>
struct TransitionRow {
  Event event;
  State to;
  std::initializer_list<State> from;
};

// A full (state, event) matrix made from rows at compile time. Both enums are dense, start at 0 and
// end in kCount.
template <typename State, typename Event>
class TransitionTable {
 public:
  static constexpr size_t kNumStates = static_cast<size_t>(State::kCount);
  static constexpr size_t kNumEvents = static_cast<size_t>(Event::kCount);

  // A pair given twice does not compile (in a constant expression).
  constexpr TransitionTable(std::initializer_list<TransitionRow<State, Event>> rows) {
    for (const auto& [event, to, states] : rows) {
      for (const State from : states) {
        auto& cell = next_[static_cast<size_t>(from)][static_cast<size_t>(event)];
        if (cell.has_value()) throw "a (state, event) pair is listed twice";
        cell = to;
      }
    }
  }

  // The next state, or nothing when the event is illegal in this state.
  constexpr std::optional<State> Next(State from, Event event) const {
    return next_[static_cast<size_t>(from)][static_cast<size_t>(event)];
  }

 private:
  std::array<std::array<std::optional<State>, kNumEvents>, kNumStates> next_{};
};

// The name of one of an enum's values, in their order; `none` for what is no value.
template <typename Enum, size_t N>
constexpr std::string_view NameIn(const std::string_view (&names)[N], Enum value,
                                  std::string_view none) {
  static_assert(N == static_cast<size_t>(Enum::kCount), "one name for each value");
  return value < Enum::kCount ? names[static_cast<size_t>(value)] : none;
}

}  // namespace epd
