#include "http_agreement/answer.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "text/json_value.h"

namespace deepinfer::http_agreement {
namespace {

using text::JsonValue;
using text::write_json;

const JsonValue kNothing;

const JsonValue& at(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.find(key);
  return value == nullptr ? kNothing : *value;
}

std::int64_t number(const JsonValue& value) {
  return value.is_number() ? std::stoll(value.text()) : 0;
}

void fault(Answer& answer, const std::string& what) {
  if (answer.fault.empty()) answer.fault = what;
}

std::optional<JsonValue> json_of(const std::string& text) {
  auto read = text::read_json(text);
  return read.ok() ? std::optional(std::move(*read)) : std::nullopt;
}

// The same JSON in the form of our own writer; other text as it is.
std::string plain_json(const std::string& text) {
  const auto value = json_of(text);
  return value ? write_json(*value) : text;
}

Choice& choice_at(Answer& answer, const JsonValue& index) {
  const auto place = static_cast<std::size_t>(number(index));
  if (answer.choices.size() <= place) answer.choices.resize(place + 1);
  return answer.choices[place];
}

// Chat and Responses: [{"token", "logprob", "bytes", "top_logprobs"}].
void add_logprobs(const JsonValue& list, std::vector<Logprob>& all) {
  for (const JsonValue& one : list.items())
    all.push_back({at(one, "token").text(), at(one, "logprob").text(),
                   write_json(at(one, "bytes")) + write_json(at(one, "top_logprobs"))});
}

// Completions: parallel lists.
void add_parallel_logprobs(const JsonValue& logprobs, std::vector<Logprob>& all) {
  const auto& names = at(logprobs, "tokens").items();
  for (std::size_t i = 0; i < names.size(); ++i) {
    all.push_back({names[i].text(), at(logprobs, "token_logprobs").items().at(i).text(),
                   write_json(at(logprobs, "top_logprobs").items().at(i)) + "@" +
                       at(logprobs, "text_offset").items().at(i).text()});
  }
}

void add_openai_usage(const JsonValue& usage, Answer& answer) {
  if (!usage.is_object()) return fault(answer, "no usage");
  const bool responses = usage.find("input_tokens") != nullptr;
  const std::string in = responses ? "input_tokens" : "prompt_tokens";
  const std::string out = responses ? "output_tokens" : "completion_tokens";
  answer.prompt_tokens = number(at(usage, in));
  answer.completion_tokens = number(at(usage, out));
  answer.cached_tokens = number(at(at(usage, in + "_details"), "cached_tokens"));
  answer.reasoning_tokens = number(at(at(usage, out + "_details"), "reasoning_tokens"));
}

void add_messages_usage(const JsonValue& usage, Answer& answer) {
  if (!usage.is_object()) return fault(answer, "no usage");
  answer.cached_tokens = number(at(usage, "cache_read_input_tokens"));
  answer.prompt_tokens = number(at(usage, "input_tokens")) + answer.cached_tokens;
  answer.completion_tokens = number(at(usage, "output_tokens"));
}

std::string messages_finish(const JsonValue& holder) {
  return at(holder, "stop_reason").text() + " " + write_json(at(holder, "stop_sequence"));
}

void read_response(const JsonValue& response, Answer& answer) {
  answer.id = at(response, "id").text();
  answer.output = write_json(at(response, "output"));
  Choice choice;
  for (const JsonValue& item : at(response, "output").items()) {
    const std::string type = at(item, "type").text();
    for (const JsonValue& part : at(item, "content").items()) {
      (type == "reasoning" ? choice.reasoning : choice.text) += at(part, "text").text();
      add_logprobs(at(part, "logprobs"), choice.logprobs);
    }
    if (type == "function_call")
      choice.calls.push_back({at(item, "name").text(), at(item, "arguments").text()});
  }
  choice.finish = at(response, "status").text() + " " + write_json(at(response, "incomplete_details"));
  answer.choices = {choice};
  add_openai_usage(at(response, "usage"), answer);
}

// --- pieces ---

class Assembler {
 public:
  virtual ~Assembler() = default;
  virtual void add(const std::string& event, const JsonValue& data) = 0;
  // Behind the last event. What the stream is lacking becomes a fault.
  virtual void end() = 0;
  Answer answer;
};

class OpenAiAssembler : public Assembler {
 public:
  void add(const std::string&, const JsonValue& data) override {
    const std::string id = at(data, "id").text();
    if (answer.id.empty()) answer.id = id;
    if (id.empty() || id != answer.id) fault(answer, "a chunk of another answer");
    if (usage_) fault(answer, "a chunk behind the usage");
    for (const JsonValue& one : at(data, "choices").items()) {
      Choice& choice = choice_at(answer, at(one, "index"));
      if (!choice.finish.empty()) fault(answer, "a chunk behind the finish");
      piece(one, choice);
      if (at(one, "finish_reason").is_string()) choice.finish = at(one, "finish_reason").text();
    }
    if (!at(data, "usage").is_object()) return;
    usage_ = true;
    add_openai_usage(at(data, "usage"), answer);
  }
  void end() override {
    if (!usage_) fault(answer, "no usage");
    for (const Choice& choice : answer.choices)
      if (choice.finish.empty()) fault(answer, "a choice without an end");
  }

