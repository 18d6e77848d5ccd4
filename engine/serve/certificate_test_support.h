// Certificates for tests, made where they are used: no private key is kept anywhere.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>
#include <stdexcept>
#include <string>

namespace deepinfer::serve {

struct CertificateWish {
  std::string name = "127.0.0.1";  // whom it is for
  long from_s = -3600;             // validity, from now
  long to_s = 3600;
  std::string password = {};  // of the key's file; empty: none
};

// A certificate that signs itself and its key, as PEM text.
class TestCertificate {
 public:
  explicit TestCertificate(const CertificateWish& wish = {}) : key_(::EVP_EC_gen("P-256"), ::EVP_PKEY_free) {
    const std::unique_ptr<X509, decltype(&::X509_free)> made(::X509_new(), ::X509_free);
    X509* const one = made.get();
    ::X509_set_version(one, X509_VERSION_3);
    ::ASN1_INTEGER_set(::X509_get_serialNumber(one), 1);
    ::X509_gmtime_adj(::X509_getm_notBefore(one), wish.from_s);
    ::X509_gmtime_adj(::X509_getm_notAfter(one), wish.to_s);
    X509_NAME* const name = ::X509_get_subject_name(one);
    const auto* const text = reinterpret_cast<const unsigned char*>(wish.name.c_str());
    ::X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, text, -1, -1, 0);
    ::X509_set_issuer_name(one, name);
    ::X509_set_pubkey(one, key_.get());
    if (::X509_sign(one, key_.get(), ::EVP_sha256()) == 0) throw std::runtime_error("no certificate");
    chain_ = written([&](BIO* out) { return ::PEM_write_bio_X509(out, one); });
    const EVP_CIPHER* const cipher = wish.password.empty() ? nullptr : ::EVP_aes_128_cbc();
    key_text_ = written([&](BIO* out) {
      return ::PEM_write_bio_PKCS8PrivateKey(out, key_.get(), cipher, wish.password.data(),
                                             static_cast<int>(wish.password.size()), nullptr, nullptr);
    });
  }
  const std::string& chain() const { return chain_; }
  const std::string& key() const { return key_text_; }

 private:
  template <typename Write>
  static std::string written(Write write) {
    const std::unique_ptr<BIO, decltype(&::BIO_free)> out(::BIO_new(::BIO_s_mem()), ::BIO_free);
    if (write(out.get()) != 1) throw std::runtime_error("no PEM");
    char* text = nullptr;
    const long size = ::BIO_get_mem_data(out.get(), &text);
    return {text, static_cast<std::size_t>(size)};
  }

  std::unique_ptr<EVP_PKEY, decltype(&::EVP_PKEY_free)> key_;
  std::string chain_;
  std::string key_text_;
};

}  // namespace deepinfer::serve
