#include "http_agreement/catalogue.h"

#include <stdexcept>

namespace deepinfer::http_agreement {
namespace {

using text::JsonValue;

// One conversation, to be asked in each dialect.
struct Talk {
  std::string name, system, user, stop;
  bool tools = false;
  bool thinking = false;
  int max_tokens = 24;
};

JsonValue object(std::initializer_list<std::pair<std::string_view, JsonValue>> members) {
  return JsonValue::object(members);
}

JsonValue message(const char* role, const std::string& text) {
  return object({{"role", role}, {"content", text}});
}

JsonValue tool(Dialect dialect) {
  const JsonValue schema = object({{"type", "object"},
                                   {"properties", object({{"city", object({{"type", "string"}})}})},
                                   {"required", JsonValue::array({"city"})}});
  const char* key = dialect == Dialect::kMessages ? "input_schema" : "parameters";
  JsonValue plain =
      object({{"name", "get_weather"}, {"description", "The weather of a city"}, {key, schema}});
  if (dialect == Dialect::kMessages) return plain;
  if (dialect == Dialect::kChat) return object({{"type", "function"}, {"function", std::move(plain)}});
  plain.set("type", "function");
  return plain;
}

JsonValue messages_of(const Talk& talk, bool with_system) {
  JsonValue messages = JsonValue::array();
  if (with_system && !talk.system.empty()) messages.push(message("system", talk.system));
  messages.push(message("user", talk.user));
  return messages;
}

JsonValue thinking_of(const Talk& talk) {
  return object({{"type", talk.thinking ? "enabled" : "disabled"}});
}

JsonValue body_of(const Talk& talk, Dialect dialect) {
  JsonValue body = object({{"model", "demo"}, {"temperature", 0}});
  if (talk.tools) body.set("tools", JsonValue::array({tool(dialect)}));
  if (dialect == Dialect::kResponses) {
    body.set("input", talk.user);
    if (!talk.system.empty()) body.set("instructions", talk.system);
    if (!talk.thinking) body.set("reasoning", object({{"effort", "none"}}));
    body.set("max_output_tokens", talk.max_tokens);
    body.set("include", JsonValue::array({"message.output_text.logprobs"}));
    body.set("top_logprobs", 2);
    body.set("store", false);
    return body;
  }
  body.set("max_tokens", talk.max_tokens);
  body.set("thinking", thinking_of(talk));
  body.set("messages", messages_of(talk, dialect == Dialect::kChat));
  if (dialect == Dialect::kMessages) {
    if (!talk.system.empty()) body.set("system", talk.system);
    if (!talk.stop.empty()) body.set("stop_sequences", JsonValue::array({talk.stop}));
    return body;
  }
  if (!talk.stop.empty()) body.set("stop", talk.stop);
  body.set("logprobs", true);
  body.set("top_logprobs", 2);
  return body;
}

JsonValue ids_of(std::uint16_t port, const std::string& key, const JsonValue& body) {
  Connection connection(port, fast());
  connection.ask("POST", "/tokenize", text::write_json(body), key);
  const RawAnswer answer = connection.read();
  auto read = text::read_json(answer.body);
  if (!read.ok() || read->find("tokens") == nullptr) throw std::runtime_error("no ids: " + answer.body);
  return *read->find("tokens");
}

JsonValue first(const JsonValue& ids, std::size_t count) {
  const auto& all = ids.items();
  if (all.size() < count) throw std::runtime_error("the text is too short");
  return JsonValue::array({all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count)});
}

std::string facts(int count) {
  static constexpr const char* kNames[] = {"apple", "river", "stone", "cloud", "piano", "lemon", "tiger"};
  std::string text;
  for (int i = 0; i < count; ++i)
    text += "The number of " + std::string(kNames[i % 7]) + " " + std::to_string(i / 7 + 1) + " is " +
            std::to_string(1009 + 37 * i * i % 8999) + ".\n";
  return text;
}

void add_talks(std::uint16_t port, const std::string& key, std::vector<Question>& questions) {
  const Talk talks[] = {
      {"who", "", "Who are you?", "", false, false, 24},
      {"cut", "", "Who are you?", "", false, false, 7},
      {"stop", "", "Who are you?", "language m", false, false, 24},
      {"sum", "Be brief.", "What is 17 + 26?", "", false, true, 40},
      {"call", "", "What is the weather in Paris?", "", true, true, 56},
      {"facts", facts(9), "What is the number of tiger 1?", "", false, false, 16},
  };
  for (const Talk& talk : talks) {
    for (const Dialect dialect : kDialects) {
      if (dialect == Dialect::kResponses && !talk.stop.empty()) continue;  // it has no stop strings
      Question question;
      question.name = talk.name + " " + path_of(dialect);
      question.dialect = dialect;
      question.talk = talk.name;
      if (dialect != Dialect::kCompletions) {
        question.body = body_of(talk, dialect);
      } else {
        // Its text is the bare answer, which is the content where there is neither reasoning nor a call.
        if (talk.tools || talk.thinking) continue;
        const JsonValue prompt =
            object({{"messages", messages_of(talk, true)}, {"thinking", thinking_of(talk)}});
        question.body = object({{"model", "demo"},
                                {"prompt", ids_of(port, key, prompt)},
                                {"temperature", 0},
                                {"max_tokens", talk.max_tokens},
                                {"logprobs", 2}});
        if (!talk.stop.empty()) question.body.set("stop", talk.stop);
      }
      questions.push_back(std::move(question));
    }
  }
}

void add_completions(std::uint16_t port, const std::string& key, std::vector<Question>& questions) {
  const auto add = [&](const std::string& name, JsonValue prompt, JsonValue more) {
    JsonValue body = object({{"model", "demo"}, {"prompt", std::move(prompt)}});
    for (std::size_t i = 0; i < more.size(); ++i)
      body.set(more.keys()[i], more.items()[i]);
    questions.push_back({name, Dialect::kCompletions, std::move(body), "", false});
  };
  // From below one block of 128 tokens to above three of them.
  const JsonValue ids = ids_of(port, key, object({{"prompt", facts(30)}}));
  for (const int length : {1, 126, 127, 128, 257, 397}) {
    JsonValue more = object({{"max_tokens", 3 + length % 5}, {"logprobs", 1}, {"temperature", 0}});
    if (length % 2 == 1) {
      more.set("temperature", JsonValue::real(0.9));
      more.set("top_p", JsonValue::real(0.95));
      more.set("seed", length);
    }
    add("the first " + std::to_string(length), first(ids, static_cast<std::size_t>(length)), more);
  }
  add("three of each", JsonValue::array({"The restaurant is", "My name is"}),
      object({{"n", 3},
              {"seed", 11},
              {"temperature", JsonValue::real(1.3)},
              {"max_tokens", 4},
              {"logprobs", 0}}));
  add("an echo", "The restaurant is",
      object({{"echo", true},
              {"max_tokens", 9},
              {"temperature", 0},
              {"stop", JsonValue::array({"zz", ". M"})}}));
  add("many tokens", "The restaurant is",
      object({{"max_tokens", 40}, {"ignore_eos", true}, {"temperature", 0}, {"logprobs", 5}}));
  add("at least", "My name is",
      object({{"max_tokens", 24}, {"min_tokens", 9}, {"temperature", 0}, {"stop", " "}, {"logprobs", 1}}));
  // Bytes of one character in any order: what is streamed must wait for whole characters.
  const JsonValue bytes = ids_of(port, key, object({{"prompt", "🙂"}}));
  JsonValue bias = JsonValue::object();
  for (const JsonValue& id : bytes.items())
    bias.set(id.text(), 50);
  add("half characters", "A smile:",
      object({{"logit_bias", bias}, {"max_tokens", 24}, {"seed", 3}, {"temperature", 2}, {"logprobs", 1}}));
  questions.push_back({"the best of three", Dialect::kCompletions,
                       object({{"model", "demo"},
                               {"prompt", "My name is"},
                               {"best_of", 3},
                               {"seed", 2},
                               {"temperature", JsonValue::real(1.3)},
                               {"max_tokens", 5},
                               {"logprobs", 1}}),
                       "", true});
}

void add_others(std::vector<Question>& questions) {
  const JsonValue who = JsonValue::array({message("user", "Tell me something about tigers.")});
  questions.push_back({"two choices", Dialect::kChat,
                       object({{"model", "demo"},
                               {"messages", who},
                               {"n", 2},
                               {"seed", 40},
                               {"temperature", 2},
                               {"presence_penalty", JsonValue::real(1.5)},
                               {"thinking", JsonValue::object({{"type", "disabled"}})},
                               {"ignore_eos", true},
                               {"max_tokens", 20},
                               {"logprobs", true},
                               {"top_logprobs", 3}}),
                       "", false});
  // Each token is told four times with twenty others: more than buffers between server and client hold.
  questions.push_back({"a large answer", Dialect::kResponses,
                       object({{"model", "demo"},
                               {"input", "Who are you?"},
                               {"temperature", 0},
                               {"ignore_eos", true},
                               {"reasoning", object({{"effort", "none"}})},
                               {"max_output_tokens", 48},
                               {"include", JsonValue::array({"message.output_text.logprobs"})},
                               {"top_logprobs", 20},
                               {"store", false}}),
                       "", false});
  questions.push_back({"a long message", Dialect::kMessages,
                       object({{"model", "demo"},
                               {"messages", JsonValue::array({message("user", "Who are you?")})},
                               {"temperature", 0},
                               {"ignore_eos", true},
                               {"max_tokens", 40}}),
                       "", false});
}

JsonValue step(JsonValue input, int max_tokens, bool tools) {
  JsonValue body = object({{"model", "demo"},
                           {"temperature", 0},
                           {"reasoning", object({{"effort", "none"}})},
                           {"max_output_tokens", max_tokens},
                           {"include", JsonValue::array({"message.output_text.logprobs"})}});
  if (!input.is_null()) body.set("input", std::move(input));
  if (tools) body.set("tools", JsonValue::array({tool(Dialect::kResponses)}));
  return body;
}

}  // namespace

Catalogue make_catalogue(std::uint16_t port, const std::string& key) {
  Catalogue all;
  add_talks(port, key, all.questions);
  add_completions(port, key, all.questions);
  add_others(all.questions);
  all.chains = {
      {"about facts",
       {step(facts(9) + "What is the number of tiger 1?", 16, false),
        step("What is the number of apple 2?", 16, false), step("Who are you?", 24, false)}},
      {"about the weather", {step("What is the weather in Paris?", 48, true), step(JsonValue(), 24, true)}},
  };
  return all;
}

}  // namespace deepinfer::http_agreement
