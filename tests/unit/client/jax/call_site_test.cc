// Goal: the same program gets the same ordinals and digest in every process, whatever else it
// compiled.
#include "client/jax/call_site.h"

#include <gtest/gtest.h>

#include <thread>

namespace epd::jax {
namespace {

CallConfig Config(Operation operation, std::int64_t top_k = 2, std::int64_t tokens = 8) {
  CallConfig config;
  config.operation = operation;
  config.alias = "default";
  config.sizes.ranks = 4;
  config.sizes.experts = 8;
  config.sizes.max_tokens = 16;
  config.top_k = top_k;
  config.tokens = tokens;
  return config;
}

TEST(CallSiteTest, OrdinalsCountFromZeroInEveryCompilation) {
  EndCompile();
  const CallSite first = *AddCallSite(Config(Operation::kPrepare));
  const CallSite second = *AddCallSite(Config(Operation::kDispatch));
  EndCompile();
  const CallSite other = *AddCallSite(Config(Operation::kPrepare));
  EXPECT_EQ(first.ordinal, 0u);
  EXPECT_EQ(second.ordinal, 1u);
  EXPECT_EQ(other.ordinal, 0u);
  EXPECT_EQ(first.executable, second.executable);
  EXPECT_FALSE(first.executable->HasOneCall());
  EXPECT_TRUE(other.executable->HasOneCall());
  EXPECT_NE(first.executable, other.executable);
}

TEST(CallSiteTest, WhereACallStandsIsToldAndIsNoPartOfItsIdentity) {
  EndCompile();
  CallConfig config = Config(Operation::kDispatch);
  const CallSite plain = *AddCallSite(config);
  EndCompile();
  config.scope = "layer_3/out";
  const CallSite scoped = *AddCallSite(config);
  EXPECT_EQ(plain.executable->Seal(), scoped.executable->Seal());
  EXPECT_EQ(plain.ordinal, scoped.ordinal);
  EXPECT_STREQ(MakeCall(scoped, 0, 0, 0).scope, "layer_3/out");
  EXPECT_EQ(MakeCall(scoped, 0, 0, 0).name, nullptr);
  EXPECT_EQ(MakeCall(plain, 0, 0, 0).scope, nullptr);
}

TEST(CallSiteTest, EqualProgramsHaveEqualDigestsAndOthersDoNot) {
  const auto digest = [](std::initializer_list<CallConfig> calls) {
    EndCompile();
    CallSite last;
    for (const CallConfig& call : calls) last = *AddCallSite(call);
    EndCompile();
    return last.executable->Seal();
  };
  const Digest one = digest({Config(Operation::kPrepare), Config(Operation::kDispatch)});
  EXPECT_EQ(one, digest({Config(Operation::kPrepare), Config(Operation::kDispatch)}));
  EXPECT_NE(one, digest({Config(Operation::kDispatch), Config(Operation::kPrepare)}));
  EXPECT_NE(one, digest({Config(Operation::kPrepare)}));
  CallConfig renamed = Config(Operation::kDispatch);
  renamed.alias = "other";
  EXPECT_NE(one, digest({Config(Operation::kPrepare), renamed}));
}

// Training and evaluation exchange alike; the function's name is what tells them apart.
TEST(CallSiteTest, FunctionsOfOtherNamesAreOtherPrograms) {
  EndCompile();
  CallConfig train = Config(Operation::kPrepare);
  train.program = "jit_train";
  const Digest trained = AddCallSite(train)->executable->Seal();
  EndCompile();
  EXPECT_EQ(AddCallSite(train)->executable->Seal(), trained);
  EndCompile();
  CallConfig evaluate = train;
  evaluate.program = "jit_evaluate";
  EXPECT_NE(AddCallSite(evaluate)->executable->Seal(), trained);
  EndCompile();
}

TEST(CallSiteTest, AGroupIsNamedAsLongAsAnExecutableHasACallInIt) {
  EndCompile();
  CallConfig call = Config(Operation::kPrepare);
  call.alias = "collected";
  call.name = "boundary";
  EXPECT_FALSE(IsNamed("collected"));
  std::optional<CallSite> site = AddCallSite(call);
  EndCompile();
  EXPECT_TRUE(IsNamed("collected"));
  EXPECT_FALSE(IsNamed("another"));
  site.reset();
  EXPECT_FALSE(IsNamed("collected"));
}

// Ranks may bring different numbers of tokens to one operation; and a rank whose top_k is wrong must
// find the others to tell them. So neither may tell programs apart.
TEST(CallSiteTest, TokensAndTopKAreNoPartOfTheDigest) {
  EndCompile();
  const Digest small = AddCallSite(Config(Operation::kPrepare, 2, 8))->executable->Seal();
  for (const CallConfig& other :
       {Config(Operation::kPrepare, 2, 5), Config(Operation::kPrepare, 4, 8)}) {
    EndCompile();
    EXPECT_EQ(small, AddCallSite(other)->executable->Seal());
  }
  EndCompile();
}

TEST(CallSiteTest, ANameIsTakenOncePerProgramGroupAndOperation) {
  EndCompile();
  CallConfig call = Config(Operation::kDispatch);
  call.name = "boundary";
  EXPECT_EQ(AddCallSite(call)->key, "boundary/dispatch");
  EXPECT_FALSE(AddCallSite(call).has_value());
  call.alias = "other";
  EXPECT_TRUE(AddCallSite(call).has_value());
  call.operation = Operation::kCombine;
  EXPECT_TRUE(AddCallSite(call).has_value());
  EndCompile();
  EXPECT_TRUE(AddCallSite(call).has_value());
}

// Programs of ranks that find each other by name may differ elsewhere.
TEST(CallSiteTest, ANamedCallChangesNeitherDigestNorOrdinals) {
  EndCompile();
  const Digest plain = AddCallSite(Config(Operation::kPrepare))->executable->Seal();
  EndCompile();
  CallConfig call = Config(Operation::kDispatch);
  call.name = "boundary";
  AddCallSite(call);
  const CallSite second = *AddCallSite(Config(Operation::kPrepare));
  EXPECT_EQ(second.ordinal, 0u);
  EXPECT_EQ(second.executable->Seal(), plain);
  EXPECT_FALSE(second.executable->HasOneCall());
}

TEST(CallSiteTest, CompilationsOfOtherThreadsDoNotMix) {
  EndCompile();
  const CallSite mine = *AddCallSite(Config(Operation::kPrepare));
  CallSite theirs;
  std::thread([&] { theirs = *AddCallSite(Config(Operation::kPrepare)); }).join();
  EXPECT_EQ(theirs.ordinal, 0u);
  EXPECT_NE(theirs.executable, mine.executable);
  EXPECT_EQ(AddCallSite(Config(Operation::kDispatch))->ordinal, 1u);
}

TEST(CallSiteTest, ACallHoldsTheIdentityOfItsSite) {
  EndCompile();
  CallConfig config = Config(Operation::kPrepare);
  AddCallSite(config);
  const CallSite site = *AddCallSite(config);
  config.name = "boundary";
  const CallSite named = *AddCallSite(config);
  EndCompile();
  const epd_program_call call = MakeCall(site, 0, 2, 3);
  EXPECT_STREQ(call.alias, "default");
  EXPECT_EQ(call.name, nullptr);
  EXPECT_EQ(call.domain, 2);
  EXPECT_EQ(call.position, 3);
  EXPECT_EQ(call.site, 1u);
  EXPECT_NE(call.execution, 0u) << "XLA's first run is an execution as any other";
  EXPECT_EQ(call.executable, MakeCall(named, 0, 2, 3).executable);
  EXPECT_EQ(call.traced->max_tokens, 16);
  EXPECT_STREQ(MakeCall(named, 0, 2, 3).name, "boundary/prepare");
}

}  // namespace
}  // namespace epd::jax
