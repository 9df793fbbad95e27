// Protobuf messages as JSON with the protos' own snake_case names; fields with default values are
// printed too, so that a script may rely on every name. 64-bit integers are strings and durations
// are "1.5s", as protobuf's JSON mapping says.
#pragma once

#include <google/protobuf/message.h>

#include <string>

namespace epd::cli {

// Ends with a newline. `one_line` for streams: one object per line.
std::string ToJson(const google::protobuf::Message& message, bool one_line);

// JSON schema (draft 2020-12) of ToJson's output for messages of `descriptor`. Message types stand
// under "$defs".
std::string JsonSchema(const google::protobuf::Descriptor& descriptor, const std::string& title);

}  // namespace epd::cli