 private:
  virtual void piece(const JsonValue& one, Choice& choice) = 0;
  bool usage_ = false;
};

class ChatAssembler final : public OpenAiAssembler {
  void piece(const JsonValue& one, Choice& choice) override {
    const JsonValue& delta = at(one, "delta");
    choice.text += at(delta, "content").text();
    choice.reasoning += at(delta, "reasoning_content").text();
    for (const JsonValue& call : at(delta, "tool_calls").items()) {
      const auto index = static_cast<std::size_t>(number(at(call, "index")));
      if (choice.calls.size() <= index) choice.calls.resize(index + 1);
      choice.calls[index].name += at(at(call, "function"), "name").text();
      choice.calls[index].arguments += at(at(call, "function"), "arguments").text();
    }
    add_logprobs(at(at(one, "logprobs"), "content"), choice.logprobs);
    add_logprobs(at(at(one, "logprobs"), "reasoning_content"), choice.reasoning_logprobs);
  }
};

class CompletionsAssembler final : public OpenAiAssembler {
  void piece(const JsonValue& one, Choice& choice) override {
    choice.text += at(one, "text").text();
    add_parallel_logprobs(at(one, "logprobs"), choice.logprobs);
  }
};

class ResponsesAssembler final : public Assembler {
 public:
  void add(const std::string& event, const JsonValue& data) override {
    if (at(data, "type").text() != event) fault(answer, "an event of another name");
    if (number(at(data, "sequence_number")) != sequence_++) fault(answer, "an event is lost");
    if (ended_) fault(answer, "an event behind the end");
    const std::string& delta = at(data, "delta").text();
    if (event == "response.output_text.delta") {
      pieces_.text += delta;
      add_logprobs(at(data, "logprobs"), pieces_.logprobs);
    } else if (event == "response.reasoning_text.delta") {
      pieces_.reasoning += delta;
    } else if (event == "response.output_item.added" &&
               at(at(data, "item"), "type").text() == "function_call") {
      pieces_.calls.push_back({at(at(data, "item"), "name").text(), ""});
    } else if (event == "response.function_call_arguments.delta") {
      if (pieces_.calls.empty()) return fault(answer, "arguments of no call");
      pieces_.calls.back().arguments += delta;
    } else if (event == "response.completed" || event == "response.incomplete") {
      ended_ = true;
      read_response(at(data, "response"), answer);
    }
  }
  void end() override {
    if (!ended_) return fault(answer, "no end");
    Answer sum = answer;
    pieces_.finish = answer.choices.front().finish;
    sum.choices = {pieces_};
    if (sum.said() != answer.said())
      fault(answer,
            "the deltas make\n" + sum.said() + "and the response at their end says\n" + answer.said());
  }

 private:
  Choice pieces_;
  std::int64_t sequence_ = 0;
  bool ended_ = false;
};

class MessagesAssembler final : public Assembler {
 public:
  void add(const std::string& event, const JsonValue& data) override {
    if (at(data, "type").text() != event) fault(answer, "an event of another name");
    if (ended_) fault(answer, "an event behind the end");
    answer.choices.resize(1);
    Choice& choice = answer.choices.front();
    if (event == "message_start") {
      answer.id = at(at(data, "message"), "id").text();
    } else if (event == "content_block_start") {
      if (number(at(data, "index")) != blocks_++ || open_) fault(answer, "a block out of turn");
      open_ = true;
      const JsonValue& block = at(data, "content_block");
      if (at(block, "type").text() == "tool_use") choice.calls.push_back({at(block, "name").text(), ""});
    } else if (event == "content_block_delta") {
      if (!open_ || number(at(data, "index")) != blocks_ - 1) fault(answer, "a delta out of turn");
      const JsonValue& delta = at(data, "delta");
      choice.text += at(delta, "text").text();
      choice.reasoning += at(delta, "thinking").text();
      if (delta.find("partial_json") == nullptr) return;
      if (choice.calls.empty()) return fault(answer, "input of no call");
      choice.calls.back().arguments += at(delta, "partial_json").text();
    } else if (event == "content_block_stop") {
      open_ = false;
    } else if (event == "message_delta") {
      choice.finish = messages_finish(at(data, "delta"));
      add_messages_usage(at(data, "usage"), answer);
    } else if (event == "message_stop") {
      ended_ = true;
    }
  }
  void end() override {
    if (!ended_ || open_) return fault(answer, "no end");
    for (Call& call : answer.choices.front().calls)
      call.arguments = plain_json(call.arguments);
  }

