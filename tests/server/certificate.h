#pragma once

#include <string>

namespace deepinfer::testing {

/// A self-signed certificate for `names` (as OpenSSL writes them: "DNS:localhost,IP:127.0.0.1"), good for an hour, in
/// DIRECTORY/cert.pem, and its key in DIRECTORY/key.pem.
void make_certificate(const std::string& directory, const std::string& names = "DNS:localhost,IP:127.0.0.1");

}  // namespace deepinfer::testing
