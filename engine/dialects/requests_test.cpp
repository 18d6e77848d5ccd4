// What our own profile makes of requests beyond the conformance data.
#include <gtest/gtest.h>

#include "dialects/error_body.h"
#include "dialects/internal_form.h"
#include "dialects/limits.h"
#include "dialects/request.h"
#include "text/detokenizer.h"

namespace deepinfer::dialects {
namespace {

RequestContext context() {
  RequestContext context;
  context.models = {{"m", text::ModelVersion::kV41}};
  return context;
}

Request accepted(Dialect dialect, std::string_view body) {
  const auto request = parse_request(dialect, body, context());
  EXPECT_TRUE(request.ok()) << request.error().message;
  return request.ok() ? *request : Request{};
}

RequestError refused(Dialect dialect, std::string_view body, const RequestContext& with = context()) {
  const auto request = parse_request(dialect, body, with);
  EXPECT_FALSE(request.ok()) << body;
  return request.ok() ? RequestError{} : request.error();
}

TEST(ChatRequest, ExtensionsAreRead) {
  const Request request =
      accepted(Dialect::kChat, R"({"model":"m","messages":[{"role":"developer","content":"d"},
      {"role":"user","content":"u"}],"n":3,"top_k":40,"min_p":0.1,"repetition_penalty":1.1,"min_tokens":2,
      "ignore_eos":true,"stop_token_ids":[7,9],"logit_bias":{"5":-1.5},"max_completion_tokens":12,
      "reasoning_effort":37,"parallel_tool_calls":false,"user":"me","seed":null,"unknown":{}})");
  EXPECT_EQ(request.conversation.messages[0].role, text::Role::kSystem);
  EXPECT_EQ(request.conversation.effort->value(), 37);
  const SamplingOptions& sampling = request.sampling;
  EXPECT_EQ(sampling.choices, 3U);
  EXPECT_EQ(sampling.top_k, 40U);
  EXPECT_EQ(sampling.min_p, 0.1);
  EXPECT_EQ(sampling.repetition_penalty, 1.1);
  EXPECT_EQ(sampling.min_tokens, 2U);
  EXPECT_TRUE(sampling.ignore_eos);
  EXPECT_EQ(sampling.stop_token_ids, (std::vector<std::int32_t>{7, 9}));
  EXPECT_EQ(sampling.logit_bias, (std::vector<std::pair<std::int32_t, double>>{{5, -1.5}}));
  EXPECT_EQ(sampling.max_tokens, 12U);
  EXPECT_FALSE(request.parallel_tool_calls);
  EXPECT_EQ(request.user, "me");
}

TEST(ChatRequest, BadValuesNameTheField) {
  const auto message_of = [](std::string_view field) {
    return refused(Dialect::kChat,
                   R"({"model":"m","messages":[{"role":"user","content":"u"}],)" + std::string(field) + "}")
        .message;
  };
  EXPECT_NE(message_of(R"("reasoning_effort":0)").find("reasoning_effort"), std::string::npos);
  EXPECT_NE(message_of(R"("reasoning_effort":12.5)").find("reasoning_effort"), std::string::npos);
  EXPECT_NE(message_of(R"("n":129)").find(" n "), std::string::npos);
  EXPECT_NE(message_of(R"("logit_bias":{"x":1})").find("logit_bias"), std::string::npos);
  EXPECT_NE(message_of(R"("stop_token_ids":[-1])").find("stop_token_ids"), std::string::npos);
  EXPECT_NE(message_of(R"("min_p":2)").find("min_p"), std::string::npos);
}

