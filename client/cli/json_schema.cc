#include <google/protobuf/descriptor.h>

#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/json.h"

namespace epd::cli {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;

constexpr char kDuration[] = R"({"type": "string", "pattern": "^-?[0-9]+(\\.[0-9]+)?s$"})";

std::string EnumType(const EnumDescriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) {
    names.push_back(absl::StrCat("\"", type.value(i)->name(), "\""));
  }
  return absl::StrCat(R"({"enum": [)", absl::StrJoin(names, ", "), "]}");
}

// Collects the message types that a schema refers to, by full name.
class Definitions {
 public:
  std::string Value(const FieldDescriptor& field) {
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
      case FieldDescriptor::CPPTYPE_UINT32:
        return R"({"type": "integer"})";
      case FieldDescriptor::CPPTYPE_INT64:
      case FieldDescriptor::CPPTYPE_UINT64:
        return R"({"type": "string", "pattern": "^-?[0-9]+$"})";
      case FieldDescriptor::CPPTYPE_FLOAT:
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return R"({"type": "number"})";
      case FieldDescriptor::CPPTYPE_BOOL:
        return R"({"type": "boolean"})";
      case FieldDescriptor::CPPTYPE_ENUM:
        return EnumType(*field.enum_type());
      case FieldDescriptor::CPPTYPE_STRING:
        return field.type() == FieldDescriptor::TYPE_BYTES
                   ? R"({"type": "string", "contentEncoding": "base64"})"
                   : R"({"type": "string"})";
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return Reference(*field.message_type());
    }
    return "false";
  }

  // The body of an object schema, without braces. Singular messages may be absent, all else is
  // always printed.
  std::string Object(const Descriptor& type, const std::string& indent) {
    std::vector<std::string> properties;
    std::vector<std::string> required;
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      std::string value = Value(field);
      if (field.is_repeated()) value = absl::StrCat(R"({"type": "array", "items": )", value, "}");
      properties.push_back(absl::StrCat(indent, "    \"", field.name(), "\": ", value));
      if (field.is_repeated() || field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
        required.push_back(absl::StrCat("\"", field.name(), "\""));
      }
    }
    return absl::StrCat(indent, "  \"type\": \"object\",\n", indent, "  \"properties\": {\n",
                        absl::StrJoin(properties, ",\n"), "\n", indent, "  },\n", indent,
                        "  \"required\": [", absl::StrJoin(required, ", "), "]");
  }

  std::string ToString() const {
    std::vector<std::string> parts;
    for (const auto& [name, body] : bodies_) {
      parts.push_back(absl::StrCat("    \"", name, "\": {\n", body, "\n    }"));
    }
    return absl::StrJoin(parts, ",\n");
  }

 private:
  std::string Reference(const Descriptor& type) {
    if (type.full_name() == "google.protobuf.Duration") return kDuration;
    const bool is_new = bodies_.emplace(type.full_name(), "").second;
    if (is_new) bodies_[type.full_name()] = Object(type, "    ");
    return absl::StrCat(R"({"$ref": "#/$defs/)", type.full_name(), "\"}");
  }

  std::map<std::string, std::string> bodies_;
};

}  // namespace

std::string JsonSchema(const Descriptor& descriptor, const std::string& title) {
  Definitions definitions;
  const std::string body = definitions.Object(descriptor, "");
  std::string text =
      absl::StrCat("{\n  \"$schema\": \"https://json-schema.org/draft/2020-12/schema\",\n",
                   "  \"title\": \"", title, "\",\n", body);
  const std::string defs = definitions.ToString();
  if (!defs.empty()) absl::StrAppend(&text, ",\n  \"$defs\": {\n", defs, "\n  }");
  return text + "\n}\n";
}

}  // namespace epd::cli