 private:
  std::int64_t blocks_ = 0;
  bool open_ = false;
  bool ended_ = false;
};

std::unique_ptr<Assembler> assembler_of(Dialect dialect) {
  switch (dialect) {
    case Dialect::kChat: return std::make_unique<ChatAssembler>();
    case Dialect::kCompletions: return std::make_unique<CompletionsAssembler>();
    case Dialect::kResponses: return std::make_unique<ResponsesAssembler>();
    case Dialect::kMessages: break;
  }
  return std::make_unique<MessagesAssembler>();
}

// Takes a line from the front.
std::string_view next_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

void add_events(std::string_view body, bool marks_end, Assembler& all) {
  constexpr std::string_view kEvent = "event: ", kData = "data: ";
  std::string event;
  bool done = false;
  while (!body.empty()) {
    const std::string_view line = next_line(body);
    if (line.starts_with(kEvent)) event = line.substr(kEvent.size());
    if (!line.starts_with(kData)) continue;
    if (done) return fault(all.answer, "an event behind [DONE]");
    const std::string data(line.substr(kData.size()));
    done = data == "[DONE]";
    if (done) continue;
    const auto value = json_of(data);
    if (!value) return fault(all.answer, "an event that is no JSON: " + data);
    all.add(event, *value);
    event.clear();
  }
  if (done != marks_end) fault(all.answer, marks_end ? "no [DONE]" : "[DONE]");
}

void print(const char* name, const std::vector<Logprob>& logprobs, std::string& text) {
  if (logprobs.empty()) return;
  text += std::string("  ") + name + ":\n";
  for (const Logprob& one : logprobs)
    text += "    " + write_json(JsonValue(one.token)) + " " + one.number + " " + one.rest + "\n";
}

}  // namespace

const char* path_of(Dialect dialect) {
  switch (dialect) {
    case Dialect::kChat: return "/v1/chat/completions";
    case Dialect::kCompletions: return "/v1/completions";
    case Dialect::kResponses: return "/v1/responses";
    case Dialect::kMessages: break;
  }
  return "/v1/messages";
}

std::string Answer::said() const {
  if (!fault.empty()) return "fault: " + fault + "\n";
  std::string text = std::to_string(prompt_tokens) + " tokens, answered by " +
                     std::to_string(completion_tokens) + ", of reasoning " +
                     std::to_string(reasoning_tokens) + "\n";
  for (const Choice& choice : choices) {
    text += "choice, ended by " + choice.finish + "\n";
    if (!choice.reasoning.empty()) text += "  reasoning: " + write_json(JsonValue(choice.reasoning)) + "\n";
    text += "  text: " + write_json(JsonValue(choice.text)) + "\n";
    for (const Call& call : choice.calls)
      text += "  call: " + call.name + " " + call.arguments + "\n";
    print("logprobs of the reasoning", choice.reasoning_logprobs, text);
    print("logprobs", choice.logprobs, text);
  }
  return text;
}

Answer read_whole(Dialect dialect, const RawAnswer& raw) {
  Answer answer;
  const auto body = json_of(raw.body);
  if (raw.status != 200 || !body) {
    fault(answer, "status " + std::to_string(raw.status) + ": " + raw.body);
    return answer;
  }
  if (dialect == Dialect::kResponses) {
    read_response(*body, answer);
    return answer;
  }
  answer.id = at(*body, "id").text();
  if (dialect == Dialect::kMessages) {
    Choice& choice = answer.choices.emplace_back();
    for (const JsonValue& block : at(*body, "content").items()) {
      choice.text += at(block, "text").text();
      choice.reasoning += at(block, "thinking").text();
      if (at(block, "type").text() == "tool_use")
        choice.calls.push_back({at(block, "name").text(), write_json(at(block, "input"))});
    }
    choice.finish = messages_finish(*body);
    add_messages_usage(at(*body, "usage"), answer);
    return answer;
  }
  for (const JsonValue& one : at(*body, "choices").items()) {
    Choice& choice = choice_at(answer, at(one, "index"));
    choice.finish = at(one, "finish_reason").text();
    if (dialect == Dialect::kCompletions) {
      choice.text = at(one, "text").text();
      add_parallel_logprobs(at(one, "logprobs"), choice.logprobs);
      continue;
    }
    const JsonValue& message = at(one, "message");
    choice.text = at(message, "content").text();
    choice.reasoning = at(message, "reasoning_content").text();
    for (const JsonValue& call : at(message, "tool_calls").items())
      choice.calls.push_back(
          {at(at(call, "function"), "name").text(), at(at(call, "function"), "arguments").text()});
    add_logprobs(at(at(one, "logprobs"), "content"), choice.logprobs);
    add_logprobs(at(at(one, "logprobs"), "reasoning_content"), choice.reasoning_logprobs);
  }
  add_openai_usage(at(*body, "usage"), answer);
  return answer;
}

Answer read_stream(Dialect dialect, const RawAnswer& raw) {
  Answer refused;
  if (raw.status != 200) {
    fault(refused, "status " + std::to_string(raw.status) + ": " + raw.body);
    return refused;
  }
  const auto all = assembler_of(dialect);
  add_events(raw.body, dialect == Dialect::kChat || dialect == Dialect::kCompletions, *all);
  all->end();
  return all->answer;
}

}  // namespace deepinfer::http_agreement
