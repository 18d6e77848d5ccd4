#include "serve/server.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/log.h"
#include "base/processors.h"
#include "serve/session.h"

namespace deepinfer::serve {

struct Server::State {
  State(Api& served, const ServerOptions& wanted)
      : api(served),
        options(wanted),
        workers(static_cast<std::size_t>(wanted.workers)),
        strand(asio::make_strand(context)),
        acceptor(strand) {}

  asio::awaitable<void> accept();
  void add(asio::ip::tcp::socket socket);
  void for_each_session(void (Session::*action)());

  Api& api;
  ServerOptions options;
  asio::io_context context;
  asio::thread_pool workers;
  asio::strand<asio::io_context::executor_type> strand;  // of the acceptor
  asio::ip::tcp::acceptor acceptor;
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::condition_variable changed;
  std::unordered_set<std::shared_ptr<Session>> sessions;  // guarded by mutex
};

asio::awaitable<void> Server::State::accept() {
  for (;;) {
    auto [code, socket] =
        co_await acceptor.async_accept(asio::make_strand(context), asio::as_tuple(asio::use_awaitable));
    if (code == asio::error::operation_aborted || !acceptor.is_open()) co_return;
    if (code) {
      // Out of descriptors, or the client has gone already: others may still get in.
      log_warning(fmt::format("a connection could not be accepted: {}", code.message()));
      asio::steady_timer pause(strand, std::chrono::milliseconds(20));
      co_await pause.async_wait(asio::as_tuple(asio::use_awaitable));
      continue;
    }
    add(std::move(socket));
  }
}

void Server::State::add(asio::ip::tcp::socket socket) {
  std::shared_ptr<Session> session;
  {
    const std::lock_guard lock(mutex);
    if (static_cast<int>(sessions.size()) >= options.max_connections) {
      api.note_refusal(Refusal::kConnections);
      return;  // closes it
    }
    session = std::make_shared<Session>(std::move(socket), api, options, workers);
    sessions.insert(session);
    api.note_connections(sessions.size());
  }
  asio::co_spawn(session->executor(), session->run(), [this, session](const std::exception_ptr& error) {
    if (error) log_warning("a connection ended by an exception");
    {
      const std::lock_guard lock(mutex);
      sessions.erase(session);
      api.note_connections(sessions.size());
    }
    changed.notify_all();
  });
}

void Server::State::for_each_session(void (Session::*action)()) {
  const std::lock_guard lock(mutex);
  for (const auto& session : sessions)
    asio::post(session->executor(), [session, action] { ((*session).*action)(); });
}

namespace {

// Every connection is a descriptor.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

Server::Server(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<Server>> Server::start(Api& api, const ServerOptions& options) {
  ServerOptions wanted = options;
  // Never one alone: a body of 64 MiB must not keep /health waiting.
  const int half = std::max(2, static_cast<int>(std::thread::hardware_concurrency()) / 2);
  if (wanted.io_threads == 0) wanted.io_threads = half;
  if (wanted.workers == 0) wanted.workers = half;
  raise_descriptor_limit();
  auto state = std::make_unique<State>(api, wanted);
  const auto refuse = [&](const std::string& why) {
    return make_error(ErrorKind::kIo,
                      fmt::format("cannot listen on {} port {}: {}", wanted.host, wanted.port, why),
                      "another --port or --host, or end whoever listens there");
  };
  boost::system::error_code code;
  const auto address = asio::ip::make_address(wanted.host, code);
  if (code) return refuse("\"" + wanted.host + "\" is no IP address");
  if (wanted.port < 0 || wanted.port > 65535) return refuse("a port is 0 to 65535");
  const asio::ip::tcp::endpoint endpoint(address, static_cast<std::uint16_t>(wanted.port));
  state->acceptor.open(endpoint.protocol(), code);
  if (!code) state->acceptor.set_option(asio::socket_base::reuse_address(true), code);
  if (!code) state->acceptor.bind(endpoint, code);
  if (!code) state->acceptor.listen(4096, code);
  if (code) return refuse(code.message());
  asio::co_spawn(state->strand, state->accept(), asio::detached);
  for (int i = 0; i < wanted.io_threads; ++i)
    state->threads.emplace_back([context = &state->context] { context->run(); });
  return std::unique_ptr<Server>(new Server(std::move(state)));
}

int Server::port() const {
  boost::system::error_code code;
  return state_->acceptor.local_endpoint(code).port();
}

int Server::connections() const {
  const std::lock_guard lock(state_->mutex);
  return static_cast<int>(state_->sessions.size());
}

void Server::drain(std::int64_t limit_ms) {
  asio::post(state_->strand, [state = state_.get()] {
    boost::system::error_code code;
    state->acceptor.close(code);
  });
  state_->for_each_session(&Session::close_when_idle);
  std::unique_lock lock(state_->mutex);
  const auto none_left = [&] { return state_->sessions.empty(); };
  if (state_->changed.wait_for(lock, std::chrono::milliseconds(limit_ms), none_left)) return;
  lock.unlock();
  state_->for_each_session(&Session::abort);
  lock.lock();
  state_->changed.wait(lock, none_left);
}

Server::~Server() {
  drain(0);
  state_->context.stop();
  state_->workers.join();
  for (std::thread& thread : state_->threads)
    thread.join();
}

}  // namespace deepinfer::serve
