// deepinfer serve: the HTTP server.
#include <fmt/format.h>
#include <pthread.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <thread>

#include "base/log.h"
#include "command.h"
#include "engine_options.h"
#include "serve/server.h"
#include "serve/tls.h"

namespace deepinfer::app {
namespace {

struct Options {
  EngineChoice engine;
  serve::ServerOptions server;
  std::string key_file;
  std::string tls_chain_file;
  std::string tls_key_file;
  std::string name;
  std::vector<std::string> aliases;
  bool strict_names = false;
  int max_sequences = runtime::kDefaultSequences;
  int step_tokens = runtime::kDefaultStepTokens;
  serve::StoreLimits store;
  std::int64_t store_hours = 24;
  std::string store_file;
  int max_waiting = 1024;
  std::int64_t drain_s = 30;
};

// Signals are taken by one thread that waits for them; every other thread leaves them alone.
sigset_t block_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP})
    sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return set;
}

void reread_keys(serve::ApiKeys& keys, serve::Api& api) {
  if (!keys.required()) return;
  const auto done = keys.reread();
  if (done) {
    api.apply_keys();
    log_info("the API keys were read again");
  } else {
    log_error("the API keys stay what they were: " + done.error().message());
  }
}

void reread_certificate(serve::Tls* tls) {
  if (tls == nullptr) return;
  const auto done = tls->reread();
  if (done) {
    log_info("the TLS certificate and its key were read again");
  } else {
    log_error("the TLS certificate and its key stay what they were: " + done.error().message());
  }
}

// Null: plain HTTP.
Result<std::unique_ptr<serve::Tls>> read_certificate(const Options& options) {
  if (options.tls_chain_file.empty() && options.tls_key_file.empty()) return std::unique_ptr<serve::Tls>();
  if (options.tls_key_file.empty()) {
    return make_error(ErrorKind::kNotFound,
                      "cannot serve TLS: --ssl-certfile " + options.tls_chain_file + " has no --ssl-keyfile",
                      "give the file of its private key too; if that is in the same file, name it twice");
  }
  if (options.tls_chain_file.empty()) {
    return make_error(ErrorKind::kNotFound,
                      "cannot serve TLS: --ssl-keyfile " + options.tls_key_file + " has no --ssl-certfile",
                      "give the file of the certificate that the key belongs to");
  }
  auto tls = serve::Tls::read(options.tls_chain_file, options.tls_key_file);
  if (!tls) return within(std::move(tls).error(), "cannot serve TLS");
  return tls;
}

// How long a server whose device failed goes on, to let the answers out and to say 503 to whoever asks.
constexpr std::chrono::seconds kLastAnswers{3};

// A context that failed never serves again, and nothing that hangs in a driver can be waited for: the process ends, whatever
// its other threads do, and whoever watches over it starts another.
void end_worker(serve::Api& api, const Error& error) {
  api.fail(error);
  std::fprintf(stderr, "deepinfer: %s; this process ends in %lld s\n", error.what.c_str(),
               static_cast<long long>(kLastAnswers.count()));
  std::thread([] {
    std::this_thread::sleep_for(kLastAnswers);
    std::_Exit(kFailed);
  }).detach();
}

