// Goal: no secret that people put into command lines, addresses and logs leaves the machine, and the rest stays readable.
#include "client/cli/redact.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cli/support_archive.pb.h"

namespace epd::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(RedactTest, ValuesOfSecretsAreTakenOut) {
  for (const char* text :
       {"python3 train.py --api-key=hunter2", "python3 train.py --api_key hunter2",
        "run --wandb-token hunter2 --steps 3", "PASSWORD: hunter2", "{\"secret\": \"hunter2\"}",
        "WANDB_API_KEY=hunter2", "Authorization: Bearer hunter2", "etcd://root:hunter2@e1:2379",
        "--password 'hunter2'", "hf_token=\"hunter2\""}) {
    EXPECT_THAT(Redact(text), Not(HasSubstr("hunter2"))) << text;
    EXPECT_THAT(Redact(text), HasSubstr("(redacted)")) << text;
  }
  EXPECT_EQ(Redact("run --wandb-token hunter2 --steps 3"),
            "run --wandb-token (redacted) --steps 3");
}

TEST(RedactTest, APrivateKeyIsTakenOutAndACertificateStays) {
  const std::string key =
      "a\n-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----\nb";
  EXPECT_EQ(Redact(key), "a\n(redacted)\nb");
  EXPECT_EQ(Redact("-----BEGIN PRIVATE KEY-----\nMHcCAQEE"), "(redacted)") << "cut off";
  const std::string certificate = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
  EXPECT_EQ(Redact(certificate), certificate);
}

TEST(RedactTest, WhatIsNoSecretStays) {
  for (const char* text :
       {"group=g epoch=3 rank=1 phase=announce: rank 2 is late", "name=x execution=3 ordinal=1",
        "python3 train.py --tokens_per_rank", "File, mode 0600, of the bearer token, at least 16",
        "max_tokens_per_rank", "http://10.0.0.1:4317/x", "keyboard=de"}) {
    EXPECT_EQ(Redact(text), text);
  }
}

TEST(RedactTest, EveryTextOfAMessageIsLookedAt) {
  SupportArchive archive;
  archive.add_files()->set_text("token=hunter2");
  archive.mutable_sessions()->add_sessions()->set_client_name("x --password hunter2");
  archive.mutable_nodes()->add_nodes()->mutable_status()->add_problems("secret: hunter2");
  RedactAll(archive);
  EXPECT_THAT(archive.DebugString(), Not(HasSubstr("hunter2")));
}

}  // namespace
}  // namespace epd::cli
