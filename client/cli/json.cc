#include "client/cli/json.h"

#include <google/protobuf/util/json_util.h>

#include <stdexcept>

namespace epd::cli {

std::string ToJson(const google::protobuf::Message& message, bool one_line) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = !one_line;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(message, &text, options);
  // Fails only for strings that are no UTF-8, which proto3 refuses when parsing.
  if (!status.ok()) throw std::logic_error("a message without JSON: " + status.ToString());
  if (text.empty() || text.back() != '\n') text += "\n";
  return text;
}

}  // namespace epd::cli
