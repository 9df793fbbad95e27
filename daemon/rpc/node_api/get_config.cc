#include "daemon/rpc/answer.h"
#include "daemon/rpc/node_api/node_service.h"

namespace epd {

NodeService::Unary* NodeService::GetConfig(Context* context, const v1::GetConfigRequest*,
                                           v1::GetConfigResponse* response) {
  return Answer(context, node_, [this, response] {
    for (const EffectiveSetting& setting : node_.parsed().effective) {
      v1::Setting& out = *response->add_settings();
      out.set_name(setting.name);
      out.set_value(setting.value);
      out.set_origin(std::string(Name(setting.origin)));
      out.set_help(setting.help);
    }
    return absl::OkStatus();
  });
}

}  // namespace epd
