// The certificate that the server shows and the TLS that it speaks: 1.2 and 1.3, with HTTP/1.1 by ALPN.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <filesystem>
#include <memory>
#include <mutex>

#include "base/result.h"

namespace deepinfer::serve {

class Tls {
 public:
  // `chain`: PEM, the server's own certificate first, then those between it and the authority's; `key`: PEM, its private key
  // without a password. Both may be one file. kNotFound or kIo for a file that cannot be read; kFormat names the file that
  // cannot be used: no PEM, a key of another certificate, one with a password, a certificate that is not valid now.
  static Result<std::unique_ptr<Tls>> read(const std::filesystem::path& chain,
                                           const std::filesystem::path& key);
  // Reads the files again, for connections from now on; on an error everything stays what it was.
  Result<void> reread();

  // What a new connection is made with. Any thread.
  std::shared_ptr<boost::asio::ssl::context> context() const;

 private:
  Tls() = default;

  std::filesystem::path chain_;
  std::filesystem::path key_;
  mutable std::mutex mutex_;
  std::shared_ptr<boost::asio::ssl::context> context_;  // guarded by mutex_
};

}  // namespace deepinfer::serve