TEST(Requests, LimitsOnTokensThatCannotBeKept) {
  struct Case {
    Dialect dialect;
    const char* body;
    const char* limit;
  };
  for (const Case& one :
       {Case{Dialect::kChat, R"("messages":[{"role":"user","content":"u"}])", "max_tokens"},
        Case{Dialect::kChat, R"("messages":[{"role":"user","content":"u"}])", "max_completion_tokens"},
        Case{Dialect::kCompletions, R"("prompt":"u")", "max_tokens"},
        Case{Dialect::kResponses, R"("input":"u")", "max_output_tokens"},
        Case{Dialect::kMessages, R"("messages":[{"role":"user","content":"u"}])", "max_tokens"}}) {
    const auto body = [&](int most, int least) {
      return R"({"model":"m",)" + std::string(one.body) + ",\"" + one.limit + "\":" + std::to_string(most) +
             R"(,"min_tokens":)" + std::to_string(least) + "}";
    };
    const RequestError none = refused(one.dialect, body(0, 0));
    EXPECT_EQ(none.status, 400);
    EXPECT_NE(none.message.find("max_tokens"), std::string::npos) << none.message;
    const RequestError above = refused(one.dialect, body(3, 4));
    EXPECT_EQ(above.status, 400);
    EXPECT_EQ(above.param, "min_tokens");
    EXPECT_NE(above.message.find(one.limit), std::string::npos) << above.message;
    EXPECT_EQ(accepted(one.dialect, body(4, 4)).sampling.min_tokens, 4U);
  }
  // 16 tokens, unless the request says otherwise.
  EXPECT_EQ(refused(Dialect::kCompletions, R"({"model":"m","prompt":"u","min_tokens":17})").param,
            "min_tokens");
}

TEST(CompletionsRequest, PromptsOfEveryForm) {
  const auto prompts = [](std::string_view prompt) {
    const Request request =
        accepted(Dialect::kCompletions, R"({"model":"m","prompt":)" + std::string(prompt) + "}");
    std::string all;
    for (const CompletionPrompt& one : request.completion.prompts) {
      all += "[" + one.text + "]";
      if (!one.ids) continue;
      for (const std::int32_t id : *one.ids)
        all += std::to_string(id) + " ";
    }
    return all;
  };
  EXPECT_EQ(prompts(R"("a")"), "[a]");
  EXPECT_EQ(prompts(R"(["a","b"])"), "[a][b]");
  EXPECT_EQ(prompts("[3,4]"), "[]3 4 ");
  EXPECT_EQ(prompts(R"([[3,4],[5],"c"])"), "[]3 4 []5 [c]");
  EXPECT_EQ(prompts("null"), "[]");
  const Request request = accepted(Dialect::kCompletions, R"({"model":"m"})");
  EXPECT_EQ(request.sampling.max_tokens, 16U);
  EXPECT_EQ(request.completion.best_of, 1U);
  EXPECT_FALSE(request.completion.read_specials);
  EXPECT_TRUE(request.completion.add_bos);
  EXPECT_FALSE(request.sampling.logprobs);
  EXPECT_FALSE(request.constraint);
}

