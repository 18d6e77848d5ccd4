#include "serve/tls.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <boost/asio/buffer.hpp>
#include <string>
#include <string_view>

#include "base/mapped_file.h"

namespace deepinfer::serve {
namespace {

namespace ssl = boost::asio::ssl;
using std::filesystem::path;

constexpr std::size_t kMostBytes = std::size_t{1} << 20;
// Of TLS 1.2: an ephemeral key, and encryption that authenticates. All of TLS 1.3 has both.
constexpr const char* kCiphers = "ECDHE+AESGCM:ECDHE+CHACHA20";
constexpr unsigned char kProtocols[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};

Error unusable(const path& file, std::string_view why, std::string_view remedy) {
  return make_error(ErrorKind::kFormat, fmt::format("cannot use {}: {}", file.string(), why),
                    std::string(remedy));
}

// What OpenSSL says of its last failure; it is forgotten there.
std::string openssl_reason() {
  const char* reason = ::ERR_reason_error_string(::ERR_peek_last_error());
  ::ERR_clear_error();
  return reason == nullptr ? "unknown" : reason;
}

int choose_protocol(SSL*, const unsigned char** chosen, unsigned char* length, const unsigned char* offered,
                    unsigned int offered_length, void*) {
  unsigned char* found = nullptr;
  const int outcome =
      ::SSL_select_next_proto(&found, length, kProtocols, sizeof(kProtocols), offered, offered_length);
  *chosen = found;
  // A client that can speak nothing of ours learns it now (RFC 7301 section 3.2), not from bytes that it cannot read.
  return outcome == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

Result<void> check_validity(const path& file, const X509* certificate) {
  const auto refused = [&](std::string_view when, const ASN1_TIME* time) {
    std::tm day{};
    ::ASN1_TIME_to_tm(time, &day);
    return unusable(
        file,
        fmt::format("the certificate is not valid {} {}-{:02}-{:02} {:02}:{:02}:{:02} UTC", when,
                    day.tm_year + 1900, day.tm_mon + 1, day.tm_mday, day.tm_hour, day.tm_min, day.tm_sec),
        "a certificate that is valid now; if this one should be, check the clock");
  };
  const ASN1_TIME* begin = ::X509_get0_notBefore(certificate);
  const ASN1_TIME* end = ::X509_get0_notAfter(certificate);
  if (::X509_cmp_current_time(begin) >= 0) return refused("before", begin);
  if (::X509_cmp_current_time(end) <= 0) return refused("after", end);
  return {};
}

Result<void> use_chain(const path& file, ssl::context& context) {
  DI_ASSIGN(const std::string text, read_small_file(file, kMostBytes));
  boost::system::error_code code;
  context.use_certificate_chain(boost::asio::buffer(text), code);
  if (code) {
    return unusable(file, fmt::format("it holds no chain of certificates in PEM ({})", openssl_reason()),
                    "--ssl-certfile takes the server's own certificate and behind it those that lead to the "
                    "authority, each between BEGIN CERTIFICATE and END CERTIFICATE");
  }
  return check_validity(file, ::SSL_CTX_get0_certificate(context.native_handle()));
}

// Nobody is there to be asked for a password: notes that one is needed.
int note_password(char*, int, int, void* needed) {
  *static_cast<bool*>(needed) = true;
  return -1;
}

Result<void> use_key(const path& file, const path& chain, ssl::context& context) {
  DI_ASSIGN(std::string text, read_small_file(file, kMostBytes));
  const std::unique_ptr<BIO, decltype(&::BIO_free)> bytes(
      ::BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), ::BIO_free);
  bool password = false;
  const std::unique_ptr<EVP_PKEY, decltype(&::EVP_PKEY_free)> key(
      ::PEM_read_bio_PrivateKey(bytes.get(), nullptr, note_password, &password), ::EVP_PKEY_free);
  ::OPENSSL_cleanse(text.data(), text.size());
  if (password) {
    ::ERR_clear_error();
    return unusable(file, "the private key has a password",
                    "store it without one, readable by the server alone: openssl pkey -in FILE -out NEW");
  }
  if (!key) {
    return unusable(file, fmt::format("it holds no private key in PEM ({})", openssl_reason()),
                    "--ssl-keyfile takes the private key of the first certificate of --ssl-certfile");
  }
  SSL_CTX* const native = context.native_handle();
  if (::X509_check_private_key(::SSL_CTX_get0_certificate(native), key.get()) != 1) {
    ::ERR_clear_error();
    return unusable(file, fmt::format("the key is not that of the first certificate in {}", chain.string()),
                    "give the two files that were made together; in the chain the server's own "
                    "certificate comes first");
  }
  if (::SSL_CTX_use_PrivateKey(native, key.get()) != 1)
    return unusable(file, openssl_reason(), "a key that this OpenSSL and its security level allow");
  return {};
}

Result<std::shared_ptr<ssl::context>> make_context(const path& chain, const path& key) {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  SSL_CTX* const native = context->native_handle();
  ::SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  ::SSL_CTX_set_options(native, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  ::SSL_CTX_set_cipher_list(native, kCiphers);
  // Clients resume with tickets; a table of sessions would only take memory.
  ::SSL_CTX_set_session_cache_mode(native, SSL_SESS_CACHE_OFF);
  ::SSL_CTX_set_alpn_select_cb(native, choose_protocol, nullptr);
  DI_TRY(use_chain(chain, *context));
  DI_TRY(use_key(key, chain, *context));
  return context;
}

}  // namespace

Result<std::unique_ptr<Tls>> Tls::read(const path& chain, const path& key) {
  std::unique_ptr<Tls> tls(new Tls);
  tls->chain_ = chain;
  tls->key_ = key;
  DI_TRY(tls->reread());
  return tls;
}

Result<void> Tls::reread() {
  DI_ASSIGN(auto context, make_context(chain_, key_));
  const std::lock_guard lock(mutex_);
  context_ = std::move(context);
  return {};
}

std::shared_ptr<ssl::context> Tls::context() const {
  const std::lock_guard lock(mutex_);
  return context_;
}

}  // namespace deepinfer::serve
