// Goal: a proof is HMAC-SHA256, and says the same of the same parts only.
#include "daemon/tls/proof.h"

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace epd {
namespace {

TEST(ProofTest, IsHmacSha256OfThePartsWithTheirLengths) {
  // printf '1:a0:' | openssl dgst -sha256 -hmac key
  EXPECT_EQ(absl::BytesToHexString(ProofOf("key", {"a", ""})),
            "f68d863fe0306ce13f649dc036ff48f70513e9506da0e6f6ed80cf69e5b9accb");
  EXPECT_EQ(ProofOf("key", {"a"}).size(), kProofBytes);
}

TEST(ProofTest, OtherKeysPartsAndBordersGiveOtherProofs) {
  const std::string proof = ProofOf("key", {"ab", "c"});
  EXPECT_TRUE(SameProof(proof, ProofOf("key", {"ab", "c"})));
  EXPECT_FALSE(SameProof(proof, ProofOf("key", {"a", "bc"})));
  EXPECT_FALSE(SameProof(proof, ProofOf("key", {"abc"})));
  EXPECT_FALSE(SameProof(proof, ProofOf("yek", {"ab", "c"})));
  EXPECT_FALSE(SameProof(proof, ""));
  EXPECT_FALSE(SameProof(proof, proof.substr(1)));
}

TEST(ProofTest, RandomBytesAreNotTheSameTwice) {
  EXPECT_EQ(RandomBytes(kProofBytes).size(), kProofBytes);
  EXPECT_NE(RandomBytes(kProofBytes), RandomBytes(kProofBytes));
}

}  // namespace
}  // namespace epd
