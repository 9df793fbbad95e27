// Goal: an operator hears of a certificate's end in time, and not of one that is renewed every day.
#include "daemon/tls/certificate_files.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace epd {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr absl::Duration kDay = absl::Hours(24);
const absl::Time kStart = absl::FromUnixSeconds(1'800'000'000);

CertificateState MadeFor(absl::Duration time) { return {{kStart, kStart + time}, ""}; }

TEST(CertificateProblemTest, AYearsIsTold30DaysBeforeItsEnd) {
  const CertificateState state = MadeFor(365 * kDay);
  EXPECT_THAT(CertificateProblem(state, state.validity.ends - 30 * kDay), IsEmpty());
  EXPECT_THAT(
      CertificateProblem(state, state.validity.ends - 30 * kDay + absl::Seconds(1)),
      AllOf(HasSubstr("tls_cert ends on 2028-01-15 08:00 UTC, in 719h59m"), HasSubstr("renew it")));
}

TEST(CertificateProblemTest, ADaysIsToldInItsLastThird) {
  const CertificateState state = MadeFor(kDay);
  EXPECT_THAT(CertificateProblem(state, kStart + absl::Hours(15)), IsEmpty());
  EXPECT_THAT(CertificateProblem(state, kStart + absl::Hours(17)), HasSubstr("in 7h"));
}

TEST(CertificateProblemTest, FilesThatDoNotServeComeFirst) {
  CertificateState state = MadeFor(kDay);
  state.refused = "tls_key is another's";
  EXPECT_THAT(CertificateProblem(state, kStart),
              AllOf(HasSubstr("older ones do"), HasSubstr("tls_key is another's")));
}

TEST(CertificateProblemTest, WithoutCertificatesThereIsNone) {
  EXPECT_THAT(CertificateProblem(CertificateState(), kStart), IsEmpty());
}

TEST(CertificateFilesTest, SomeOfTheThreeAreAnErrorAndNoneIsNone) {
  EXPECT_TRUE(CertificateFiles({}, {}, nullptr).Start().ok());
  EXPECT_TRUE(absl::IsInvalidArgument(CertificateFiles({"/x", "", ""}, {}, nullptr).Start()));
  const TlsFiles missing = {"/none", "/none", "/none"};
  EXPECT_TRUE(absl::IsNotFound(CertificateFiles(missing, {}, nullptr).Start()));
}

}  // namespace
}  // namespace epd
