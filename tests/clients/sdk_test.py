"""The server under the openai and anthropic packages."""

import http.client
import json
import signal
import ssl
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

import anthropic
import openai
import trustme

from served import Server

PROGRAM, MODEL = sys.argv[1:3]
KEYS = ("key-for-tests", "key-of-another-tenant")
WHO = "Who are you?"
WEATHER = "How is the weather in Berlin today?"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
RESULT = json.dumps({"city": "Berlin", "condition": "sunny", "temperature": 25})


SERVER = Server(PROGRAM, MODEL, [f"{KEYS[0]} tenant=tests", f"{KEYS[1]} tenant=other max_waiting=1"],
                "--served-model-name", "demo", "--strict-model-names")


class OpenAi(unittest.TestCase):
    def setUp(self):
        self.client = openai.OpenAI(base_url=SERVER.url + "/v1", api_key=KEYS[0], max_retries=0)

    def tearDown(self):
        self.client.close()

    def chat(self, content=WHO, **options):
        return self.client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": content}], temperature=0, **options)

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["demo"])
        self.assertEqual(self.client.models.retrieve("demo").id, "demo")

    def test_whole_and_streamed_are_the_same(self):
        whole = self.chat()
        self.assertIn("demo model", whole.choices[0].message.content)
        self.assertEqual(whole.choices[0].finish_reason, "stop")
        text, usage = "", None
        for chunk in self.chat(stream=True, stream_options={"include_usage": True}):
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
            usage = chunk.usage or usage
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(usage.total_tokens, whole.usage.total_tokens)
        with self.client.chat.completions.stream(
                model="demo", messages=[{"role": "user", "content": WHO}], temperature=0) as stream:
            for _ in stream:
                pass
            self.assertEqual(stream.get_final_completion().choices[0].message.content, text)

    def test_limits_stops_seeds_and_choices(self):
        short = self.chat(max_completion_tokens=3)
        self.assertEqual(short.choices[0].finish_reason, "length")
        self.assertEqual(short.usage.completion_tokens, 3)
        stopped = self.chat(stop=["language"])
        self.assertNotIn("language", stopped.choices[0].message.content)
        self.assertEqual(stopped.choices[0].finish_reason, "stop")
        several = self.chat(n=2, max_tokens=4)
        self.assertEqual([choice.index for choice in several.choices], [0, 1])
        draws = [self.client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": WHO}], temperature=1.5, seed=7,
            max_tokens=12).choices[0].message.content for _ in range(2)]
        self.assertEqual(draws[0], draws[1])

    def test_tool_loop(self):
        tools = [{"type": "function", "function": {
            "name": "get_weather", "description": "Get the weather of a city", "parameters": CITY}}]
        messages = [{"role": "user", "content": WEATHER}]
        calls = {}
        for chunk in self.client.chat.completions.create(
                model="demo", messages=messages, tools=tools, temperature=0, stream=True):
            for call in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
                entry = calls.setdefault(call.index, {"id": "", "name": "", "arguments": ""})
                entry["id"] = call.id or entry["id"]
                entry["name"] = call.function.name or entry["name"]
                entry["arguments"] += call.function.arguments or ""
        self.assertEqual(len(calls), 1)
        call = calls[0]
        self.assertEqual(json.loads(call["arguments"]), {"city": "Berlin"})
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": call["id"], "type": "function",
                 "function": {"name": call["name"], "arguments": call["arguments"]}}]},
            {"role": "tool", "tool_call_id": call["id"], "content": RESULT}]
        answer = self.client.chat.completions.create(
            model="demo", messages=messages, tools=tools, temperature=0)
        self.assertIn("25", answer.choices[0].message.content)
        # The same JSON in another spelling is the same prompt.
        before = SERVER.metric("deepinfer:tool_call_replays_total")
        messages[1]["tool_calls"][0]["function"]["arguments"] = '{\n "city" : "Ber\\u006cin"\n}'
        again = self.client.chat.completions.create(
            model="demo", messages=messages, tools=tools, temperature=0)
        self.assertEqual(again.choices[0].message.content, answer.choices[0].message.content)
        self.assertEqual(SERVER.metric("deepinfer:tool_call_replays_total"), before + 1)

    def test_logprobs(self):
        answer = self.chat(logprobs=True, top_logprobs=2)
        tokens = answer.choices[0].logprobs.content
        text = b"".join(bytes(token.bytes) for token in tokens).decode()
        self.assertEqual(text, answer.choices[0].message.content)
        self.assertTrue(all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in tokens))
        streamed = []
        for chunk in self.chat(logprobs=True, top_logprobs=2, stream=True):
            if chunk.choices and chunk.choices[0].logprobs:
                streamed += chunk.choices[0].logprobs.content
        self.assertEqual(streamed, tokens)
        response = self.client.responses.create(
            model="demo", input=WHO, temperature=0, include=["message.output_text.logprobs"], top_logprobs=1)
        part = response.output[-1].content[0]
        self.assertEqual("".join(token.token for token in part.logprobs), part.text)

    def test_completions(self):
        ask = {"model": "demo", "prompt": "The demo model is", "temperature": 0, "max_tokens": 20}
        whole = self.client.completions.create(logprobs=2, **ask)
        choice = whole.choices[0]
        self.assertEqual("".join(choice.logprobs.tokens), choice.text)
        self.assertEqual(len(choice.logprobs.top_logprobs), len(choice.logprobs.tokens))
        text, usage = "", None
        for chunk in self.client.completions.create(stream=True, stream_options={"include_usage": True}, **ask):
            text += chunk.choices[0].text if chunk.choices else ""
            usage = chunk.usage or usage
        self.assertEqual((text, usage.total_tokens), (choice.text, whole.usage.total_tokens))
        several = self.client.completions.create(
            model="demo", prompt=["One", "Two"], n=2, max_tokens=2, echo=True, seed=1)
        self.assertEqual([one.text[:3] for one in several.choices], ["One", "One", "Two", "Two"])
        filled = self.client.completions.create(model="demo", prompt="a = ", suffix="\nprint(a)", max_tokens=3)
        self.assertEqual(filled.choices[0].finish_reason, "length")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.completions.create(model="demo", prompt="x", logprobs=9)
        self.assertEqual(caught.exception.param, "logprobs")

    def test_responses(self):
        whole = self.client.responses.create(model="demo", input=WHO, temperature=0, store=False)
        self.assertIn("demo model", whole.output_text)
        self.assertEqual(whole.status, "completed")
        with self.client.responses.stream(model="demo", input=WHO, temperature=0, store=False) as stream:
            kinds = [event.type for event in stream]
            self.assertEqual(stream.get_final_response().output_text, whole.output_text)
        self.assertEqual((kinds[0], kinds[-1]), ("response.created", "response.completed"))

    def test_stored_responses(self):
        first = self.client.responses.create(model="demo", input=WHO, temperature=0)
        self.assertEqual(self.client.responses.retrieve(first.id).output_text, first.output_text)
        second = self.client.responses.create(
            model="demo", input="What can you do?", previous_response_id=first.id, temperature=0)
        self.assertEqual(second.previous_response_id, first.id)
        items = list(self.client.responses.input_items.list(second.id, order="asc"))
        self.assertEqual((items[0].content[0].text, items[-1].content[0].text), (WHO, "What can you do?"))
        self.assertEqual(len(list(self.client.responses.input_items.list(second.id, limit=1))), len(items))
        other = openai.OpenAI(base_url=SERVER.url + "/v1", api_key=KEYS[1], max_retries=0)
        with self.assertRaises(openai.NotFoundError):
            other.responses.retrieve(first.id)
        other.close()
        with self.assertRaises(openai.BadRequestError):
            self.client.responses.cancel(first.id)
        self.client.responses.delete(first.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(first.id)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.responses.create(model="demo", input="x", previous_response_id=first.id)
        self.assertEqual(caught.exception.code, "previous_response_not_found")

    def test_errors_have_their_classes(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(
                model="demo", messages=[{"role": "user", "content": "x"}], temperature=-3)
        self.assertIn("temperature", caught.exception.message)
        with self.assertRaises(openai.BadRequestError):
            self.chat(response_format={"type": "json_object"})
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model="demo", input="x")
        with self.assertRaises((openai.NotFoundError, openai.BadRequestError)):
            self.client.chat.completions.create(model="other", messages=[{"role": "user", "content": "x"}])
        stranger = openai.OpenAI(base_url=SERVER.url + "/v1", api_key="no-key-of-ours", max_retries=0)
        with self.assertRaises(openai.AuthenticationError):
            stranger.models.list()
        stranger.close()

    def test_a_key_has_its_limit(self):
        other = openai.OpenAI(base_url=SERVER.url + "/v1", api_key=KEYS[1], max_retries=0)
        messages = [{"role": "user", "content": WHO}]
        first = other.chat.completions.create(model="demo", messages=messages, stream=True, max_tokens=2000,
                                              extra_body={"ignore_eos": True})
        next(iter(first))
        with self.assertRaises(openai.RateLimitError) as caught:
            other.chat.completions.create(model="demo", messages=messages)
        self.assertIn("retry-after", caught.exception.response.headers)
        first.close()
        other.close()


class Anthropic(unittest.TestCase):
    def setUp(self):
        self.client = anthropic.Anthropic(base_url=SERVER.url, api_key=KEYS[0], max_retries=0)

    def tearDown(self):
        self.client.close()

    def test_whole_and_streamed_are_the_same(self):
        ask = {"model": "demo", "max_tokens": 80, "messages": [{"role": "user", "content": WHO}],
               "extra_body": {"temperature": 0}}
        whole = self.client.messages.create(**ask)
        self.assertIn("demo model", whole.content[-1].text)
        self.assertEqual(whole.stop_reason, "end_turn")
        with self.client.messages.stream(**ask) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[-1].text)
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)

    def test_tool_loop(self):
        tools = [{"name": "get_weather", "description": "Get the weather of a city", "input_schema": CITY}]
        messages = [{"role": "user", "content": WEATHER}]
        first = self.client.messages.create(
            model="demo", max_tokens=300, messages=messages, tools=tools, extra_body={"temperature": 0})
        self.assertEqual(first.stop_reason, "tool_use")
        call = [block for block in first.content if block.type == "tool_use"][0]
        self.assertEqual(call.input, {"city": "Berlin"})
        messages += [
            {"role": "assistant", "content": [block.model_dump() for block in first.content]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": RESULT}]}]
        second = self.client.messages.create(
            model="demo", max_tokens=300, messages=messages, tools=tools, extra_body={"temperature": 0})
        self.assertIn("25", second.content[-1].text)

    def test_count_and_models(self):
        counted = self.client.messages.count_tokens(
            model="demo", messages=[{"role": "user", "content": WHO}])
        used = self.client.messages.create(
            model="demo", max_tokens=1, messages=[{"role": "user", "content": WHO}])
        self.assertEqual(counted.input_tokens, used.usage.input_tokens)
        self.assertEqual([model.id for model in self.client.models.list()], ["demo"])

    def test_errors_have_their_classes(self):
        with self.assertRaises(anthropic.BadRequestError):
            self.client.messages.create(
                model="demo", max_tokens=5, messages=[{"role": "nobody", "content": "x"}])
        stranger = anthropic.Anthropic(base_url=SERVER.url, api_key="no-key-of-ours", max_retries=0)
        with self.assertRaises(anthropic.AuthenticationError):
            stranger.messages.create(model="demo", max_tokens=5, messages=[{"role": "user", "content": "x"}])
        stranger.close()


    def test_every_answer_has_its_request_id(self):
        ask = {"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": WHO}]}
        named = {"x-request-id": "an-id-of-ours"}
        self.assertEqual(self.client.messages.create(**ask, extra_headers=named)._request_id, "an-id-of-ours")
        ids = [self.client.messages.create(**ask)._request_id for _ in range(2)]
        self.assertTrue(all(ids) and ids[0] != ids[1], ids)
        with self.client.messages.stream(**ask, extra_headers=named) as stream:
            self.assertEqual(stream.request_id, "an-id-of-ours")
        for wrong in ({"max_tokens": -1}, {"model": "other"}):
            with self.assertRaises(anthropic.APIStatusError) as caught:
                self.client.messages.create(**{**ask, **wrong}, extra_headers=named)
            self.assertEqual(caught.exception.request_id, "an-id-of-ours")
            self.assertEqual(caught.exception.body["request_id"], "an-id-of-ours")
        with self.assertRaises(anthropic.AuthenticationError) as caught:
            self.client.with_options(api_key="no-key-of-ours").messages.create(**ask)
        self.assertTrue(caught.exception.request_id)
        self.assertTrue(self.client.models.list()._request_id)


