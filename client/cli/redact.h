// Takes secrets out of texts that leave the machine.
#pragma once

#include <google/protobuf/message.h>

#include <string>

namespace epd::cli {

// Pure. Replaces the value that follows a word such as password, token, secret or api-key ("--token=x", "PASSWORD: x", "--api-key x"),
// credentials in an address ("etcd://user:x@host") and PEM blocks of keys by "(redacted)".
std::string Redact(const std::string& text);

// The same in every text of the message but where `field` names one of epd's own, such as an operation's key.
void RedactAll(google::protobuf::Message& message);

}  // namespace epd::cli
