// Colours, on terminals only.
#pragma once

#include <functional>
#include <string>

namespace epd::cli {

// Whether a stream takes them: it is a terminal that is not "dumb", and NO_COLOR is unset or empty (no-color.org).
bool UsesColours(bool is_tty, const std::function<const char*(const char*)>& getenv);

// A table for people with what is bad in red, what is lost in yellow and what is well in green: the health of a node, the
// results of doctor, problems. Names that clients chose are never looked at.
std::string Coloured(const std::string& table);

}  // namespace epd::cli
