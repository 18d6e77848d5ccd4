// Responses that are stored: read, listed, cancelled, deleted, gone on from. recipe.md 7.2 and section 9.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <utility>

#include "base/log.h"
#include "dialects/error_body.h"
#include "dialects/events.h"
#include "serve/api.h"
#include "serve/reply.h"

namespace deepinfer::serve {
namespace {

using text::JsonValue;

constexpr std::string_view kPrefix = "/v1/responses/";
constexpr std::size_t kMostItems = 100, kDefaultItems = 20;

constexpr std::string_view kCancel = "/cancel", kInputItems = "/input_items";

// "resp_1" of "/v1/responses/resp_1/cancel".
std::string id_in(const HttpRequest& request, std::string_view suffix = {}) {
  return request.path.substr(kPrefix.size(), request.path.size() - kPrefix.size() - suffix.size());
}

std::string status_of(const JsonValue& response) {
  const JsonValue* status = response.find("status");
  return status == nullptr ? std::string() : status->text();
}

// Our own text: it is JSON.
JsonValue read_stored(const std::string& text) {
  auto value = text::read_json(text);
  return value ? std::move(*value) : JsonValue();
}

// A value of the query; nothing is decoded, what is looked for here has plain letters only.
std::string query_value(std::string_view query, std::string_view key) {
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string_view pair = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    if (pair.size() > key.size() && pair.starts_with(key) && pair[key.size()] == '=')
      return std::string(pair.substr(key.size() + 1));
  }
  return {};
}

dialects::RequestError bad_query(std::string_view param, std::string message) {
  dialects::RequestError error = dialects::server_error(400, std::move(message));
  error.param = std::string(param);
  return error;
}

// Items without an id get one, so that a list of them can be walked through.
void name_items(JsonValue& items, const std::string& response_id) {
  JsonValue named = JsonValue::array();
  for (std::size_t i = 0; i < items.size(); ++i) {
    JsonValue item = items.items()[i];
    const JsonValue* id = item.find("id");
    if (item.is_object() && (id == nullptr || !id->is_string()))
      item.set("id", fmt::format("item_{}_{}", response_id, i));
    named.push(std::move(item));
  }
  items = std::move(named);
}

// One whose answer will not go on: the server ended, or the client has gone.
void end_if_open(StoredResponse& stored) {
  JsonValue response = read_stored(stored.response);
  if (status_of(response) != "in_progress") return;
  response.set("status", "cancelled");
  stored.response = text::write_json(response);
}

HttpReply not_found(const HttpRequest& request, const std::string& id) {
  return Api::error_reply(request, 404, "there is no response \"" + id.substr(0, 100) + "\"");
}

}  // namespace

dialects::Parsed<JsonValue> Api::earlier_items(const KeyOwner& owner, const std::string& id) {
  const auto stored = store_.find(owner.tenant, id);
  dialects::RequestError error = dialects::server_error(400, "");
  error.param = "previous_response_id";
  if (!stored) {
    error.code = "previous_response_not_found";
    error.message = fmt::format("Previous response with id '{}' not found.", id.substr(0, 100));
    return error;
  }
  const JsonValue response = read_stored(stored->response);
  const std::string status = status_of(response);
  if (status != "completed" && status != "incomplete") {
    error.message =
        fmt::format("Previous response with id '{}' is {}: there is nothing to go on from.", id, status);
    return error;
  }
  JsonValue items = read_stored(stored->input);
  const JsonValue* output = response.find("output");
  for (std::size_t i = 0; output != nullptr && i < output->size(); ++i)
    items.push(output->items()[i]);
  return items;
}

dialects::Parsed<JsonValue> Api::stored_item(const KeyOwner& owner, const std::string& id) {
  // Ids of ours have that of their response in them: msg_resp_1_0.
  constexpr std::string_view kMark = "resp_";
  const std::size_t begin = std::min(id.find(kMark), id.size());
  const std::size_t end = std::min(id.find('_', begin + kMark.size()), id.size());
  if (const auto stored = store_.find(owner.tenant, id.substr(begin, end - begin))) {
    const JsonValue response = read_stored(stored->response), input = read_stored(stored->input);
    for (const JsonValue* list : {response.find("output"), &input}) {
      for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
        const JsonValue* name = list->items()[i].find("id");
        if (name != nullptr && *name == JsonValue(id)) return list->items()[i];
      }
    }
  }
  dialects::RequestError error = dialects::server_error(
      400,
      fmt::format("Item with id '{}' not found: it is of no response that is stored.", id.substr(0, 100)));
  error.param = "input";
  return error;
}

void Api::use(ResponseFile& file) {
  struct Row {
    std::string tenant, id;
    StoredResponse response;
    std::int64_t until_s;
  };
  std::vector<Row> rows;
  const auto read = file.read(
      [&](const std::string& tenant, const std::string& id, StoredResponse response, std::int64_t until_s) {
        end_if_open(response);
        rows.push_back({tenant, id, std::move(response), until_s});
      });
  if (!read) log_error(read.error().message());
  store_.set_mirror([&file](const std::string& tenant, const std::string& id, const StoredResponse* response,
                            std::int64_t until_s) { file.write(tenant, id, response, until_s); });
  for (Row& row : rows)
    store_.restore(row.tenant, row.id, std::move(row.response), row.until_s);
}

