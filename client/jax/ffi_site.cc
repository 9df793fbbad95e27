#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "client/c/mutex.h"
#include "client/jax/ffi_operations.h"

namespace epd::jax {

// Of our own choice, since the handler's API is not one: JAX's CPU and its CUDA plugin have a registry of types each, and one
// would give a number that the other gives to somebody else. Large, for they count from 1.
::xla::ffi::TypeId SiteState::id = {0x65706431};

namespace {

namespace ffi = ::xla::ffi;

XLA_FFI_TypeInfo call_site_info = ffi::MakeTypeInfo<SiteState>();

// Registers the state's type with each XLA the first time that one asks about a handler. jaxlib registers
// queued handlers before queued types, so a type registered from Python at import comes too late
// and kills the backend.
XLA_FFI_Error* RegisterCallSiteType(const XLA_FFI_Api* api) {
  static client::Mutex mutex;
  static auto* const known = new std::set<const XLA_FFI_Api*>;  // XLA's threads outlive main().
  const client::MutexLock lock(mutex);
  if (known->count(api) != 0) return nullptr;
  static constexpr std::string_view kName = "epd1.CallSite";
  XLA_FFI_Type_Register_Args args = {};
  args.struct_size = XLA_FFI_Type_Register_Args_STRUCT_SIZE;
  args.name = {kName.data(), kName.size()};
  args.type_id = &SiteState::id;
  args.type_info = &call_site_info;
  XLA_FFI_Error* const error = api->XLA_FFI_Type_Register(&args);
  if (error == nullptr) known->insert(api);
  return error;
}

template <typename T>
bool Read(const ffi::Dictionary& attributes, std::string_view name, T* value,
          std::string* missing) {
  auto found = attributes.get<T>(name);
  if (!found.has_value()) {
    *missing += (missing->empty() ? "" : ", ") + std::string(name);
    return false;
  }
  *value = *found;
  return true;
}

ffi::ErrorOr<std::unique_ptr<SiteState>> Instantiate(Operation operation,
                                                     const ffi::Dictionary& attributes) {
  CallConfig config;
  config.operation = operation;
  std::string missing;
  std::string_view alias;
  std::string_view name;
  std::string_view program;
  std::int64_t by_rank = 0;
  if (Read(attributes, "alias", &alias, &missing)) config.alias = std::string(alias);
  if (Read(attributes, "name", &name, &missing)) config.name = std::string(name);
  if (Read(attributes, "program", &program, &missing)) config.program = std::string(program);
  epd_program_sizes& sizes = config.sizes;
  const std::pair<std::string_view, std::int64_t*> numbers[] = {
      {"by_rank", &by_rank},       {"ranks", &sizes.ranks},
      {"experts", &sizes.experts}, {"local_experts", &sizes.local_experts},
      {"owners", &sizes.owners},   {"max_tokens", &sizes.max_tokens},
      {"top_k", &config.top_k},    {"alignment", &config.alignment},
      {"hidden", &sizes.hidden},   {"width", &config.width},
      {"tokens", &config.tokens},  {"capacity", &sizes.recv_capacity},
      {"shards", &config.shards},
  };
  for (const auto& [field, value] : numbers) Read(attributes, field, value, &missing);
  if (!missing.empty()) {
    return ffi::Unexpected(ffi::Error(
        ffi::ErrorCode::kInvalidArgument,
        "[epd:INVALID_ARGUMENT] group=" + config.alias +
            " phase=compile: " + OperationName(operation) + ": the program lacks the attributes " +
            missing + "; it was made by another version of epd.jax: lower it again"));
  }
  sizes.by_rank = by_rank != 0 ? 1 : 0;
  // Programs that were exported before there was one have none.
  if (auto scope = attributes.get<std::string_view>("scope"); scope.has_value())
    config.scope = std::string(*scope);
  std::optional<CallSite> site = AddCallSite(config);
  if (site.has_value()) return std::make_unique<SiteState>(*std::move(site));
  EndCompile();  // XLA gives this compilation up.
  return ffi::Unexpected(ffi::Error(
      ffi::ErrorCode::kInvalidArgument,
      "[epd:INVALID_ARGUMENT] group=" + config.alias + " phase=compile: two calls of " +
          OperationName(operation) + " in one program have the name '" + config.name +
          "', so ranks cannot tell which is which; give each call its own name (a function that "
          "is called twice, unrolled or rematerialised repeats its names)"));
}

template <Operation operation>
ffi::ErrorOr<std::unique_ptr<SiteState>> InstantiateAs(ffi::Dictionary attributes) {
  return Instantiate(operation, attributes);
}

// XLA's first call of a handler asks for its metadata, and brings the API with it.
template <Operation operation>
XLA_FFI_Error* Handle(XLA_FFI_CallFrame* frame) {
  return GuardedHandler(frame, [frame]() -> XLA_FFI_Error* {
    if (XLA_FFI_Error* const error = RegisterCallSiteType(frame->api); error != nullptr)
      return error;
    static auto* const handler =
        ffi::Ffi::BindInstantiate().Attrs().To(InstantiateAs<operation>).release();
    return handler->Call(frame);
  });
}

}  // namespace
}  // namespace epd::jax

extern "C" {

XLA_FFI_Error* epd_jax_prepare_instantiate(XLA_FFI_CallFrame* frame) {
  return epd::jax::Handle<epd::jax::Operation::kPrepare>(frame);
}
XLA_FFI_Error* epd_jax_dispatch_instantiate(XLA_FFI_CallFrame* frame) {
  return epd::jax::Handle<epd::jax::Operation::kDispatch>(frame);
}
XLA_FFI_Error* epd_jax_combine_instantiate(XLA_FFI_CallFrame* frame) {
  return epd::jax::Handle<epd::jax::Operation::kCombine>(frame);
}
XLA_FFI_Error* epd_jax_dispatch_bwd_instantiate(XLA_FFI_CallFrame* frame) {
  return epd::jax::Handle<epd::jax::Operation::kDispatchBackward>(frame);
}
XLA_FFI_Error* epd_jax_combine_bwd_instantiate(XLA_FFI_CallFrame* frame) {
  return epd::jax::Handle<epd::jax::Operation::kCombineBackward>(frame);
}
XLA_FFI_Error* epd_jax_ragged_instantiate(XLA_FFI_CallFrame* frame) {
  return epd::jax::Handle<epd::jax::Operation::kRaggedAllToAll>(frame);
}

}  // extern "C"