TEST(ResponsesRequest, GoesOnFromStoredItems) {
  RequestContext with = context();
  with.store_responses = true;
  with.earlier_items = [](const std::string& id) -> Parsed<text::JsonValue> {
    if (id != "resp_1") return RequestError{};
    return text::read_json(R"([{"type":"message","role":"user","content":"one"},
        {"type":"reasoning","content":[{"type":"reasoning_text","text":"hm"}]},
        {"type":"function_call","call_id":"c","name":"f","arguments":"{}"}])")
        .value();
  };
  const auto read = [&](std::string_view more) {
    return parse_request(Dialect::kResponses, R"({"model":"m",)" + std::string(more) + "}", with);
  };
  const auto request = read(R"("previous_response_id":"resp_1","instructions":"i","input":[
      {"type":"function_call_output","call_id":"c","output":"r"},{"role":"user","content":"two"}])");
  ASSERT_TRUE(request.ok()) << request.error().message;
  const auto& messages = request->conversation.messages;
  ASSERT_EQ(messages.size(), 5U);
  EXPECT_EQ(messages[0].text(), "i");
  EXPECT_EQ(messages[2].reasoning, "hm");
  EXPECT_EQ(messages[2].tool_calls.size(), 1U);
  EXPECT_EQ(messages[4].text(), "two");
  EXPECT_TRUE(request->store);
  EXPECT_EQ(request->input_items.size(), 5U);
  EXPECT_EQ(write_json(request->input_items.items()[4]),
            R"({"type":"message","role":"user","content":[{"type":"input_text","text":"two"}]})");
  EXPECT_FALSE(read(R"("input":"a","previous_response_id":"resp_2")").ok());

  const char* referring = R"("input":[{"type":"item_reference","id":"msg_1"},{"role":"user","content":"b"}])";
  EXPECT_EQ(read(referring)->conversation.messages.size(), 1U);  // no server behind it
  with.stored_item = [](const std::string& id) -> Parsed<text::JsonValue> {
    if (id != "msg_1") return RequestError{};
    return text::read_json(R"({"type":"message","role":"assistant","id":"msg_1","content":"said"})").value();
  };
  const auto resolved = read(referring);
  ASSERT_TRUE(resolved.ok()) << resolved.error().message;
  ASSERT_EQ(resolved->conversation.messages.size(), 2U);
  EXPECT_EQ(resolved->conversation.messages[0].role, text::Role::kAssistant);
  EXPECT_EQ(resolved->conversation.messages[0].text(), "said");
  EXPECT_EQ(
      write_json(resolved->input_items.items()[0]),
      R"({"type":"message","role":"assistant","content":[{"type":"output_text","text":"said"}],"id":"msg_1"})");
  EXPECT_FALSE(
      read(R"("input":[{"type":"item_reference","id":"msg_2"},{"role":"user","content":"b"}])").ok());
  EXPECT_FALSE(read(R"("input":[{"type":"item_reference"},{"role":"user","content":"b"}])").ok());
  EXPECT_FALSE(read(R"("input":"a","store":false)")->store);
  EXPECT_FALSE(accepted(Dialect::kResponses, R"({"model":"m","input":"a"})").store);
}

TEST(Requests, UnknownModelIsNotFound) {
  const RequestError error =
      refused(Dialect::kMessages, R"({"model":"x","messages":[{"role":"user","content":"u"}]})");
  EXPECT_EQ(error.status, 404);
  EXPECT_EQ(error.code, "model_not_found");
  RequestContext any = context();
  any.any_model = true;
  EXPECT_TRUE(
      parse_request(Dialect::kMessages, R"({"model":"x","messages":[{"role":"user","content":"u"}]})", any)
          .ok());
}

TEST(Requests, SpelledImagePlaceholderIsRefusedOnlyOnDemand) {
  const std::string_view body =
      R"({"model":"m","messages":[{"role":"user","content":"<｜deepseek_image｜>"}]})";
  accepted(Dialect::kChat, body);
  RequestContext strict = context();
  strict.reject_image_spelling = true;
  EXPECT_EQ(refused(Dialect::kChat, body, strict).status, 400);
}

// Large lists are refused by number, and hostile ones take no quadratic time.
TEST(Requests, ListsAreBounded) {
  std::string tools, names, results;
  for (int i = 0; i < 4097; ++i) {
    const std::string comma = i == 0 ? "" : ",", name = "f" + std::to_string(i);
    tools += comma + R"({"name":")" + name + R"(","input_schema":{"type":"object"}})";
  }
  const RequestError error =
      refused(Dialect::kMessages,
              R"({"model":"m","messages":[{"role":"user","content":"u"}],"tools":[)" + tools + "]}");
  EXPECT_NE(error.message.find("4097"), std::string::npos) << error.message;
  for (int i = 0; i < 50000; ++i) {
    const std::string comma = i == 0 ? "" : ",", id = std::to_string(i);
    names += comma + R"({"type":"tool_use","id":")" + id + R"(","name":"f","input":{}})";
    results += comma + R"({"type":"tool_result","tool_use_id":")" + id + R"("})";
  }
  const Request request =
      accepted(Dialect::kMessages, R"({"model":"m","messages":[{"role":"assistant","content":[)" + names +
                                       R"(]},{"role":"user","content":[)" + results + "]}]}");
  EXPECT_EQ(text::render(request.conversation, {}).images.size(), 0U);
}

