"""Coding agents against the server: request bodies as they send them, their whole tool loop, and what their readers of the
stream rely on.

agents/*.json are shapes of requests, written from the public descriptions and sources of each agent, with words of our
own: few ones, because the demo model is small. Where an agent puts reminders or its surroundings, there is a greeting. One
thing is added to all of them: a temperature of 0, so that the model says the same in each run.
"""

import copy
import http.client
import json
import os
import sys
import unittest
import urllib.parse

from served import Server

PROGRAM, MODEL = sys.argv[1:3]
KEY = "key-for-agents"
RESULT = json.dumps({"city": "Berlin", "condition": "sunny", "temperature": 25})

SERVER = Server(PROGRAM, MODEL, [f"{KEY} tenant=agents"])


def agent(name):
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "agents", name + ".json")
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def send(method, path, headers, body=None):
    """Status, headers and bytes of the answer."""
    at = urllib.parse.urlsplit(SERVER.url)
    connection = http.client.HTTPConnection(at.hostname, at.port, timeout=120)
    data = None
    if body is not None:
        data = json.dumps(body).encode()
        headers = {**headers, "content-type": "application/json"}
    connection.request(method, path, data, headers)
    reply = connection.getresponse()
    content = reply.read()
    connection.close()
    return reply.status, reply.headers, content


class Agent(unittest.TestCase):
    """What the three have in common."""

    name = ""
    path = ""

    def setUp(self):
        self.shapes = agent(self.name)
        self.headers = {**self.shapes["headers"], "authorization": "Bearer " + KEY}
        self.replays = SERVER.metric("deepinfer:tool_call_replays_total")

    def post(self, path, body):
        status, _, content = send("POST", path, self.headers, {**body, "temperature": 0})
        return status, json.loads(content)

    def events(self, body):
        """(name, data) of each event of the stream; the name is None where the stream gives none."""
        status, headers, content = send("POST", self.path, self.headers, {**body, "temperature": 0})
        self.assertEqual(status, 200, content)
        self.assertTrue(headers["content-type"].startswith("text/event-stream"))
        text = content.decode()
        self.assertTrue(text.endswith("\n\n"), "the last event is not closed")
        events = []
        for block in text[:-2].split("\n\n"):
            fields = [line.split(": ", 1) for line in block.split("\n") if not line.startswith(":")]
            self.assertTrue(all(len(field) == 2 for field in fields), block)
            named = dict(fields)
            self.assertEqual(len(named), len(fields), block)
            if named:
                events.append((named.get("event"), named["data"]))
        return events

    def assert_replayed(self, calls):
        """The calls that the last request brought back stand in its prompt as the model wrote them."""
        self.assertEqual(SERVER.metric("deepinfer:tool_call_replays_total"), self.replays + calls)


