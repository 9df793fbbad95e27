// Goal: who does not know a formation's secret passes for no worker of it, in neither direction, whatever it says.
#include <string>

#include "daemon/worker/peer_streams/stream_proof.h"
#include "proto/epd/v1/wire.pb.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr char kSecret[] = "what one formation told two workers";
  epd::fuzz::Input in(data, size);
  const std::string other_secret = in.Text();
  const std::string hello = in.Text();
  const std::string said(in.Rest());
  epd::v1::WireHello parsed;
  (void)parsed.ParseFromString(said);
  EPD_FUZZ_CHECK(!epd::IsChallenge(kSecret, hello, said));
  EPD_FUZZ_CHECK(epd::ProofOfStream(kSecret, hello, said) != said);
  const std::string challenge = epd::MakeChallenge(kSecret, hello);
  EPD_FUZZ_CHECK(epd::IsChallenge(kSecret, hello, challenge));
  if (other_secret == kSecret) return 0;
  EPD_FUZZ_CHECK(!epd::IsChallenge(other_secret, hello, challenge));
  EPD_FUZZ_CHECK(epd::ProofOfStream(other_secret, hello, challenge) !=
                 epd::ProofOfStream(kSecret, hello, challenge));
  return 0;
}