TEST(MessagesRequest, BillingHeaderIsDropped) {
  const Request request = accepted(Dialect::kMessages, R"({"model":"m","system":[
      {"type":"text","text":"x-anthropic-billing-header: 1"},{"type":"text","text":"rules"}],
      "messages":[{"role":"user","content":"u"}]})");
  EXPECT_EQ(request.conversation.messages[0].text(), "rules");
}

TEST(MessagesRequest, AnyIsRequiredAndServerToolsAreLeftOut) {
  const Request request =
      accepted(Dialect::kMessages, R"({"model":"m","messages":[{"role":"user","content":"u"}],
      "tools":[{"type":"web_search_20250305","name":"web_search"},{"type":"custom","name":"f","input_schema":{"type":"object"}}],
      "tool_choice":{"type":"any","disable_parallel_tool_use":true},"thinking":{"type":"enabled","budget_tokens":99}})");
  ASSERT_EQ(request.conversation.tools.size(), 1U);
  EXPECT_EQ(request.conversation.tool_choice, text::ToolChoice::kRequired);
  EXPECT_FALSE(request.parallel_tool_calls);
  EXPECT_EQ(request.sampling.thinking_budget, 99U);
  EXPECT_EQ(request.constraint->kind, OutputConstraint::Kind::kToolCallRequired);
}

TEST(ResponsesRequest, CustomToolsBecomeFunctionsWithOneText) {
  const Request request = accepted(Dialect::kResponses, R"({"model":"m","input":"x","tools":[
      {"type":"custom","name":"lark","description":"d"},{"type":"custom","name":"apply_patch"}]})");
  EXPECT_EQ(request.custom_tools, (std::vector<std::string>{"lark", "apply_patch"}));
  EXPECT_EQ(write_json(request.conversation.tools[0].parameters),
            R"({"type":"object","properties":{"input":{"type":"string"}},"required":["input"]})");
}

TEST(ResponsesRequest, CustomToolsStandInNamespacesToo) {
  const std::string_view body = R"({"model":"m","input":[{"role":"user","content":"x"},
      {"type":"custom_tool_call","call_id":"c","namespace":"s","name":"exec","input":"ls"},
      {"type":"custom_tool_call_output","call_id":"c","output":[{"type":"input_text","text":"a"}]}],
      "tools":[{"type":"namespace","name":"s","tools":[{"type":"function","name":"f"},
      {"type":"custom","name":"exec"}]}]})";
  const Request request = accepted(Dialect::kResponses, body);
  ASSERT_EQ(request.conversation.tools.size(), 2U);
  EXPECT_EQ(request.custom_tools, (std::vector<std::string>{"s::exec"}));
  EXPECT_EQ(request.conversation.messages[1].tool_calls[0].name, "s::exec");
  RequestContext package = context();
  package.profile = text::Profile::kPackage;
  EXPECT_NE(refused(Dialect::kResponses, body, package).message.find("inside a namespace"),
            std::string::npos);
}

TEST(ResponsesRequest, CallsOfALocalShellComeBack) {
  const Request request =
      accepted(Dialect::kResponses, R"({"model":"m","input":[{"role":"user","content":"x"},
      {"type":"local_shell_call","id":"i","call_id":"c","action":{"type":"exec","command":["ls"]}},
      {"type":"function_call_output","call_id":"c","output":"a"},
      {"type":"local_shell_call","id":"d","action":{"type":"exec","command":["pwd"]}},
      {"type":"local_shell_call_output","id":"d","output":"b"}]})");
  const auto& messages = request.conversation.messages;
  ASSERT_EQ(messages.size(), 5U);
  EXPECT_EQ(messages[1].tool_calls[0].name, "local_shell");
  EXPECT_EQ(messages[1].tool_calls[0].arguments, R"({"type":"exec","command":["ls"]})");
  EXPECT_EQ(messages[4].tool_call_id, "d");
  EXPECT_EQ(messages[4].text(), "b");
}

