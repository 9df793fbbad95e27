#include "client/cli/redact.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <regex>
#include <vector>

namespace epd::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr char kKeptWord[] = "$1(redacted)";

}  // namespace

std::string Redact(const std::string& text) {
  // std::regex recurses for each character of a match, so no pattern here spans more than a value.
  static const std::string secret =
      "(?:password|passwd|passphrase|secret|token|credential|authorization|api[-_]?key|access[-_]?"
      "key|private[-_]?key)[a-z_-]{0,20}";
  static const std::regex word(
      "((?:--?[a-z0-9_-]{0,40}" + secret + "\\s+[\"']?|" + secret +
          "[\"']?\\s?[=:]\\s?[\"']?(?:bearer\\s|basic\\s)?))[^\\s\"',;]{1,512}",
      std::regex::icase | std::regex::optimize);
  static const std::regex address(
      R"(([a-z][a-z0-9+.-]{1,20}://[^\s/:@]{0,200}:)[^\s/@]{1,200}(?=@))",
      std::regex::icase | std::regex::optimize);
  std::string out = std::regex_replace(text, word, kKeptWord);
  out = std::regex_replace(out, address, kKeptWord);
  for (size_t begin = 0; (begin = out.find("-----BEGIN ", begin)) != std::string::npos;) {
    const size_t head = out.find('\n', begin);
    const bool is_key = out.substr(begin, std::min(head, begin + 64) - begin).find("PRIVATE KEY") !=
                        std::string::npos;
    const size_t end = out.find("-----END ", begin);
    if (!is_key) {
      begin += 11;
      continue;
    }
    const size_t last = end == std::string::npos ? out.size() : out.find("-----", end + 9);
    const size_t until = last == std::string::npos ? out.size() : std::min(out.size(), last + 5);
    out.replace(begin, until - begin, "(redacted)");
  }
  return out;
}

void RedactAll(Message& message) {
  const Reflection& fields = *message.GetReflection();
  std::vector<const FieldDescriptor*> present;
  fields.ListFields(message, &present);
  for (const FieldDescriptor* field : present) {
    const int count = field->is_repeated() ? fields.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        RedactAll(*(field->is_repeated() ? fields.MutableRepeatedMessage(&message, field, i)
                                         : fields.MutableMessage(&message, field)));
      } else if (field->type() == FieldDescriptor::TYPE_STRING) {
        if (field->is_repeated()) {
          fields.SetRepeatedString(&message, field, i,
                                   Redact(fields.GetRepeatedString(message, field, i)));
        } else {
          fields.SetString(&message, field, Redact(fields.GetString(message, field)));
        }
      }
    }
  }
}

}  // namespace epd::cli