void Api::keep(AnswerOptions& options, const KeyOwner& owner) {
  const std::string tenant = owner.tenant, id = options.id;
  name_items(options.request.input_items, id);
  dialects::AnswerIdentity identity;
  identity.id = id;
  identity.model = options.request.model;
  identity.created = std::time(nullptr);
  const auto writer = dialects::make_answer_writer(options.request, identity, options.profile);
  store_.put(
      tenant, id,
      {text::write_json(writer->body()), text::write_json(std::exchange(options.request.input_items, {}))});
  options.cancel = std::make_shared<CancelSwitch>();
  {
    const std::lock_guard lock(mutex_);
    running_[{tenant, id}] = options.cancel;
  }
  options.on_body = [this, tenant, id](const JsonValue& body) {
    store_.change(tenant, id, [&](StoredResponse& stored) { stored.response = text::write_json(body); });
  };
  options.on_end = [this, tenant, id](const AnswerSummary& summary) {
    forget_running(tenant, id);
    if (summary.finish != "cancelled") return;
    store_.change(tenant, id, end_if_open);
  };
}

void Api::forget_running(const std::string& tenant, const std::string& id) {
  const std::lock_guard lock(mutex_);
  running_.erase({tenant, id});
}

HttpReply Api::stored_response(const HttpRequest& request, const KeyOwner& owner) {
  const std::string id = id_in(request);
  if (query_value(request.query, "stream") == "true")
    return refusal(request, bad_query("stream", "a stored response is read whole: leave 'stream' out"));
  const auto stored = store_.find(owner.tenant, id);
  if (!stored) return not_found(request, id);
  HttpReply reply;
  reply.body = stored->response;
  return reply;
}

HttpReply Api::delete_response(const HttpRequest& request, const KeyOwner& owner) {
  const std::string id = id_in(request);
  if (!store_.erase(owner.tenant, id)) return not_found(request, id);
  return json_reply(JsonValue::object({{"id", id}, {"object", "response"}, {"deleted", true}}));
}

HttpReply Api::cancel_response(const HttpRequest& request, const KeyOwner& owner) {
  const std::string id = id_in(request, kCancel);
  const auto stored = store_.find(owner.tenant, id);
  if (!stored) return not_found(request, id);
  JsonValue response = read_stored(stored->response);
  const std::string status = status_of(response);
  if (status == "cancelled") return json_reply(response);
  std::shared_ptr<CancelSwitch> cancel;
  {
    const std::lock_guard lock(mutex_);
    const auto running = running_.find({owner.tenant, id});
    if (running != running_.end()) cancel = running->second;
  }
  if (status != "in_progress" || cancel == nullptr) {
    return error_reply(request, 400,
                       fmt::format("the response cannot be cancelled: it is {}", status_of(response)));
  }
  cancel->cancel();
  // What has been made of it so far is stored within a step.
  response.set("status", "cancelled");
  return json_reply(response);
}

HttpReply Api::response_input_items(const HttpRequest& request, const KeyOwner& owner) {
  const std::string id = id_in(request, kInputItems);
  const auto stored = store_.find(owner.tenant, id);
  if (!stored) return not_found(request, id);
  std::size_t limit = kDefaultItems;
  if (const std::string text = query_value(request.query, "limit"); !text.empty()) {
    const auto read = std::from_chars(text.data(), text.data() + text.size(), limit);
    if (read.ec != std::errc() || read.ptr != text.data() + text.size() || limit < 1 || limit > kMostItems)
      return refusal(request, bad_query("limit", fmt::format("'limit' is 1 to {}", kMostItems)));
  }
  const std::string order = query_value(request.query, "order");
  if (!order.empty() && order != "asc" && order != "desc")
    return refusal(request, bad_query("order", "'order' is asc or desc"));
  const JsonValue input = read_stored(stored->input);
  std::vector<JsonValue> items = input.items();
  if (order != "asc") std::reverse(items.begin(), items.end());
  const std::string after = query_value(request.query, "after");
  auto first = items.begin();
  if (!after.empty()) {
    first = std::find_if(items.begin(), items.end(), [&](const JsonValue& item) {
      const JsonValue* name = item.find("id");
      return name != nullptr && name->text() == after;
    });
    if (first == items.end())
      return refusal(request, bad_query("after", "'after' names no item of the response"));
    ++first;
  }
  const std::size_t left = static_cast<std::size_t>(items.end() - first);
  JsonValue list = JsonValue::array({first, first + static_cast<std::ptrdiff_t>(std::min(limit, left))});
  const auto id_of_item = [&](std::size_t index) {
    const JsonValue* name = list.size() == 0 ? nullptr : list.items()[index].find("id");
    return name == nullptr ? JsonValue() : *name;
  };
  const JsonValue first_id = id_of_item(0), last_id = id_of_item(list.size() - 1);
  return json_reply(JsonValue::object({{"object", "list"},
                                       {"data", std::move(list)},
                                       {"first_id", first_id},
                                       {"last_id", last_id},
                                       {"has_more", left > limit}}));
}

}  // namespace deepinfer::serve
