#include "tests/unit/proto/compatibility/descriptor_diff.h"

namespace epd {
namespace {

namespace pb = google::protobuf;

template <typename Items>
auto FindByName(const Items& items, const std::string& name) -> decltype(&items.Get(0)) {
  for (const auto& item : items) {
    if (item.name() == name) return &item;
  }
  return nullptr;
}

bool IsReserved(const pb::DescriptorProto& message, const pb::FieldDescriptorProto& field) {
  bool number = false;
  for (const auto& range : message.reserved_range()) {
    number = number || (field.number() >= range.start() && field.number() < range.end());
  }
  bool name = false;
  for (const std::string& reserved : message.reserved_name())
    name = name || reserved == field.name();
  return number && name;
}

class Differ {
 public:
  std::vector<std::string> Take() { return std::move(found_); }

  void File(const pb::FileDescriptorProto& golden, const pb::FileDescriptorProto& current) {
    for (const auto& message : golden.message_type()) {
      const auto* now = FindByName(current.message_type(), message.name());
      now == nullptr ? Say("message " + message.name() + " is gone")
                     : Message(message.name(), message, *now);
    }
    for (const auto& golden_enum : golden.enum_type()) {
      const auto* now = FindByName(current.enum_type(), golden_enum.name());
      now == nullptr ? Say("enum " + golden_enum.name() + " is gone") : Enum(golden_enum, *now);
    }
    for (const auto& service : golden.service()) {
      const auto* now = FindByName(current.service(), service.name());
      now == nullptr ? Say("service " + service.name() + " is gone") : Service(service, *now);
    }
  }

  void Say(std::string difference) { found_.push_back(std::move(difference)); }

 private:
  void Message(const std::string& path, const pb::DescriptorProto& golden,
               const pb::DescriptorProto& current) {
    for (const auto& field : golden.field()) {
      const auto* now = FindByName(current.field(), field.name());
      if (now == nullptr) {
        if (!IsReserved(current, field))
          Say("field " + path + "." + field.name() + " is gone and not reserved");
      } else if (now->number() != field.number() || now->type() != field.type() ||
                 now->label() != field.label() || now->type_name() != field.type_name() ||
                 now->has_oneof_index() != field.has_oneof_index()) {
        Say("field " + path + "." + field.name() + " has another number, type, label or oneof");
      }
    }
    for (const auto& nested : golden.nested_type()) {
      const auto* now = FindByName(current.nested_type(), nested.name());
      const std::string nested_path = path + "." + nested.name();
      now == nullptr ? Say("message " + nested_path + " is gone")
                     : Message(nested_path, nested, *now);
    }
  }

  void Enum(const pb::EnumDescriptorProto& golden, const pb::EnumDescriptorProto& current) {
    for (const auto& value : golden.value()) {
      const auto* now = FindByName(current.value(), value.name());
      if (now == nullptr || now->number() != value.number()) {
        Say("enum value " + golden.name() + "." + value.name() + " is gone or has another number");
      }
    }
  }

  void Service(const pb::ServiceDescriptorProto& golden,
               const pb::ServiceDescriptorProto& current) {
    for (const auto& method : golden.method()) {
      const auto* now = FindByName(current.method(), method.name());
      if (now == nullptr || now->input_type() != method.input_type() ||
          now->output_type() != method.output_type() ||
          now->client_streaming() != method.client_streaming() ||
          now->server_streaming() != method.server_streaming()) {
        Say("method " + golden.name() + "." + method.name() + " is gone or has other types");
      }
    }
  }

  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> BreakingDifferences(const pb::FileDescriptorSet& golden,
                                             const pb::FileDescriptorSet& current) {
  Differ differ;
  for (const auto& file : golden.file()) {
    const auto* now = FindByName(current.file(), file.name());
    now == nullptr ? differ.Say("file " + file.name() + " is gone") : differ.File(file, *now);
  }
  return differ.Take();
}

}  // namespace epd
