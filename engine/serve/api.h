// What the server answers: paths to handlers. No sockets; any thread. interfaces.md section 4, recipe.md sections 7 to 9.
#pragma once

#include <atomic>
#include <ctime>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dialects/request.h"
#include "serve/answer.h"
#include "serve/http.h"
#include "serve/keys.h"
#include "serve/metrics.h"
#include "serve/response_file.h"
#include "serve/tenant_store.h"
#include "serve/tool_call_memory.h"
#include "service/turn.h"

namespace deepinfer::serve {

struct ApiOptions {
  std::string model_name = "deepinfer";  // what clients name; any name is taken unless strict_model_names
  std::vector<std::string> aliases;
  bool strict_model_names = false;
  std::string version;                 // of the program
  StoreLimits store;                   // of responses
  ResponseFile* store_file = nullptr;  // where they are kept too; outlives the Api
};

class Api {
 public:
  // `keys` and `metrics` outlive the object.
  Api(ApiOptions options, const ApiKeys& keys, ServingMetrics& metrics);

  // The model is loaded: it is ready. The service outlives every answer.
  void serve(service::Service& service);
  // The keys have changed: what they say about tenants holds from now on.
  void apply_keys();
  void note_slow_reader() { metrics_.slow_readers.add(); }
  void note_failed_handshake() { metrics_.failed_handshakes.add(); }
  void note_connections(std::size_t open) { metrics_.connections.set(static_cast<double>(open)); }
  void note_refusal(Refusal why) { metrics_.refused(why).add(); }
  // No new work from now on: /ready says 503, and so does everything that would start a turn.
  void drain() { draining_.store(true); }
  bool draining() const { return draining_.load(); }
  // The device has failed, and the process is about to end: /health, /ready and everything that would start a turn say 503
  // and why. The first reason stays. Any thread.
  void fail(const Error& error);
  bool failed() const { return failed_.load(); }

  // May take as long as reading and encoding the request takes.
  HttpReply handle(const HttpRequest& request);
  // In the shape of the path's dialect: for what goes wrong before a handler sees a request.
  static HttpReply error_reply(const HttpRequest& request, int status, const std::string& message);

 private:
  using Handler = HttpReply (Api::*)(const HttpRequest&, const KeyOwner&);
  struct Route {
    const char* method;
    const char* path;
    Handler handler;
    bool open;  // needs no key
  };
  static const Route kRoutes[];

  HttpReply handle_route(const HttpRequest& request);
  // nullptr: no such path, or (`known`) not with this method.
  static const Route* find_route(const HttpRequest& request, bool& known);

  HttpReply health(const HttpRequest& request, const KeyOwner& owner);
  HttpReply ready(const HttpRequest& request, const KeyOwner& owner);
  HttpReply metrics_page(const HttpRequest& request, const KeyOwner& owner);
  HttpReply version(const HttpRequest& request, const KeyOwner& owner);
  HttpReply root(const HttpRequest& request, const KeyOwner& owner);
  HttpReply models(const HttpRequest& request, const KeyOwner& owner);
  HttpReply model(const HttpRequest& request, const KeyOwner& owner);
  HttpReply tokenize(const HttpRequest& request, const KeyOwner& owner);
  HttpReply detokenize(const HttpRequest& request, const KeyOwner& owner);
  HttpReply chat(const HttpRequest& request, const KeyOwner& owner);
  HttpReply completions(const HttpRequest& request, const KeyOwner& owner);
  HttpReply responses(const HttpRequest& request, const KeyOwner& owner);
  HttpReply messages(const HttpRequest& request, const KeyOwner& owner);
  HttpReply stored_response(const HttpRequest& request, const KeyOwner& owner);
  HttpReply delete_response(const HttpRequest& request, const KeyOwner& owner);
  HttpReply cancel_response(const HttpRequest& request, const KeyOwner& owner);
  HttpReply response_input_items(const HttpRequest& request, const KeyOwner& owner);
  HttpReply count_message_tokens(const HttpRequest& request, const KeyOwner& owner);
  HttpReply count_response_tokens(const HttpRequest& request, const KeyOwner& owner);

  HttpReply generate(dialects::Dialect dialect, const HttpRequest& http, const KeyOwner& owner);
  // A prompt of a request, ready to be started, and how much it may produce.
  struct Prompt {
    service::EncodedTurn encoded;
    std::int64_t max_tokens = 0;
  };
  dialects::Parsed<Prompt> with_limit(service::EncodedTurn encoded, const dialects::Request& request) const;
  // Starts `answers` turns of each prompt. `options` has the request and its id.
  HttpReply answer(const HttpRequest& http, const KeyOwner& owner, AnswerOptions options,
                   const std::vector<Prompt>& prompts, std::uint32_t answers);
  // The prompt's length, or the error reply.
  HttpReply count_tokens(dialects::Dialect dialect, const HttpRequest& http, const KeyOwner& owner,
                         const char* member);
  dialects::RequestContext context(const KeyOwner& owner);
  // RequestContext: same name.
  dialects::Parsed<text::JsonValue> earlier_items(const KeyOwner& owner, const std::string& id);
  dialects::Parsed<text::JsonValue> stored_item(const KeyOwner& owner, const std::string& id);
  // Takes over what the file holds, and keeps it up to date.
  void use(ResponseFile& file);
  // Stores the response as one in progress, and what becomes of it when it is over.
  void keep(AnswerOptions& options, const KeyOwner& owner);
  void forget_running(const std::string& tenant, const std::string& id);
  text::JsonValue model_object(const std::string& name) const;
  // nullptr while the model loads, once it drains, and once the device has failed.
  service::Service* ready_service() const { return draining() || failed() ? nullptr : service_.load(); }
  HttpReply not_ready(const HttpRequest& request) const;
  bool enter(const KeyOwner& owner);
  void leave(const KeyOwner& owner);

  ApiOptions options_;
  const ApiKeys& keys_;
  ServingMetrics& metrics_;
  const std::time_t created_ = std::time(nullptr);
  std::atomic<service::Service*> service_ = nullptr;
  // Tokens of prompt and answer together: as many as the model's context and the blocks hold; 0 while it loads.
  std::atomic<std::int64_t> context_limit_ = 0;
  std::atomic<bool> draining_ = false;
  std::mutex failure_mutex_;
  std::string failure_;  // written once, under failure_mutex_, before failed_ is set
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::map<std::string, int> under_way_;  // requests, by tenant
  ResponseStore store_;
  ToolCallMemory tool_calls_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<CancelSwitch>> running_;  // by tenant and id
};

// The dialect whose clients call a path.
dialects::Dialect dialect_of(std::string_view path);

}  // namespace deepinfer::serve