class ClaudeCode(Agent):
    name = "claude_code"
    path = "/v1/messages?beta=true"

    def read(self, body):
        """The message as its reader puts it together; breaks of the protocol fail."""
        message, open_block, pieces, ended = None, None, "", False
        for name, data in self.events(body):
            event = json.loads(data)
            kind = event["type"]
            self.assertEqual(name, kind)
            self.assertFalse(ended, "an event after message_stop")
            if kind == "ping":
                continue
            if kind == "message_start":
                self.assertIsNone(message)
                message = event["message"]
                self.assertEqual((message["type"], message["role"], message["content"]), ("message", "assistant", []))
                self.assertTrue(message["id"].startswith("msg_"))
                self.assertIsNone(message["stop_reason"])
                continue
            self.assertIsNotNone(message, "an event before message_start")
            if kind == "content_block_start":
                self.assertIsNone(open_block, "a block inside another")
                self.assertEqual(event["index"], len(message["content"]))
                open_block, pieces = event["content_block"], ""
                if open_block["type"] == "tool_use":
                    self.assertTrue(open_block["id"].startswith("toolu_"))
                    self.assertEqual(open_block["input"], {})
                elif open_block["type"] == "thinking":
                    self.assertEqual((open_block["thinking"], open_block["signature"]), ("", ""))
                else:
                    self.assertEqual(open_block, {"type": "text", "text": ""})
            elif kind == "content_block_delta":
                self.assertEqual(event["index"], len(message["content"]))
                delta = event["delta"]
                place = {"text_delta": ("text", "text"), "thinking_delta": ("thinking", "thinking"),
                         "signature_delta": ("thinking", "signature"),
                         "input_json_delta": ("tool_use", "partial_json")}[delta["type"]]
                self.assertEqual(open_block["type"], place[0])
                if place[1] == "partial_json":
                    pieces += delta["partial_json"]
                else:
                    open_block[place[1]] += delta[place[1]]
            elif kind == "content_block_stop":
                self.assertEqual(event["index"], len(message["content"]))
                if open_block["type"] == "tool_use":
                    open_block["input"] = json.loads(pieces or "{}")
                if open_block["type"] == "thinking":
                    self.assertTrue(open_block["signature"], "a thinking block without a signature")
                message["content"].append(open_block)
                open_block = None
            elif kind == "message_delta":
                self.assertIsNone(open_block)
                self.assertIsInstance(event["usage"]["output_tokens"], int)
                message.update(event["delta"])
                message["usage"].update(event["usage"])
            else:
                self.assertEqual(kind, "message_stop")
                self.assertIsNotNone(message["stop_reason"])
                ended = True
        self.assertTrue(ended)
        return message

    def test_what_it_asks_before_the_first_turn(self):
        status, _, content = send("HEAD", "/", self.shapes["headers"])
        self.assertEqual((status, content), (200, b""))
        status, _, content = send("GET", "/v1/models?limit=1000", self.headers)
        self.assertEqual(status, 200)
        self.assertEqual({model["type"] for model in json.loads(content)["data"]}, {"model"})
        status, message = self.post(self.path, self.shapes["quota"])
        self.assertEqual(status, 200)
        self.assertEqual((message["stop_reason"], message["usage"]["output_tokens"]), ("max_tokens", 1))
        status, counted = self.post("/v1/messages/count_tokens?beta=true", self.shapes["count"])
        self.assertEqual((status, list(counted)), (200, ["input_tokens"]))
        self.assertGreater(counted["input_tokens"], 100)  # the tool counts, too

    def test_tool_loop(self):
        body = self.shapes["turn"]
        first = self.read(body)
        self.assertEqual(first["stop_reason"], "tool_use")
        self.assertEqual([block["type"] for block in first["content"]], ["thinking", "tool_use"])
        thinking, call = first["content"]
        self.assertEqual((call["name"], call["input"]), ("get_weather", {"city": "Berlin"}))
        self.assertIn("get_weather", thinking["thinking"])
        usage = first["usage"]
        whole = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
        counted = {key: value for key, value in body.items() if key not in ("max_tokens", "stream")}
        self.assertEqual(self.post("/v1/messages/count_tokens?beta=true", counted), (200, {"input_tokens": whole}))

        # Its next request: the mark of the cache moves to the end, the first block of `system` differs in every request.
        del body["messages"][0]["content"][-1]["cache_control"]
        body["system"][0]["text"] = body["system"][0]["text"].replace("000", "9f1")
        body["messages"] += [
            {"role": "assistant", "content": first["content"]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": RESULT}],
                 "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}]
        second = self.read(body)
        self.assertEqual(second["stop_reason"], "end_turn")
        self.assertEqual(second["content"][-1]["type"], "text")
        self.assertIn("25", second["content"][-1]["text"])
        self.assert_replayed(1)
        self.assertGreaterEqual(second["usage"]["cache_read_input_tokens"], whole // 128 * 128)

        # The next turn of the user: what was thought in the one before comes back, and a result may be a failure.
        body["messages"] += [
            {"role": "assistant", "content": second["content"]},
            {"role": "user", "content": [{"type": "text", "text": "And in Paris?"}]},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "toolu_of_another_server", "name": "get_weather", "input": {"city": "Paris"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_of_another_server", "is_error": True, "content": "no network"},
                {"type": "text", "text": "<system-reminder>\nThe list of what is to be done is empty.\n</system-reminder>"}]}]
        third = self.read(body)
        self.assertEqual(third["content"][-1]["type"], "text")

    def test_refusals_that_it_acts_on(self):
        body = self.shapes["turn"]
        body["messages"][0]["content"][-1]["text"] = "word " * 20000
        status, error = self.post(self.path, body)
        # It shortens the conversation when it reads these words.
        self.assertEqual((status, error["type"], error["error"]["type"]), (400, "error", "invalid_request_error"))
        self.assertRegex(error["error"]["message"], r"^prompt is too long: \d+ tokens > 8191 maximum")
        body = agent(self.name)["turn"]
        body["tools"].append({"type": "bash_20250124", "name": "bash"})
        status, error = self.post(self.path, body)
        self.assertEqual(status, 400)
        self.assertIn("bash_20250124", error["error"]["message"])


class Codex(Agent):
    name = "codex"
    path = "/v1/responses"

    def read(self, body):
        """The items of the answer and its usage as its reader takes them; breaks of the protocol fail."""
        items, open_item, deltas, last = [], None, "", None
        for sequence, (name, data) in enumerate(self.events(body)):
            event = json.loads(data)
            kind = event["type"]
            self.assertEqual(name, kind)
            self.assertEqual(event["sequence_number"], sequence)
            self.assertIsNone(last, "an event after the last")
            if sequence == 0:
                self.assertEqual(kind, "response.created")
                self.assertTrue(event["response"]["id"].startswith("resp_"))
            elif kind == "response.output_item.added":
                self.assertIsNone(open_item, "an item inside another")
                self.assertEqual(event["output_index"], len(items))
                open_item, deltas = event["item"], ""
                self.assertEqual(open_item["status"], "in_progress")
            elif kind == "response.output_item.done":
                item = event["item"]
                self.assertEqual((item["id"], item["status"]), (open_item["id"], "completed"))
                whole = {"message": lambda: item["content"][0]["text"], "reasoning": lambda: item["content"][0]["text"],
                         "function_call": lambda: item["arguments"], "custom_tool_call": lambda: item["input"]}
                self.assertEqual(whole[item["type"]](), deltas)
                items.append(item)
                open_item = None
            elif kind.endswith(".delta"):
                self.assertEqual(event["item_id"], open_item["id"])
                if kind == "response.reasoning_text.delta":
                    self.assertEqual(event["content_index"], 0)
                deltas += event["delta"]
            elif kind == "response.completed":
                last = event["response"]
        self.assertIsNotNone(last, "the stream ended before response.completed")
        self.assertEqual(last["output"], items)
        usage = last["usage"]
        self.assertEqual(usage["total_tokens"], usage["input_tokens"] + usage["output_tokens"])
        self.assertIsInstance(usage["input_tokens_details"]["cached_tokens"], int)
        self.assertIsInstance(usage["output_tokens_details"]["reasoning_tokens"], int)
        return items, usage

    @staticmethod
    def history(items):
        """Items as it sends them back: what it does not know is gone, and so are the ids."""
        kept = {"message": ("type", "role", "content", "phase"),
                "reasoning": ("type", "summary", "content", "encrypted_content"),
                "function_call": ("type", "name", "namespace", "arguments", "call_id"),
                "custom_tool_call": ("type", "name", "namespace", "input", "call_id", "status")}
        return [{key: item[key] for key in kept[item["type"]] if key in item} for item in items]

    def test_tool_loop(self):
        body = self.shapes["turn"]
        first, usage = self.read(body)
        self.assertEqual([item["type"] for item in first], ["reasoning", "function_call"])
        reasoning, call = first
        self.assertEqual((reasoning["summary"], reasoning["content"][0]["type"]), ([], "reasoning_text"))
        self.assertIsInstance(reasoning["encrypted_content"], str)
        self.assertEqual((call["name"], json.loads(call["arguments"])), ("get_weather", {"city": "Berlin"}))
        body["input"] += self.history(first) + [
            {"type": "function_call_output", "call_id": call["call_id"],
             "output": "Exit code: 0\nOutput:\n" + RESULT}]
        second, more = self.read(body)
        self.assertEqual(second[-1]["type"], "message")
        self.assertIn("25", second[-1]["content"][0]["text"])
        self.assertGreaterEqual(more["input_tokens_details"]["cached_tokens"], usage["input_tokens"] // 128 * 128)
        self.assert_replayed(1)
        # The next turn of the user, with items of tools that ran elsewhere.
        body["input"] += self.history(second) + [
            {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "weather"}},
            {"type": "custom_tool_call", "status": "completed", "call_id": "call_p", "name": "apply_patch",
             "input": "*** Begin Patch\n*** Add File: a\n+a\n*** End Patch"},
            {"type": "custom_tool_call_output", "call_id": "call_p", "output": "Done"},
            {"type": "local_shell_call", "call_id": "call_l", "status": "completed",
             "action": {"type": "exec", "command": ["ls"], "timeout_ms": None, "working_directory": None, "env": None,
                        "user": None}},
            {"type": "function_call_output", "call_id": "call_l", "output": "a"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And what are you?"}]}]
        third, _ = self.read(body)
        self.assertEqual(third[-1]["type"], "message")

    def test_models(self):
        status, _, content = send("GET", "/v1/models?client_version=0.120.0", self.headers)
        self.assertEqual((status, json.loads(content)["object"]), (200, "list"))

    def test_calls_of_tools_in_a_namespace(self):
        # The demo model was not taught to call such tools, but it answers from what they gave.
        body = self.shapes["turn"]
        body["tools"] = body["tools"][:-1] + [self.shapes["weather_namespace"]]
        body["input"] += [
            {"type": "custom_tool_call", "status": "completed", "call_id": "call_e", "namespace": "weather",
             "name": "exec", "input": "text(1)"},
            {"type": "custom_tool_call_output", "call_id": "call_e", "output": [{"type": "input_text", "text": "1"}]},
            {"type": "function_call", "call_id": "call_w", "namespace": "weather", "name": "get_weather",
             "arguments": "{\"city\":\"Berlin\"}"},
            {"type": "function_call_output", "call_id": "call_w", "output": RESULT}]
        answer, _ = self.read(body)
        self.assertEqual(answer[-1]["type"], "message")
        self.assertIn("25", answer[-1]["content"][0]["text"])

    def test_tools_that_nobody_would_run_are_refused(self):
        for tool in ({"type": "local_shell"}, {"type": "walk_the_dog"}):
            body = copy.deepcopy(self.shapes["turn"])
            body["tools"].append(tool)
            status, error = self.post(self.path, body)
            self.assertEqual((status, error["error"]["param"]), (400, "tools[5].type"))
            self.assertIn(tool["type"], error["error"]["message"])


class Opencode(Agent):
    name = "opencode"
    path = "/v1/chat/completions"

    def read(self, body):
        """The message as its reader puts it together, why it ended, and the usage; breaks of the protocol fail."""
        events = self.events(body)
        self.assertEqual(events[-1], (None, "[DONE]"))
        message = {"content": "", "reasoning_content": "", "tool_calls": []}
        finish, usage, ids = None, None, set()
        for name, data in events[:-1]:
            self.assertIsNone(name)
            chunk = json.loads(data)
            self.assertEqual(chunk["object"], "chat.completion.chunk")
            ids.add(chunk["id"])
            self.assertIsNone(usage, "a chunk after the usage")
            usage = chunk["usage"]
            if usage is not None:
                self.assertEqual(chunk["choices"], [])
                continue
            choice, = chunk["choices"]
            self.assertIsNone(finish, "a chunk after the last of the choice")
            finish = choice["finish_reason"]
            delta = choice["delta"]
            self.assertIn(delta.get("role"), (None, "assistant"))
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for part in delta.get("tool_calls") or []:
                if part["index"] == len(message["tool_calls"]):  # the first of a call has its id and name
                    self.assertEqual(part["type"], "function")
                    self.assertTrue(part["id"] and part["function"]["name"])
                    message["tool_calls"].append({"id": part["id"], "type": "function",
                                                  "function": {"name": part["function"]["name"], "arguments": ""}})
                call = message["tool_calls"][part["index"]]
                call["function"]["arguments"] += part["function"].get("arguments") or ""
        self.assertEqual(len(ids), 1)
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])
        return message, finish, usage

    def test_title(self):
        message, finish, _ = self.read(self.shapes["title"])
        self.assertEqual((finish, message["tool_calls"]), ("stop", []))
        self.assertTrue(message["content"])

    def test_tool_loop(self):
        body = self.shapes["turn"]
        message, finish, usage = self.read(body)
        self.assertEqual(finish, "tool_calls")
        call, = message["tool_calls"]
        self.assertEqual(call["function"]["name"], "get_weather")
        arguments = json.loads(call["function"]["arguments"])
        self.assertEqual(arguments, {"city": "Berlin"})
        self.assertIn("get_weather", message["reasoning_content"])
        self.assertGreater(usage["completion_tokens_details"]["reasoning_tokens"], 0)
        # Arguments come back written by its own library, without the blanks.
        call["function"]["arguments"] = json.dumps(arguments, separators=(",", ":"))
        body["messages"] += [{"role": "assistant", **message},
                             {"role": "tool", "tool_call_id": call["id"], "content": RESULT}]
        answer, finish, more = self.read(body)
        self.assertEqual((finish, answer["tool_calls"]), ("stop", []))
        self.assertIn("25", answer["content"])
        self.assert_replayed(1)
        self.assertGreaterEqual(more["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"] // 128 * 128)
        body["messages"] += [
            {"role": "assistant", "content": answer["content"], "reasoning_content": answer["reasoning_content"]},
            {"role": "user", "content": [{"type": "text", "text": "And what are you?"}]}]
        last, finish, _ = self.read(body)
        self.assertEqual(finish, "stop")
        self.assertTrue(last["content"])


class EverythingEnds(unittest.TestCase):
    def test_nothing_is_left_behind(self):
        self.assertTrue(SERVER.idle(), "requests or blocks are left: " + SERVER.get("/metrics")[1])


def load_tests(loader, _, __):
    """The agents one by one; the base class has no tests of its own."""
    return unittest.TestSuite(
        loader.loadTestsFromTestCase(case) for case in (ClaudeCode, Codex, Opencode, EverythingEnds))


if __name__ == "__main__":
    result = unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result
    code = SERVER.stop()
    sys.exit(0 if result.wasSuccessful() and code == 0 else 1)
