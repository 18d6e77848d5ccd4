// TLS: which files are refused, and the server under clients that speak it well, badly, or not at all.
#include "serve/tls.h"

#include <fstream>

#include "serve/certificate_test_support.h"
#include "serve/server_test_support.h"

namespace deepinfer::serve {
namespace {

namespace fs = std::filesystem;
namespace ssl = asio::ssl;

// A folder with the server's two files.
class TlsFiles {
 public:
  TlsFiles() { fs::create_directory(folder_); }
  ~TlsFiles() { fs::remove_all(folder_); }
  TlsFiles(const TlsFiles&) = delete;
  TlsFiles& operator=(const TlsFiles&) = delete;

  void write(const std::string& chain, const std::string& key) const {
    std::ofstream(chain_) << chain;
    std::ofstream(key_) << key;
  }
  void write(const TestCertificate& one) const { write(one.chain(), one.key()); }
  Result<std::unique_ptr<Tls>> read() const { return Tls::read(chain_, key_); }
  const fs::path& chain() const { return chain_; }
  const fs::path& key() const { return key_; }

 private:
  fs::path folder_ = fs::temp_directory_path() / ("deepinfer_tls_" + random_id());
  fs::path chain_ = folder_ / "chain.pem";
  fs::path key_ = folder_ / "key.pem";
};

class TlsFilesTest : public testing::Test {
 protected:
  // Refused, naming the file at fault and saying this of it.
  void expect_refused(const fs::path& named, std::string_view said) {
    const auto read = files_.read();
    ASSERT_FALSE(read.ok()) << said;
    EXPECT_EQ(read.error().kind, ErrorKind::kFormat);
    EXPECT_NE(read.error().what.find(named.string() + ": "), std::string::npos) << read.error().what;
    EXPECT_NE(read.error().what.find(said), std::string::npos) << read.error().what;
    EXPECT_FALSE(read.error().remedy.empty());
  }
  TlsFiles files_;
  const TestCertificate good_;
};

TEST_F(TlsFilesTest, OneFileCanHoldBoth) {
  files_.write(good_.key() + good_.chain(), "");
  EXPECT_TRUE(Tls::read(files_.chain(), files_.chain()).ok());
}

TEST_F(TlsFilesTest, AbsentFilesAreNamed) {
  for (const fs::path& absent : {files_.chain(), files_.key()}) {
    files_.write(good_);
    fs::remove(absent);
    const auto read = files_.read();
    ASSERT_FALSE(read.ok());
    EXPECT_EQ(read.error().kind, ErrorKind::kNotFound);
    EXPECT_NE(read.error().what.find(absent.string()), std::string::npos) << read.error().what;
  }
}

TEST_F(TlsFilesTest, WhatIsNoPemIsRefused) {
  files_.write(good_.key(), good_.key());
  expect_refused(files_.chain(), "no chain of certificates");
  files_.write("nonsense", good_.key());
  expect_refused(files_.chain(), "no chain of certificates");
  files_.write(good_.chain(), good_.chain());
  expect_refused(files_.key(), "no private key");
  files_.write(good_.chain(), "");
  expect_refused(files_.key(), "no private key");
}

TEST_F(TlsFilesTest, AnothersKeyIsRefused) {
  files_.write(good_.chain(), TestCertificate().key());
  expect_refused(files_.key(), "not that of the first certificate in " + files_.chain().string());
  // Certificates in the wrong order.
  files_.write(TestCertificate().chain() + good_.chain(), good_.key());
  expect_refused(files_.key(), "not that of the first certificate");
}

TEST_F(TlsFilesTest, AKeyWithAPasswordIsRefused) {
  files_.write(TestCertificate({.password = "secret"}));
  expect_refused(files_.key(), "has a password");
}

TEST_F(TlsFilesTest, CertificatesOfAnotherTimeAreRefused) {
  files_.write(TestCertificate({.from_s = -7200, .to_s = -3600}));
  expect_refused(files_.chain(), "not valid after 2");
  files_.write(TestCertificate({.from_s = 3600, .to_s = 7200}));
  expect_refused(files_.chain(), "not valid before 2");
}

TEST_F(TlsFilesTest, ABadFileKeepsWhatWasThere) {
  files_.write(good_);
  auto read = files_.read();
  ASSERT_TRUE(read.ok()) << read.error().message();
  const Tls& tls = **read;
  const auto first = tls.context();
  files_.write(good_.chain(), TestCertificate().key());
  EXPECT_FALSE((*read)->reread().ok());
  EXPECT_EQ(tls.context(), first);
  files_.write(TestCertificate());
  EXPECT_TRUE((*read)->reread().ok());
  EXPECT_NE(tls.context(), first);
}

class TlsTest : public ServerTest {
 protected:
  TlsTest() {
    files_.write(TestCertificate({.name = "first"}));
    auto read = files_.read();
    if (!read.ok()) throw std::runtime_error(read.error().message());
    tls_ = std::move(*read);
  }
  ~TlsTest() override { server_.reset(); }
  void start_tls(ServerOptions options = {}) {
    options.tls = tls_.get();
    start_ready(options);
  }
  Client tls_client() { return Client(server_->port(), trusting_); }
  bool is_served() {
    Client one = tls_client();
    one.request("GET", "/health");
    return one.read().status == 200;
  }
  // Whom the certificate that the server shows is for.
  static std::string shown(Client& client) {
    char name[64] = {};
    const std::unique_ptr<X509, decltype(&::X509_free)> certificate(::SSL_get1_peer_certificate(client.tls()),
                                                                    ::X509_free);
    ::X509_NAME_get_text_by_NID(::X509_get_subject_name(certificate.get()), NID_commonName, name,
                                sizeof(name));
    return name;
  }
  std::uint64_t failed_handshakes() { return metrics_->failed_handshakes.value(); }
  bool connections_end() {
    for (int i = 0; i < 2000 && server_->connections() > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return server_->connections() == 0;
  }
  // One that never ends by itself, and is under way.
  void begin_answer(Client& client, bool stream) {
    client.request(
        "POST", "/v1/chat/completions",
        chat(std::string(R"(,"ignore_eos":true,"max_tokens":1900,"stream":)") + (stream ? "true" : "false")));
    if (stream) client.until("data: ");
    while (demo().engine().stats().running == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  TlsFiles files_;
  std::unique_ptr<Tls> tls_;
  ssl::context trusting_{ssl::context::tls_client};
};

TEST_F(TlsTest, AnswersAreThoseOfPlainHttp) {
  start_ready();
  const JsonValue plain = posted("/v1/chat/completions", chat(""));
  start_tls();
  Client one = tls_client();
  one.request("POST", "/v1/chat/completions", chat(""));
  const auto whole = text::read_json(one.read().body);
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(at(*whole, {"choices", "0", "message"}), at(plain, {"choices", "0", "message"}));
  one.request("POST", "/v1/chat/completions", chat(R"(,"stream":true)"));
  std::string content;
  for (const std::string& line : data_of(one.read().body)) {
    const auto chunk = text::read_json(line);
    if (chunk.ok()) content += at(*chunk, {"choices", "0", "delta", "content"}).text();
  }
  EXPECT_EQ(content, at(plain, {"choices", "0", "message", "content"}).text());
}

TEST_F(TlsTest, OldVersionsAndOtherProtocolsAreTurnedAway) {
  start_tls();
  for (const auto& [version, accepted] :
       {std::pair(TLS1_1_VERSION, false), std::pair(TLS1_2_VERSION, true), std::pair(TLS1_3_VERSION, true)}) {
    ssl::context one(ssl::context::tls_client);
    ::SSL_CTX_set_security_level(one.native_handle(), 0);  // the client's own would stop TLS 1.1 first
    ::SSL_CTX_set_min_proto_version(one.native_handle(), version);
    ::SSL_CTX_set_max_proto_version(one.native_handle(), version);
    if (accepted) {
      EXPECT_EQ(::SSL_version(Client(server_->port(), one).tls()), version);
    } else {
      EXPECT_THROW(Client(server_->port(), one), boost::system::system_error);
    }
  }
  const auto agreed = [&](std::string_view offered) {
    ssl::context one(ssl::context::tls_client);
    ::SSL_CTX_set_alpn_protos(one.native_handle(), reinterpret_cast<const unsigned char*>(offered.data()),
                              static_cast<unsigned int>(offered.size()));
    Client client(server_->port(), one);
    const unsigned char* name = nullptr;
    unsigned int length = 0;
    ::SSL_get0_alpn_selected(client.tls(), &name, &length);
    return std::string(name, name + length);
  };
  EXPECT_EQ(agreed("\x02h2\x08http/1.1"), "http/1.1");
  EXPECT_THROW(agreed("\x02h2"), boost::system::system_error);
  EXPECT_TRUE(is_served());
}

TEST_F(TlsTest, AClientThatGoesCancelsItsRequest) {
  start_tls();
  ASSERT_TRUE(engine_is_idle());
  const std::int64_t before = demo().engine().stats().cancelled;
  int left = 0;
  for (const bool stream : {true, false}) {
    {
      Client gone = tls_client();
      begin_answer(gone, stream);
      gone.shut();  // without a word
      EXPECT_TRUE(engine_is_idle());
    }
    {
      Client gone = tls_client();
      begin_answer(gone, stream);
      gone.socket().set_option(asio::socket_base::linger(true, 0));
      gone.shut();  // a reset
      EXPECT_TRUE(engine_is_idle());
    }
    {
      Client gone = tls_client();
      begin_answer(gone, stream);
      gone.say_goodbye();
      EXPECT_TRUE(engine_is_idle());
    }
    left += 3;
    EXPECT_EQ(demo().engine().stats().cancelled, before + left);
  }
}

// Records that carry no bytes of a request are no sign that the client has gone; nor is its next request.
TEST_F(TlsTest, AClientThatSpeaksMeanwhileStays) {
  start_tls();
  Client one = tls_client();
  one.request("POST", "/v1/chat/completions", chat(R"(,"ignore_eos":true,"max_tokens":200,"stream":true)"));
  one.until("data: ");
  ASSERT_EQ(::SSL_key_update(one.tls(), SSL_KEY_UPDATE_REQUESTED), 1);
  one.send("GET /heal");  // begins with the record of the new key
  one.until("data: ");
  one.send("th HTTP/1.1\r\nHost: a\r\n\r\nGET /nothing HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_NE(one.read_rest().find("[DONE]"), std::string::npos);
  EXPECT_EQ(one.read().status, 200);
  EXPECT_EQ(one.read().status, 404);
}

TEST_F(TlsTest, WhoDoesNotSpeakTlsIsClosed) {
  start_tls();
  Client good = tls_client();
  Client plain = client();
  plain.request("GET", "/health");
  plain.until("never");  // an alert at most
  EXPECT_TRUE(plain.closed());
  Client nonsense = client();
  nonsense.send(std::string(3000, '\x16'));
  nonsense.until("never");
  EXPECT_TRUE(nonsense.closed());
  {
    // Version, length and a piece of a greeting that stops here.
    Client half = client();
    half.send(std::string_view("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11));
    half.shut();
  }
  good.request("GET", "/health");
  EXPECT_EQ(good.read().status, 200);
  good.shut();
  EXPECT_TRUE(connections_end());
  EXPECT_EQ(failed_handshakes(), 3);
}

TEST_F(TlsTest, AHandshakeHasItsTime) {
  ServerOptions options;
  options.handshake_timeout_ms = 50;
  start_tls(options);
  Client silent = client();
  EXPECT_TRUE(silent.closed());
  Client slow = client();
  slow.send(std::string_view("\x16\x03\x01\x02\x00\x01", 6));
  EXPECT_TRUE(slow.closed());
  EXPECT_TRUE(connections_end());
  EXPECT_EQ(failed_handshakes(), 2);
}

TEST_F(TlsTest, NewConnectionsShowTheNewCertificate) {
  start_tls();
  Client before = tls_client();
  EXPECT_EQ(shown(before), "first");
  files_.write(TestCertificate({.name = "second"}));
  ASSERT_TRUE(tls_->reread().ok());
  Client after = tls_client();
  EXPECT_EQ(shown(after), "second");
  before.request("GET", "/health");
  EXPECT_EQ(before.read().status, 200);
}

TEST_F(TlsTest, TheEndOfAConnectionIsSaid) {
  start_tls();
  Client last = tls_client();
  last.request("GET", "/health", "", "Connection: close\r\n");
  EXPECT_EQ(last.read().status, 200);
  EXPECT_TRUE(last.ended_well());
  // `last` never says goodbye itself, and its socket is open.
  EXPECT_TRUE(connections_end());
  Client idle = tls_client();
  idle.request("GET", "/health");
  idle.read();
  Client busy = tls_client();
  begin_answer(busy, true);
  std::thread drain([&] { server_->drain(200); });
  EXPECT_TRUE(idle.ended_well());
  busy.until("never");
  EXPECT_FALSE(busy.ended_well());  // cut off: it must not take what it has for all
  drain.join();
  EXPECT_TRUE(engine_is_idle());
}

}  // namespace
}  // namespace deepinfer::serve