class Tls(unittest.TestCase):
    """A server of its own, with a certificate of an authority that lives as long as the test."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.chain, cls.key = (Path(cls.folder.name) / name for name in ("chain.pem", "key.pem"))
        cls.trust = cls.new_certificate()
        cls.server = Server(PROGRAM, MODEL, [KEYS[0]], "--served-model-name", "demo", "--ssl-certfile", cls.chain,
                            "--ssl-keyfile", cls.key, tls=cls.trust)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0
        cls.folder.cleanup()

    @classmethod
    def new_certificate(cls):
        """Writes the two files; a context that trusts only the authority of this certificate."""
        authority = trustme.CA()
        certificate = authority.issue_cert("127.0.0.1")
        cls.key.write_bytes(certificate.private_key_pem.bytes())
        cls.chain.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
        context = ssl.create_default_context()
        authority.configure_trust(context)
        return context

    def openai(self):
        client = openai.OpenAI(base_url=self.server.url + "/v1", api_key=KEYS[0], max_retries=0,
                               http_client=openai.DefaultHttpxClient(verify=self.trust))
        self.addCleanup(client.close)
        return client

    def test_clients_talk_to_it(self):
        self.assertTrue(self.server.url.startswith("https://"))
        ask = {"model": "demo", "temperature": 0, "messages": [{"role": "user", "content": WHO}]}
        client = self.openai()
        whole = client.chat.completions.create(**ask).choices[0].message.content
        self.assertIn("demo model", whole)
        streamed = "".join(chunk.choices[0].delta.content or ""
                           for chunk in client.chat.completions.create(stream=True, **ask) if chunk.choices)
        self.assertEqual(streamed, whole)
        client = anthropic.Anthropic(base_url=self.server.url, api_key=KEYS[0], max_retries=0,
                                     http_client=anthropic.DefaultHttpxClient(verify=self.trust))
        self.addCleanup(client.close)
        with client.messages.stream(model="demo", max_tokens=80, messages=ask["messages"],
                                    extra_body={"temperature": 0}) as stream:
            self.assertEqual("".join(stream.text_stream), whole)

    def test_who_leaves_is_cancelled(self):
        left = 'vllm:request_success_total{model_name="demo",engine="0",finished_reason="abort"'
        self.assertIn(left, self.server.get("/metrics")[1])

        def count():
            return [float(line.split()[-1]) for line in self.server.get("/metrics")[1].splitlines()
                    if line.startswith(left)][0]

        before = count()
        stream = self.openai().chat.completions.create(
            model="demo", messages=[{"role": "user", "content": WHO}], stream=True, max_tokens=8000,
            extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.assertTrue(self.server.idle())
        self.assertEqual(count(), before + 1)

    def trusted(self, context):
        """Whether a new connection shows a certificate that this context trusts."""
        try:
            with urllib.request.urlopen(self.server.url + "/health", context=context) as reply:
                return reply.status == 200
        except urllib.error.URLError as error:
            self.assertIsInstance(error.reason, ssl.SSLCertVerificationError)
            return False

    def test_strangers_are_turned_away(self):
        self.assertFalse(self.trusted(ssl.create_default_context()))
        with self.assertRaises((OSError, http.client.HTTPException)):
            urllib.request.urlopen(self.server.url.replace("https:", "http:") + "/health")
        self.assertTrue(self.trusted(self.trust))

    def test_sighup_changes_the_certificate(self):
        open_since_before = self.openai()
        open_since_before.models.list()
        old = self.trust
        new = self.new_certificate()
        self.assertTrue(self.trusted(old))
        self.server.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 60
        while not self.trusted(new) and time.monotonic() < deadline:
            time.sleep(0.05)
        type(self).trust = self.server.tls = new
        self.assertTrue(self.trusted(new))
        self.assertFalse(self.trusted(old))
        open_since_before.models.list()
        # A key of another certificate: everything stays.
        self.key.write_bytes(trustme.CA().issue_cert("127.0.0.1").private_key_pem.bytes())
        self.server.process.send_signal(signal.SIGHUP)
        line = ""
        while "certificate" not in line:
            line = self.server.process.stderr.readline()
        self.assertIn("stay what they were", line)
        self.assertIn(str(self.key), line)
        self.assertTrue(self.trusted(new))


class EverythingEnds(unittest.TestCase):
    def test_nothing_is_left_behind(self):
        self.assertTrue(SERVER.idle(), "requests or blocks are left: " + SERVER.get("/metrics")[1])


if __name__ == "__main__":
    result = unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result
    code = SERVER.stop()
    sys.exit(0 if result.wasSuccessful() and code == 0 else 1)