Result<void> serve_model(const Options& options) {
  const sigset_t signals = block_signals();
  auto keys = std::make_unique<serve::ApiKeys>();
  if (!options.key_file.empty()) {
    DI_ASSIGN(keys, serve::ApiKeys::read(options.key_file));
  }
  DI_ASSIGN(const auto tls, read_certificate(options));
  service::ServiceOptions wanted;
  DI_ASSIGN(wanted.load, options.engine.load_options());
  DI_ASSIGN(wanted.mode, options.engine.requested_mode());
  DI_ASSIGN(wanted.decoder_tokens, options.engine.decoder_tokens());
  DI_ASSIGN(wanted.prefix, options.engine.prefix_options());
  wanted.load.max_sequences = options.max_sequences;
  wanted.load.step_tokens = options.step_tokens;
  wanted.max_waiting = options.max_waiting;

  serve::ApiOptions names;
  names.model_name = options.name.empty() ? wanted.load.model_directory.filename().string() : options.name;
  names.aliases = options.aliases;
  names.strict_model_names = options.strict_names;
  names.version = DEEPINFER_VERSION;
  names.store = options.store;
  names.store.life_s = options.store_hours * 3600;
  std::unique_ptr<serve::ResponseFile> store_file;
  if (!options.store_file.empty()) {
    DI_ASSIGN(store_file, serve::ResponseFile::open(options.store_file));
    names.store_file = store_file.get();
  }
  serve::ServingMetrics metrics(names.model_name);
  // Destroyed last to first: the server's connections hold turns of the service.
  std::unique_ptr<service::Service> service;
  serve::Api api(names, *keys, metrics);
  serve::ServerOptions listen = options.server;
  listen.tls = tls.get();
  DI_ASSIGN(const auto server, serve::Server::start(api, listen));
  std::fprintf(stderr, "deepinfer: listening on %s://%s:%d, loading %s\n", tls ? "https" : "http",
               listen.host.c_str(), server->port(), names.model_name.c_str());
  wanted.on_failure = [&api](const Error& error) { end_worker(api, error); };
  DI_ASSIGN(service, service::Service::open(std::move(wanted)));
  api.serve(*service);
  std::fprintf(stderr, "deepinfer: ready\n");

  int signal = 0;
  while (sigwait(&signals, &signal) == 0 && signal == SIGHUP) {
    reread_keys(*keys, api);
    reread_certificate(tls.get());
  }
  std::fprintf(stderr, "deepinfer: shutting down, up to %lld s for what is under way\n",
               static_cast<long long>(options.drain_s));
  api.drain();
  server->drain(options.drain_s * 1000);
  if (api.failed())
    return make_error(ErrorKind::kDeviceLost, "the device failed before the server had ended");
  return {};
}

}  // namespace

void add_serve(Context& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = context.app.add_subcommand("serve", "HTTP server");
  options->engine.declare(*command);
  command->add_option("--host", options->server.host, "IP address to listen on")->capture_default_str();
  command->add_option("--port", options->server.port, "TCP port; 0 = any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command->add_option("--api-key-file", options->key_file,
                      "File with one key a line (tenant=, weight=, max_waiting=, priority= behind it);\n"
                      "read again on SIGHUP. Without it everybody may use the server");
  command->add_option("--ssl-certfile", options->tls_chain_file,
                      "File (PEM) with the server's certificate and those that lead to the authority: HTTPS\n"
                      "instead of HTTP. Read again on SIGHUP");
  command->add_option("--ssl-keyfile", options->tls_key_file,
                      "File (PEM) with the certificate's private key, without a password");
  command->add_option("--served-model-name", options->name,
                      "Name that clients use and see; default: the model directory's");
  command->add_option("--model-alias", options->aliases, "Another name for it; may be given more than once");
  command->add_flag("--strict-model-names", options->strict_names,
                    "Answer 404 to other names instead of taking them for this model");
  command
      ->add_option("--max-sequences", options->max_sequences, "Most requests that run at a time; others wait")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command
      ->add_option("--step-tokens", options->step_tokens,
                   "Most tokens of a step; not fewer than --max-sequences")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command
      ->add_option("--store-responses", options->store.entries,
                   "Most responses that are stored for GET and previous_response_id; 0 = none")
      ->capture_default_str();
  command->add_option("--store-bytes", options->store.bytes, "Most memory for them, in bytes")
      ->capture_default_str();
  command
      ->add_option("--store-hours", options->store_hours, "Hours after which a stored response is forgotten")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--store-file", options->store_file,
                      "File (SQLite) that keeps them over a restart too; made if it is missing");
  command->add_option("--max-waiting", options->max_waiting, "Most queued requests; one more gets 429")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--max-connections", options->server.max_connections, "Most open connections")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--drain-seconds", options->drain_s,
                   "After SIGTERM: how long requests under way may go on")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->callback([&context, options] {
    context.action = [options] {
      const auto done = serve_model(*options);
      if (done) return kDone;
      // The address is a setting that was refused (interfaces.md section 2).
      fail(done.error());
      return done.error().kind == ErrorKind::kIo ? kRefused
                                                 : static_cast<ExitCode>(exit_code(done.error().kind));
    };
  });
}

}  // namespace deepinfer::app
