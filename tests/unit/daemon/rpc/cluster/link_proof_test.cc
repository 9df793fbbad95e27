// Goal: two who know one secret believe each other, on the connection and at the time of the proof; nobody else is believed.
#include "daemon/rpc/cluster/link_proof.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace epd {
namespace {

using testing::HasSubstr;

constexpr const char* kPeer = "ipv4:10.0.0.2:4711";
const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

// What a node `name` says that knows `secret`, or why it says nothing.
absl::StatusOr<std::string> Prove(const LinkProof& other, const std::string& secret,
                                  const std::string& name = "n1") {
  const v1::ChallengeRequest request = AskForChallenge(name);
  const absl::StatusOr<v1::ChallengeResponse> response = other.Answer(request, kPeer, kNow);
  if (!response.ok()) return response.status();
  return ProveNode(secret, request, *response);
}

TEST(LinkProofTest, WhoKnowsTheSecretIsBelievedToBeTheNodeThatItSays) {
  const LinkProof other("a secret");
  const absl::StatusOr<std::string> proof = Prove(other, "a secret");
  ASSERT_TRUE(proof.ok()) << proof.status();
  EXPECT_EQ(*other.Check(*proof, kPeer, kNow + absl::Seconds(30)), "n1");
}

TEST(LinkProofTest, WhoAnswersWithAnotherSecretIsNotTold) {
  const absl::StatusOr<std::string> proof = Prove(LinkProof("theirs"), "ours");
  EXPECT_EQ(proof.status().code(), absl::StatusCode::kUnauthenticated);
}

TEST(LinkProofTest, NothingButTheProofItselfIsBelieved) {
  const LinkProof other("a secret");
  const std::string good = *Prove(other, "a secret");
  EXPECT_FALSE(other.Check(good, "ipv4:10.0.0.3:4711", kNow).ok()) << "another connection";
  EXPECT_FALSE(other.Check(good, kPeer, kNow + absl::Seconds(31)).ok()) << "old";
  EXPECT_FALSE(LinkProof("a secret").Check(good, kPeer, kNow).ok()) << "another run's challenge";
  EXPECT_FALSE(other.Check("", kPeer, kNow).ok());
  EXPECT_FALSE(other.Check(std::string(100, '\xff'), kPeer, kNow).ok());
  v1::NodeProof changed;
  ASSERT_TRUE(changed.ParseFromString(good));
  changed.set_node("n2");
  EXPECT_FALSE(other.Check(changed.SerializeAsString(), kPeer, kNow).ok());
  ASSERT_TRUE(changed.ParseFromString(good));
  changed.mutable_proof()->back() ^= 1;
  EXPECT_FALSE(other.Check(changed.SerializeAsString(), kPeer, kNow).ok());
  changed.clear_proof();
  EXPECT_FALSE(other.Check(changed.SerializeAsString(), kPeer, kNow).ok());
}

TEST(LinkProofTest, TheAnswerersProofIsNoCallers) {
  const LinkProof other("a secret");
  const v1::ChallengeRequest request = AskForChallenge("n1");
  const v1::ChallengeResponse response = *other.Answer(request, kPeer, kNow);
  v1::NodeProof reflected;
  reflected.set_node(request.node());
  reflected.set_nonce(request.nonce());
  reflected.set_challenge(response.challenge());
  reflected.set_proof(response.proof());
  const absl::Status refused = other.Check(reflected.SerializeAsString(), kPeer, kNow).status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("another secret"));
}

TEST(LinkProofTest, WithoutASecretNobodyIsAnsweredOrBelieved) {
  const LinkProof other("");
  EXPECT_EQ(Prove(other, "").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(other.Check(*Prove(LinkProof("x"), "x"), kPeer, kNow).ok());
  v1::ChallengeRequest bare;
  EXPECT_FALSE(LinkProof("x").Answer(bare, kPeer, kNow).ok());
}

}  // namespace
}  // namespace epd
