#include "tests/unit/client/jax/call_frame.h"

#include <algorithm>
#include <map>

// What XLA keeps opaque.
struct XLA_FFI_Error {
  int code;
  std::string message;
};
struct XLA_FFI_ExecutionContext {
  void* state = nullptr;
  void* stream = nullptr;
  int device = 0;
};

namespace epd::jax {
namespace {

// A runtime's types by number, and how their objects are destroyed. Each gives out numbers of its own, from 1.
struct Registry {
  std::map<int64_t, const XLA_FFI_TypeInfo*> types;
  const int64_t first;
};
Registry registries[FakeSite::kNumRuntimes] = {{{}, 1}, {{}, 2}};

XLA_FFI_Error* CreateError(XLA_FFI_Error_Create_Args* args) {
  return new XLA_FFI_Error{static_cast<int>(args->errc), args->message};
}
void GetMessage(XLA_FFI_Error_GetMessage_Args* args) {
  args->message = args->error->message.c_str();
}
void DestroyError(XLA_FFI_Error_Destroy_Args* args) { delete args->error; }
XLA_FFI_Error* Internal(const char* why) { return new XLA_FFI_Error{13, why}; }
template <int runtime>
XLA_FFI_Error* RegisterType(XLA_FFI_Type_Register_Args* args) {
  Registry& registry = registries[runtime];
  int64_t& id = args->type_id->type_id;
  if (id == 0) id = registry.first;
  if (!registry.types.emplace(id, args->type_info).second) return Internal("registered twice");
  return nullptr;
}
template <int runtime>
XLA_FFI_Error* SetState(XLA_FFI_State_Set_Args* args) {
  if (registries[runtime].types.count(args->type_id->type_id) == 0)
    return Internal("the state's type is not registered here");
  args->ctx->state = args->state;
  return nullptr;
}
template <int runtime>
XLA_FFI_Error* GetState(XLA_FFI_State_Get_Args* args) {
  if (registries[runtime].types.count(args->type_id->type_id) == 0)
    return Internal("the state's type is not registered here");
  args->state = args->ctx->state;
  return nullptr;
}
XLA_FFI_Error* GetStream(XLA_FFI_Stream_Get_Args* args) {
  args->stream = args->ctx->stream;
  return nullptr;
}
XLA_FFI_Error* GetDevice(XLA_FFI_DeviceOrdinal_Get_Args* args) {
  args->device_ordinal = args->ctx->device;
  return nullptr;
}

XLA_FFI_Error* GetRunId(XLA_FFI_RunId_Get_Args* args) {
  args->run_id = 1;
  return nullptr;
}

template <int runtime>
const XLA_FFI_Api& ApiOf() {
  static const XLA_FFI_Api api = [] {
    XLA_FFI_Api made = {};
    made.struct_size = XLA_FFI_Api_STRUCT_SIZE;
    made.api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
    made.api_version.major_version = XLA_FFI_API_MAJOR;
    made.api_version.minor_version = XLA_FFI_API_MINOR;
    made.XLA_FFI_Error_Create = &CreateError;
    made.XLA_FFI_Error_GetMessage = &GetMessage;
    made.XLA_FFI_Error_Destroy = &DestroyError;
    made.XLA_FFI_Type_Register = &RegisterType<runtime>;
    made.XLA_FFI_State_Set = &SetState<runtime>;
    made.XLA_FFI_State_Get = &GetState<runtime>;
    made.XLA_FFI_Stream_Get = &GetStream;
    made.XLA_FFI_DeviceOrdinal_Get = &GetDevice;
    made.XLA_FFI_RunId_Get = &GetRunId;
    return made;
  }();
  return api;
}

const XLA_FFI_Api& Api(int runtime) { return runtime == 0 ? ApiOf<0>() : ApiOf<1>(); }

XLA_FFI_CallFrame EmptyFrame(XLA_FFI_ExecutionStage stage, int runtime) {
  XLA_FFI_CallFrame frame = {};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.api = &Api(runtime);
  frame.stage = stage;
  frame.args.struct_size = XLA_FFI_Args_STRUCT_SIZE;
  frame.rets.struct_size = XLA_FFI_Rets_STRUCT_SIZE;
  frame.attrs.struct_size = XLA_FFI_Attrs_STRUCT_SIZE;
  return frame;
}

Outcome Take(XLA_FFI_Error* error) {
  if (error == nullptr) return {};
  Outcome outcome{error->code, error->message};
  delete error;
  return outcome;
}

}  // namespace

FakeSite::~FakeSite() {
  if (state_ != nullptr) registries[runtime_].types.begin()->second->deleter(state_);
}

void FakeSite::Attribute(const std::string& name, int64_t value) {
  numbers_.emplace_back(name, value);
}
void FakeSite::Attribute(const std::string& name, const std::string& value) {
  texts_.emplace_back(name, value);
}

void FakeSite::Add(std::vector<std::unique_ptr<Buffer>>& to, XLA_FFI_DataType type, void* data,
                   std::vector<int64_t> dims) {
  auto made = std::make_unique<Buffer>();
  made->dims = std::move(dims);
  made->buffer.struct_size = XLA_FFI_Buffer_STRUCT_SIZE;
  made->buffer.dtype = type;
  made->buffer.data = data;
  made->buffer.rank = static_cast<int64_t>(made->dims.size());
  made->buffer.dims = made->dims.data();
  to.push_back(std::move(made));
}

void FakeSite::Operand(XLA_FFI_DataType type, void* data, std::vector<int64_t> dims) {
  Add(operands_, type, data, std::move(dims));
}
void FakeSite::Result(XLA_FFI_DataType type, void* data, std::vector<int64_t> dims) {
  Add(results_, type, data, std::move(dims));
}

Outcome FakeSite::Instantiate() {
  return Run(instantiate_, XLA_FFI_ExecutionStage_INSTANTIATE, 0, nullptr);
}

Outcome FakeSite::Run(Handler* handler, XLA_FFI_ExecutionStage stage, int device, void* stream) {
  XLA_FFI_CallFrame frame = EmptyFrame(stage, runtime_);
  XLA_FFI_ExecutionContext context{.state = state_, .stream = stream, .device = device};
  frame.ctx = &context;
  const bool with_buffers = stage != XLA_FFI_ExecutionStage_INSTANTIATE;
  std::vector<XLA_FFI_ArgType> arg_types(operands_.size(), XLA_FFI_ArgType_BUFFER);
  std::vector<XLA_FFI_RetType> ret_types(results_.size(), XLA_FFI_RetType_BUFFER);
  std::vector<void*> args;
  std::vector<void*> rets;
  for (const auto& one : operands_) args.push_back(&one->buffer);
  for (const auto& one : results_) rets.push_back(&one->buffer);
  if (with_buffers) {
    frame.args.size = static_cast<int64_t>(args.size());
    frame.args.types = arg_types.data();
    frame.args.args = args.data();
    frame.rets.size = static_cast<int64_t>(rets.size());
    frame.rets.types = ret_types.data();
    frame.rets.rets = rets.data();
  }
  // XLA sorts attributes by name.
  struct Named {
    XLA_FFI_ByteSpan name;
    XLA_FFI_ByteSpan text;
    XLA_FFI_Scalar number;
    bool is_text;
  };
  std::vector<Named> all;
  for (auto& [name, value] : numbers_) {
    all.push_back({{name.data(), name.size()}, {}, {XLA_FFI_DataType_S64, &value}, false});
  }
  for (auto& [name, value] : texts_) {
    all.push_back({{name.data(), name.size()}, {value.data(), value.size()}, {}, true});
  }
  std::sort(all.begin(), all.end(), [](const Named& a, const Named& b) {
    return std::string(a.name.ptr, a.name.len) < std::string(b.name.ptr, b.name.len);
  });
  std::vector<XLA_FFI_AttrType> attr_types;
  std::vector<XLA_FFI_ByteSpan*> names;
  std::vector<void*> attrs;
  for (Named& one : all) {
    attr_types.push_back(one.is_text ? XLA_FFI_AttrType_STRING : XLA_FFI_AttrType_SCALAR);
    names.push_back(&one.name);
    attrs.push_back(one.is_text ? static_cast<void*>(&one.text) : static_cast<void*>(&one.number));
  }
  frame.attrs.size = static_cast<int64_t>(all.size());
  frame.attrs.types = attr_types.data();
  frame.attrs.names = names.data();
  frame.attrs.attrs = attrs.data();
  const Outcome outcome = Take(handler(&frame));
  if (stage == XLA_FFI_ExecutionStage_INSTANTIATE) state_ = context.state;
  return outcome;
}

XLA_FFI_Handler_Traits FakeSite::TraitsOf(Handler* handler) {
  XLA_FFI_Metadata metadata = {};
  metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension = {};
  extension.extension_base.struct_size = XLA_FFI_Metadata_Extension_STRUCT_SIZE;
  extension.extension_base.type = XLA_FFI_Extension_Metadata;
  extension.metadata = &metadata;
  XLA_FFI_CallFrame frame = EmptyFrame(XLA_FFI_ExecutionStage_EXECUTE, 0);
  frame.extension_start = &extension.extension_base;
  (void)Take(handler(&frame));
  return metadata.traits;
}

}  // namespace epd::jax
