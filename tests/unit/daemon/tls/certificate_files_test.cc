// Goal: an operator hears of a certificate's end in time, and not of one that is renewed every day.
#include "daemon/tls/certificate_files.h"

#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/epd/v1/key_text.h"
#include "tests/fakes/failing_threads.h"

namespace epd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

// The text alone tells, so that OpenSSL is not asked and asks nobody.
TEST(KeyTextTest, APassPhraseIsSeenInBothForms) {
  const std::string plain = "-----BEGIN PRIVATE KEY-----\nMIG=\n-----END PRIVATE KEY-----\n";
  const std::string of_pkcs8 =
      "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIG=\n-----END ENCRYPTED PRIVATE KEY-----\n";
  const std::string old =
      "-----BEGIN RSA PRIVATE KEY-----\r\nProc-Type: 4,ENCRYPTED\r\nDEK-Info: "
      "AES-256-CBC,00\r\n\r\n"
      "MIG=\r\n-----END RSA PRIVATE KEY-----\r\n";
  const std::string certificate = "-----BEGIN CERTIFICATE-----\nA=\n-----END CERTIFICATE-----\n";
  EXPECT_FALSE(key_text::IsEncrypted(plain));
  EXPECT_TRUE(key_text::IsEncrypted(of_pkcs8));
  EXPECT_TRUE(key_text::IsEncrypted(old));
  EXPECT_TRUE(key_text::IsEncrypted(certificate + of_pkcs8)) << "behind its certificate";
  EXPECT_TRUE(key_text::IsEncrypted("ENCRYPTED by hand\n" + old));
  EXPECT_FALSE(key_text::IsEncrypted("ENCRYPTED by hand\n" + plain)) << "a note in front of it";
  EXPECT_FALSE(key_text::IsEncrypted(plain + of_pkcs8)) << "the first one is used";
  EXPECT_FALSE(key_text::IsEncrypted(certificate));
  EXPECT_FALSE(key_text::IsEncrypted(""));
}

TEST(CheckPairTest, AnEncryptedKeyIsRefusedWithTheCommandAndOthersByName) {
  const NamedFile cert{"metrics_cert", "/c.pem"};
  const NamedFile key{"metrics_key", "/k.key"};
  const absl::Status locked =
      CheckPair(cert, key, "x", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIG=\n-----END");
  EXPECT_TRUE(absl::IsFailedPrecondition(locked));
  EXPECT_THAT(std::string(locked.message()),
              AllOf(HasSubstr("metrics_key: '/k.key' is encrypted"),
                    HasSubstr("(umask 077; openssl pkey -in '/k.key' -out NEW.key)")));
  EXPECT_TRUE(absl::IsNotFound(CheckPair(cert, key, "", "x")));
  EXPECT_TRUE(absl::IsNotFound(CheckPair(cert, key, "x", "")));
  EXPECT_THAT(std::string(CheckPair(cert, key, "x", "x").message()),
              HasSubstr("metrics_cert: '/c.pem' holds no PEM certificate"));
}

TEST(CertificateFilesTest, SomeOfTheThreeAreAnErrorAndNoneIsNone) {
  EXPECT_TRUE(CertificateFiles({}, {}, nullptr).Start().ok());
  EXPECT_TRUE(absl::IsInvalidArgument(CertificateFiles({"/x", "", ""}, {}, nullptr).Start()));
  const TlsFiles missing = {"/none", "/none", "/none"};
  EXPECT_TRUE(absl::IsNotFound(CertificateFiles(missing, {}, nullptr).Start()));
}

TEST(CertificateFilesTest, AThreadThatCannotBeHadIsAnErrorOfTheStart) {
  const std::string folder = ::testing::TempDir();
  const std::string command =
      "cd '" + folder +
      "' && umask 077 && openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=epd "
      "-addext subjectAltName=DNS:epd -keyout k.pem -out c.pem 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0);
  const TlsFiles files = {folder + "/c.pem", folder + "/c.pem", folder + "/k.pem"};
  CertificateFiles certificates(files, {}, nullptr);
  epd::testing::g_threads_left = 0;
  const absl::Status started = certificates.Start();
  epd::testing::g_threads_left = -1;
  EXPECT_EQ(started.code(), absl::StatusCode::kResourceExhausted) << started;
  EXPECT_THAT(std::string(started.message()), HasSubstr("no thread 'epd-certs'"));
}

}  // namespace
}  // namespace epd
