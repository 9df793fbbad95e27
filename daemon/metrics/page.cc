#include "daemon/metrics/page.h"

#include <openssl/sha.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace epd {
namespace {

constexpr unsigned char kHtml[] = {
#include "daemon/metrics/page.inc"
};

// Of what stands between `begin` and `end`, as a source of the policy.
std::string HashOf(absl::string_view html, absl::string_view begin, absl::string_view end) {
  const size_t from = html.find(begin) + begin.size();
  const absl::string_view inside = html.substr(from, html.find(end, from) - from);
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(inside.data()), inside.size(), digest);
  const absl::string_view bytes(reinterpret_cast<const char*>(digest), sizeof digest);
  return absl::StrCat("'sha256-", absl::Base64Escape(bytes), "'");
}

}  // namespace

std::string PageHtml() { return {reinterpret_cast<const char*>(kHtml), sizeof kHtml}; }

std::string PagePolicy(const std::string& html) {
  return absl::StrCat(
      "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
      "frame-ancestors 'none'; script-src ",
      HashOf(html, "<script>", "</script>"), "; style-src ", HashOf(html, "<style>", "</style>"));
}

}  // namespace epd
