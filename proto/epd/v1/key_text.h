// Whether a private key takes a pass phrase. epd and epctl refuse such a key before OpenSSL sees it: OpenSSL would ask
// at the terminal, and wait there.
#pragma once

#include <string>
#include <string_view>

namespace epd::key_text {

// Of the first private key in `pem`, as PKCS #8 and OpenSSL's older form have it; false without one.
constexpr bool IsEncrypted(std::string_view pem) {
  constexpr std::string_view kBegin = "-----BEGIN ";
  constexpr std::string_view kKey = "PRIVATE KEY-----";
  for (auto at = pem.find(kBegin); at != pem.npos; at = pem.find(kBegin, at + 1)) {
    const std::string_view block = pem.substr(at);
    const std::string_view first_line = block.substr(0, block.find('\n'));
    if (first_line.find(kKey) == first_line.npos) continue;
    if (first_line.find("ENCRYPTED") != first_line.npos) return true;
    const std::string_view rest = block.substr(first_line.size());
    const std::string_view body = rest.substr(0, rest.find("-----END"));
    return body.find("Proc-Type:") != body.npos && body.find("ENCRYPTED") != body.npos;
  }
  return false;
}

// What to say of one. `setting` names where the path comes from.
inline std::string Refusal(const std::string& setting, const std::string& path) {
  return setting + ": '" + path +
         "' is encrypted and takes a pass phrase, which nobody enters here; write the key without "
         "one, and give that file: (umask 077; openssl pkey -in '" +
         path + "' -out NEW.key)";
}

}  // namespace epd::key_text