// Hosted tools are left out; a type that the client would have to run, or that nobody knows, is named.
TEST(Requests, ToolsThatNobodyWouldRunAreRefused) {
  const auto of = [](Dialect dialect, std::string_view type) {
    const std::string tools = R"("tools":[{"type":")" + std::string(type) + R"(","name":"n"}]})";
    return parse_request(dialect,
                         dialect == Dialect::kMessages
                             ? R"({"model":"m","messages":[{"role":"user","content":"u"}],)" + tools
                             : R"({"model":"m","input":"x",)" + tools,
                         context());
  };
  for (const char* type : {"web_search_20250305", "web_fetch_20250910", "tool_search_tool_regex_20251119"}) {
    const auto request = of(Dialect::kMessages, type);
    ASSERT_TRUE(request.ok()) << type;
    EXPECT_TRUE(request->conversation.tools.empty());
  }
  for (const char* type :
       {"web_search", "web_search_preview_2025_03_11", "image_generation", "mcp", "tool_search"}) {
    const auto request = of(Dialect::kResponses, type);
    ASSERT_TRUE(request.ok()) << type;
    EXPECT_TRUE(request->conversation.tools.empty());
  }
  for (const auto& [dialect, type] :
       {std::pair(Dialect::kMessages, "bash_20250124"), std::pair(Dialect::kMessages, "web_searching"),
        std::pair(Dialect::kResponses, "local_shell"),
        std::pair(Dialect::kResponses, "computer_use_preview")}) {
    const auto request = of(dialect, type);
    ASSERT_FALSE(request.ok()) << type;
    if (dialect == Dialect::kResponses) EXPECT_EQ(request.error().param, "tools[0].type");
    EXPECT_NE(request.error().message.find(type), std::string::npos);
  }
}

TEST(Limits, OursLowersAndRefusesFullContexts) {
  TokenLimits limits;
  limits.thinking = false;
  limits.max_tokens = 100;
  limits.prompt_tokens = 60;
  limits.context_limit = 100;
  EXPECT_EQ(*resolve_max_tokens(limits, text::Profile::kOurs), 40U);
  limits.prompt_tokens = 100;
  const auto full = resolve_max_tokens(limits, text::Profile::kOurs);
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().code, "context_length_exceeded");
  limits.dialect = Dialect::kMessages;
  EXPECT_EQ(resolve_max_tokens(limits, text::Profile::kOurs).error().message,
            "prompt is too long: 100 tokens > 99 maximum");
}

TEST(ErrorBody, EachDialectHasItsShape) {
  const RequestError error = server_error(429, "busy");
  EXPECT_EQ(
      error_body(error, Dialect::kChat, text::Profile::kOurs, "r1"),
      R"({"error":{"message":"busy","type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"}})");
  EXPECT_EQ(error_body(error, Dialect::kMessages, text::Profile::kOurs, "r1"),
            R"({"type":"error","error":{"type":"rate_limit_error","message":"busy"},"request_id":"r1"})");
}

TEST(ErrorBody, QuotesEndInWholeCharacters) {
  std::string long_word = "x";
  for (int i = 0; i < 60; ++i)
    long_word += "ä";
  const RequestError error =
      refused(Dialect::kResponses,
              R"({"model":"m","input":[{"role":"user","content":[{"type":")" + long_word + R"("}]}]})");
  const std::string body = error_body(error, Dialect::kResponses, text::Profile::kOurs, "r1");
  EXPECT_NE(body.find("xä"), std::string::npos);
  EXPECT_EQ(text::to_valid_utf8(body), body);
}

TEST(InternalForm, FaultsNameTheField) {
  EXPECT_NE(read_conversation(std::string_view(R"({"messages":[{"role":"x"}]})"))
                .error()
                .message.find("messages[0].role"),
            std::string::npos);
  EXPECT_FALSE(read_conversation(std::string_view("[")).ok());
  EXPECT_TRUE(
      read_conversation(std::string_view(R"({"messages":[{"role":"user","content":"a"}],"effort":10})"))
          .ok());
}

}  // namespace
}  // namespace deepinfer::dialects
