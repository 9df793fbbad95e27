#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/cli/human.h"
#include "client/cli/printers/tables.h"
#include "client/cli/table.h"

namespace epd::cli {

std::string QuotaTitle(const epd::v1::Quota& quota) {
  absl::string_view name = quota.setting();
  absl::ConsumePrefix(&name, "max_");
  name = name.substr(0, name.find("_per_"));
  return absl::AsciiStrToUpper(absl::StrReplaceAll(name, {{"_", " "}}));
}

std::string QuotaText(const epd::v1::Quota& quota) {
  const auto text = [&](uint64_t number) {
    return quota.is_bytes() ? HumanBytes(number) : absl::StrCat(number);
  };
  return absl::StrCat(text(quota.used()), "/", text(quota.max()));
}

std::string UsersTable(const google::protobuf::RepeatedPtrField<epd::v1::User>& users) {
  if (users.empty()) return "";
  std::vector<Column> columns = {{"UID", Align::kRight}};
  for (const epd::v1::Quota& quota : users[0].quotas())
    columns.push_back({QuotaTitle(quota), Align::kRight});
  Table table(columns);
  for (const epd::v1::User& user : users) {
    std::vector<std::string> cells = {absl::StrCat(user.uid())};
    for (const epd::v1::Quota& quota : user.quotas()) cells.push_back(QuotaText(quota));
    cells.resize(columns.size());
    table.AddRow(std::move(cells));
  }
  return absl::StrCat("\n", table.ToString());
}

}  // namespace epd::cli
