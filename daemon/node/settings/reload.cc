#include "daemon/node/settings/reload.h"

#include "daemon/node/settings/settings_table.h"

namespace epd {

Reload TakeOver(const ParsedSettings& next, const MachineFacts& facts, ParsedSettings& current) {
  Reload reload;
  const std::vector<SettingRow> table = SettingTable(facts);
  for (size_t i = 0; i < table.size(); ++i) {
    const EffectiveSetting& wanted = next.effective[i];
    if (wanted.value == current.effective[i].value) continue;
    if (!table[i].live) {
      reload.need_restart.push_back(table[i].name);
      continue;
    }
    table[i].kind.store(wanted.value, current.settings);
    current.effective[i] = wanted;
    reload.taken.push_back(table[i].name);
  }
  return reload;
}

}  // namespace epd
