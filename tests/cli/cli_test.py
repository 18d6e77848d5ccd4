"""The program as a user meets it: exit codes, messages, and results against the golden files.

usage: cli_test.py DEEPINFER GOLDEN_FOLDER PROJECT_FOLDER
"""

import json
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from pathlib import Path

import safetensors

PROGRAM = Path(sys.argv[1])
GOLDEN = Path(sys.argv[2])
PROJECT = Path(sys.argv[3])
TINY = GOLDEN / "tiny41"


def run(*arguments, stdin="", environment=None):
    variables = {**os.environ, **(environment or {})}
    return subprocess.run([PROGRAM, *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=300,
                          env=variables)


class Checked(unittest.TestCase):
    def refused(self, code, *words, arguments, **more):
        done = run(*arguments, **more)
        self.assertEqual(done.returncode, code, f"{arguments}\n{done.stdout}{done.stderr}")
        for word in words:
            self.assertIn(word, done.stderr, arguments)
        self.assertEqual(done.stdout, "", "a refusal prints nothing on standard output")
        return done


class ServerCertificates(Checked):
    """Files for TLS that cannot be used end `serve` with exit 3 before anything is loaded."""

    def check(self, *words, certificate=None, key=None):
        arguments = ["serve", "--port", "0"]
        arguments += ["--ssl-certfile", certificate] if certificate else []
        arguments += ["--ssl-keyfile", key] if key else []
        self.refused(3, "cannot serve TLS: ", *words, arguments=arguments)

    def test_one_without_the_other(self):
        self.check("--ssl-certfile chain.pem has no --ssl-keyfile", certificate="chain.pem")
        self.check("--ssl-keyfile key.pem has no --ssl-certfile", key="key.pem")

    def test_what_cannot_be_used_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            certificate = Path(folder) / "chain.pem"
            self.check(certificate.name, certificate=certificate, key=certificate)
            certificate.write_text("no certificate")
            self.check(str(certificate), "BEGIN CERTIFICATE", certificate=certificate, key=certificate)


class BrokenModels(Checked):
    """A copy of tiny41 with one thing wrong is refused with exit 3 and a message that names it."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.model = self.folder / "model"
        shutil.copytree(TINY / "checkpoint", self.model)
        for path in [self.model, *self.model.iterdir()]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        self.shard = self.model / "model-00002-of-00004.safetensors"

    def check(self, *words, code=3):
        self.refused(code, *words, arguments=["score", "--model", self.model, "--ids", "3,4,5"])

    def edit_header(self, change):
        header, blob = safetensors.take_apart(self.shard)
        blob = change(header, blob) or blob
        safetensors.save(self.shard, header, blob)

    def edit_config(self, change):
        path = self.model / "config.json"
        config = json.loads(path.read_text())
        change(config)
        path.write_text(json.dumps(config))

    def test_intact_copy_is_accepted(self):
        done = run("score", "--model", self.model, "--ids", "3,4,5")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_truncated_shard(self):
        data = self.shard.read_bytes()
        self.shard.write_bytes(data[: len(data) // 2])
        self.check(self.shard.name)

    def test_empty_shard(self):
        self.shard.write_bytes(b"")
        self.check(self.shard.name)

    def test_header_longer_than_the_file(self):
        data = self.shard.read_bytes()
        self.shard.write_bytes(struct.pack("<Q", 1 << 62) + data[8:])
        self.check(self.shard.name)

    def test_header_is_not_json(self):
        data = bytearray(self.shard.read_bytes())
        data[8:12] = b"!!!!"
        self.shard.write_bytes(bytes(data))
        self.check(self.shard.name)

    def test_overlapping_tensors(self):
        def change(header, blob):
            names = [name for name in header if name != "__metadata__"]
            header[names[1]]["data_offsets"] = header[names[0]]["data_offsets"]
        self.edit_header(change)
        self.check(self.shard.name)

    def test_offsets_that_lie_about_the_size(self):
        def change(header, blob):
            name = next(name for name in header if name != "__metadata__")
            header[name]["shape"] = [1 << 40, 1 << 40]
        self.edit_header(change)
        self.check(self.shard.name)

    def test_missing_tensor(self):
        name = "layers.2.attn.wkv.weight"
        def change(header, blob):
            header["layers.2.attn.other.weight"] = header.pop(name)
        self.edit_header(change)
        index = self.model / "model.safetensors.index.json"
        index.write_text(index.read_text().replace(f'"{name}"', '"layers.2.attn.other.weight"'))
        self.check("layers.2.attn")

    def test_wrong_shape(self):
        def change(header, blob):
            shape = header["layers.2.attn.wkv.weight"]["shape"]
            header["layers.2.attn.wkv.weight"]["shape"] = [shape[1], shape[0]]
        self.edit_header(change)
        self.check("layers.2.attn.wkv.weight", "shape")

    def test_nan_scale(self):
        def change(header, blob):
            begin, _ = header["layers.2.attn.wkv.scale"]["data_offsets"]
            return blob[:begin] + b"\xff" + blob[begin + 1 :]
        self.edit_header(change)
        self.check("layers.2.attn.wkv")

    def test_absent_shard(self):
        self.shard.unlink()
        self.check(self.shard.name)

    def test_index_names_an_absent_shard(self):
        index = self.model / "model.safetensors.index.json"
        index.write_text(index.read_text().replace("model-00003-of", "model-00009-of"))
        self.check("model-00009-of-00004.safetensors")

    def test_index_points_out_of_the_folder(self):
        index = self.model / "model.safetensors.index.json"
        index.write_text(index.read_text().replace("model-00003-of", "../model-00003-of"))
        self.check("index")

    def test_no_token_map(self):
        (self.model / "engram_token_map.i32").unlink()
        self.check("engram_token_map.i32")

    def test_token_map_of_the_program_follows_the_tokenizer(self):
        (self.model / "engram_token_map.i32").unlink()
        with tarfile.open(GOLDEN.parent / "recipe/tokenizer/tokenizers.tar.xz") as archive:
            member = next(name for name in archive.getnames() if name.endswith("v41/tokenizer.json"))
            (self.model / "tokenizer.json").write_bytes(archive.extractfile(member).read())
        self.check("129280", "512")  # found, and refused: it maps more ids than this model has
        done = run("doctor", "--model", self.model)
        self.assertEqual(done.returncode, 3)
        self.assertIn("129280", done.stdout)

    def test_unknown_model_type(self):
        self.edit_config(lambda config: config.update(model_type="llama"))
        self.check("model_type", "llama")

    def test_missing_field(self):
        self.edit_config(lambda config: config["text_config"].pop("hidden_size"))
        self.check("hidden_size")

    def test_absurd_field(self):
        self.edit_config(lambda config: config["text_config"].update(num_attention_heads=-4))
        self.check("num_attention_heads", "-4")

    def test_size_that_overflows(self):
        self.edit_config(lambda config: config["text_config"].update(hidden_size=1 << 62))
        self.check("hidden_size")

    def test_config_is_not_json(self):
        (self.model / "config.json").write_text("{")
        self.check("config.json")

    def test_broken_tokenizer(self):
        (self.model / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}')
        self.refused(3, "tokenizer.json", arguments=["tokenize", "--model", self.model], stdin="a")


class BadRequests(Checked):
    def score(self, *arguments):
        return ["score", "--model", TINY / "checkpoint", *arguments]

    def test_usage(self):
        self.assertEqual(run().returncode, 2)
        self.assertEqual(run("unknown").returncode, 2)
        self.assertEqual(run("score", "--unknown").returncode, 2)

    def test_ids_out_of_range(self):
        self.refused(2, "99999", "511", arguments=self.score("--ids", "3,99999"))
        self.refused(2, "-1", arguments=self.score("--ids", "-1"))
        self.refused(2, "not a list", arguments=self.score("--ids", "x"))

    def test_empty_prompt(self):
        self.refused(2, "no", arguments=self.score("--ids", ""))

    def test_longer_than_the_limit(self):
        self.refused(2, "3", "2", arguments=self.score("--ids", "3,4,5", "--max-model-len", "2"))

    def test_unknown_values_list_the_known(self):
        self.refused(2, "exact, replay", arguments=self.score("--ids", "3", "--mode", "sometimes"))
        self.refused(2, "bf16, f32", arguments=self.score("--ids", "3", "--precision", "f64"))
        self.refused(3, "avx2", arguments=self.score("--ids", "3", "--kernels", "mmx"))
        self.refused(2, "compact", arguments=self.score("--ids", "3"),
                     environment={"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE": "sometimes"})

    def test_replay_is_refused_for_v4(self):
        self.refused(3, "replay", arguments=["score", "--model", GOLDEN / "tiny4/checkpoint", "--ids", "3", "--mode", "replay"])

    def test_no_model(self):
        self.refused(3, "not a directory", arguments=["score", "--model", "/nonexistent", "--ids", "3"])
        self.refused(3, "DEEPINFER_HF_MODEL_DIR", arguments=["score", "--ids", "3"],
                     environment={"DEEPINFER_HF_MODEL_DIR": "/nonexistent"})

    def test_does_not_fit(self):
        done = run("plan", "--config", TINY / "checkpoint/config.json", "--memory", "100K")
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("weights", done.stdout)


class Faults(Checked):
    """What fails under the program, where DEEPINFER_FAULT_POINTS asks for it."""

    GENERATE = ["generate", "--model", TINY / "checkpoint", "--ids", "3,4,5", "--max-tokens", 40, "--ignore-eos", "--json"]

    def with_fault(self, code, points, *words):
        return self.refused(code, *words, arguments=self.GENERATE, environment={"DEEPINFER_FAULT_POINTS": points})

    def test_a_lost_device_ends_the_work(self):
        self.with_fault(1, "host.step_lost:5", "host.step_lost:5", "the device failed")

    def test_a_step_that_hangs_ends_the_work(self):
        self.with_fault(1, "host.step_stall:5,watchdog.patience", "the device hangs", "a step has not ended")

    def test_no_memory_while_it_loads(self):
        self.with_fault(4, "host.allocate", "cannot take", "Cannot allocate memory")
        self.with_fault(4, "host.allocate:2", "cannot take", "Cannot allocate memory")

    def test_faults_that_do_not_come_change_nothing(self):
        plain = run(*self.GENERATE)
        armed = run(*self.GENERATE, environment={"DEEPINFER_FAULT_POINTS": "host.step_lost:1000,host.allocate:1000"})
        self.assertEqual((plain.returncode, armed.returncode), (0, 0), armed.stderr)
        self.assertEqual(plain.stdout, armed.stdout)

    def test_unknown_points_list_the_known(self):
        self.with_fault(2, "host.step_lots", "no such point", "host.step_lost", "cuda.launch")
        self.with_fault(2, "host.step_lost:0", "from 1 on")


class Results(unittest.TestCase):
    """What `score` and `generate` write, against the values of an independent implementation."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.golden = safetensors.read(TINY / "golden/prompts.safetensors")

    def score(self, ids, *more):
        ids_file, out = self.folder / "ids.json", self.folder / "out.safetensors"
        ids_file.write_text(json.dumps(list(ids)))
        done = run("score", "--model", TINY / "checkpoint", "--ids", f"@{ids_file}", "--out", out, *more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return safetensors.read(out)["logits"]

    def close(self, ours, name, limit):
        shape, values = ours
        golden_shape, golden = self.golden[f"{name}.logits"]
        self.assertEqual(shape, golden_shape)
        self.assertLessEqual(max(abs(a - b) for a, b in zip(values, golden)), limit)

    def test_score_equals_golden(self):
        for backend in ("reference", "cpu"):
            for name, limit in (("p1", 1e-3), ("p17", 1e-3), ("p200", 1e-2)):
                with self.subTest(backend=backend, name=name):
                    self.close(self.score(self.golden[f"{name}.ids"][1], "--backend", backend), name, limit)

    def test_chunks_do_not_show(self):
        ids = self.golden["p33.ids"][1]
        whole = self.score(ids, "--precision", "bf16")
        self.assertEqual(whole, self.score(ids, "--precision", "bf16", "--chunk", 7))

    def test_replay_from_a_hit(self):
        ids = self.golden["p333.ids"][1]
        replay = ["--precision", "bf16", "--mode", "replay", "--replay-at", 256]
        whole = self.score(ids, *replay)
        self.assertEqual(whole[0], [128, 512], "the decoder half runs on the last 128 positions")
        self.assertTrue(whole == self.score(ids, *replay, "--chunk", 50), "chunks do not show")
        cold = self.score(ids, "--precision", "bf16", "--mode", "replay")
        self.assertEqual(cold[0], [128, 512])
        self.assertFalse(cold == whole, "a replayed start shows")
        shape, exact = self.score(ids, "--precision", "bf16")
        self.assertEqual(shape, [333, 512])
        first = (333 - 128) * 512  # the first row of the tail has no window in the decoder half
        self.assertFalse(exact[first : first + 512] == cold[1][:512], "and so does a cut decoder half")

    def test_image_rows(self):
        ids = self.golden["pimg.ids"][1]
        mask = self.golden["pimg.image_mask"][1]
        shape, rows = self.golden["pimg.span_rows"]
        positions = [i for i, image in enumerate(mask) if image]
        embeds = self.folder / "embeds.safetensors"
        safetensors.write(embeds, {"positions": ("I32", [len(positions)], struct.pack(f"<{len(positions)}i", *positions)),
                                   "rows": ("F32", shape, rows.tobytes())})
        self.close(self.score(ids, "--embeds", embeds), "pimg", 1e-3)

    def test_generate_continues_as_golden(self):
        ids = list(self.golden["p17.ids"][1])
        done = run("generate", "--model", TINY / "checkpoint", "--precision", "f32", "--mode", "exact", "--ids",
                   ",".join(map(str, ids)), "--max-tokens", 48, "--ignore-eos", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        answer = json.loads(done.stdout)
        self.assertEqual(answer["ids"], list(self.golden["p17.greedy_ids"][1]))
        self.assertEqual(answer["finish_reason"], "length")
        self.assertEqual(answer["usage"], {"prompt_tokens": 17, "completion_tokens": 48, "cached_tokens": 0})

    def test_batch_equals_alone(self):
        requests = [{"ids": list(self.golden[f"{name}.ids"][1]), "max_tokens": 12, "ignore_eos": True, "seed": 7,
                     "temperature": temperature} for name in ("p2", "p17", "p33") for temperature in (0, 0.8)]
        batch = self.folder / "batch.jsonl"
        batch.write_text("".join(json.dumps(request) + "\n" for request in requests))
        together = run("generate", "--model", TINY / "checkpoint", "--batch", batch, "--json")
        self.assertEqual(together.returncode, 0, together.stderr)
        for request, line in zip(requests, together.stdout.splitlines(), strict=True):
            batch.write_text(json.dumps(request) + "\n")
            alone = run("generate", "--model", TINY / "checkpoint", "--batch", batch, "--json")
            self.assertEqual(json.loads(alone.stdout), json.loads(line))

    def test_bench_serve_sim(self):
        traces = self.folder / "traces"
        traces.mkdir()
        for trace in range(2):
            requests = [{"t": 10 * turn, "in": 64 * (40 + 10 * turn), "out": 30, "api_time": 2,
                         "hash_ids": list(range(40 + 10 * turn))} for turn in range(3)]
            (traces / f"{trace}.json").write_text(json.dumps(
                {"id": str(trace), "block_size": 64, "hash_id_scope": "local", "requests": requests}))
        done = run("bench", "serve-sim", "--json", "--traces", traces)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = {row["name"]: row for row in json.loads(done.stdout)}
        self.assertEqual(len(rows), 20)
        # The second request finds the first one's 20 blocks, the third the second one's 25; nothing else is shared.
        hits = rows["serve-sim 100 % hits"]
        self.assertAlmostEqual(hits["limit"], 100 * (20 + 25) / (20 + 25 + 30))
        self.assertEqual(rows["serve-sim 10 % hits"]["value"], 0)  # six blocks hold none of the prompts
        self.assertIn("60 blocks", hits["conditions"])
        self.assertEqual(done.stdout, run("bench", "serve-sim", "--json", environment={"DEEPINFER_TRACES": str(traces)}).stdout)
        (traces / "2.json").write_text("{")
        done = run("bench", "serve-sim", "--traces", traces)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("2.json", done.stderr)
        done = run("bench", "serve-sim", environment={"DEEPINFER_TRACES": ""})
        self.assertEqual(done.returncode, 2)
        self.assertIn("--traces", done.stderr)
        table = traces / "choices_table.cpp"
        done = run("bench", "serve-sim", "--write", table)
        self.assertEqual(done.returncode, 2)
        self.assertIn("bench tune", done.stderr)
        self.assertFalse(table.exists())

    def test_batch_requests_arrive_at_their_time(self):
        ids = list(self.golden["p17.ids"][1])
        at_once = [{"ids": ids[:length], "max_tokens": 6, "ignore_eos": True, "temperature": 0} for length in (9, 5, 17)]
        later = [dict(request, arrival_ms=ms) for request, ms in zip(at_once, (400, 0, 200), strict=True)]
        answers, seconds = [], []
        for requests in (at_once, later):
            batch = self.folder / "arrivals.jsonl"
            batch.write_text("".join(json.dumps(request) + "\n" for request in requests))
            start = time.monotonic()
            done = run("generate", "--model", TINY / "checkpoint", "--batch", batch, "--json")
            seconds.append(time.monotonic() - start)
            self.assertEqual(done.returncode, 0, done.stderr)
            answers.append([json.loads(line) for line in done.stdout.splitlines()])
        self.assertEqual([answer["usage"]["prompt_tokens"] for answer in answers[1]], [9, 5, 17])
        self.assertEqual([answer["ids"] for answer in answers[1]], [answer["ids"] for answer in answers[0]])
        self.assertGreaterEqual(seconds[1], 0.4)
        for wrong in (-1, 0.5, "1", 10**9):
            batch.write_text(json.dumps({"ids": [1], "arrival_ms": wrong}) + "\n")
            done = run("generate", "--model", TINY / "checkpoint", "--batch", batch)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("line 1", done.stderr)
            self.assertIn("arrival_ms", done.stderr)


class Demo(unittest.TestCase):
    """The demo model in the tree: a tool call and its use, in both modes, and the loop back from text to ids."""

    MODEL = PROJECT / "models/demo"
    TOOLS = ["--tools", PROJECT / "examples/tools/weather.json"]
    QUESTION = "How is the weather in Berlin today?"

    def test_calls_the_tool_and_uses_its_result(self):
        for mode in ("exact", "replay"):
            with self.subTest(mode=mode):
                done = run("run", "--model", self.MODEL, "--mode", mode, *self.TOOLS, "--tool-command",
                           PROJECT / "examples/tools/weather.sh", "--prompt", self.QUESTION)
                self.assertEqual(done.returncode, 0, done.stderr)
                call, result, answer = done.stdout.strip().split("\n")
                self.assertEqual(call, '-> get_weather {"city": "Berlin"}')
                weather = json.loads(result.removeprefix("<- get_weather "))
                self.assertIn(weather["condition"], answer)
                self.assertIn(str(weather["temperature"]), answer)

    def test_json_is_a_chat_completion(self):
        done = run("run", "--model", self.MODEL, *self.TOOLS, "--prompt", self.QUESTION, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        body = json.loads(done.stdout)
        choice = body["choices"][0]
        self.assertEqual(body["object"], "chat.completion")
        self.assertEqual(choice["finish_reason"], "tool_calls")
        function = choice["message"]["tool_calls"][0]["function"]
        self.assertEqual((function["name"], json.loads(function["arguments"])), ("get_weather", {"city": "Berlin"}))
        usage = body["usage"]
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])

    def test_text_to_ids_and_back(self):
        text = "Zwölf Boxkämpfer 12345, 日本語 🦀 <think>\n\n  def f(x): return x"
        ids = run("tokenize", "--model", self.MODEL, stdin=text)
        self.assertEqual(ids.returncode, 0, ids.stderr)
        self.assertEqual(run("detokenize", "--model", self.MODEL, stdin=ids.stdout).stdout, text)

    def test_doctor_finds_nothing_wrong(self):
        done = run("doctor", "--model", self.MODEL, "--json")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertTrue(json.loads(done.stdout)["healthy"])


class PrefixCache(Checked):
    """The prefix cache as the program's options and outputs show it, on the demo model."""

    MODEL = PROJECT / "models/demo"
    CHAT = ["--model", MODEL, "--log-level", "info", "--max-tokens", 24, "--system",
            "You are the assistant of a travel agency. " * 20]

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def ids(self, count, seed=1):
        return [(seed * 7919 + i * i * 31 + i) % 3000 + 64 for i in range(count)]

    def generate(self, requests, *more):
        batch = self.folder / "batch.jsonl"
        batch.write_text("".join(json.dumps(request) + "\n" for request in requests))
        done = run("generate", "--model", self.MODEL, "--ignore-eos", "--batch", batch, "--json", *more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def behind_others(self, prompt):
        """The prompt, 15 others that take all places, and the prompt again: it starts when the first has ended."""
        others = [{"ids": self.ids(20, seed), "max_tokens": 24} for seed in range(3, 18)]
        return [{"ids": prompt, "max_tokens": 2}, *others, {"ids": prompt, "max_tokens": 2}]

    def test_the_second_turn_of_a_chat_hits_the_first(self):
        for mode in ("exact", "replay"):
            with self.subTest(mode=mode):
                done = run("chat", *self.CHAT, "--mode", mode, stdin="I need a hotel in Paris.\nFor two nights.\n")
                self.assertEqual(done.returncode, 0, done.stderr)
                turns = [line for line in done.stderr.splitlines() if "prompt tokens" in line]
                self.assertEqual(len(turns), 2, done.stderr)
                self.assertIn(" 0 came from the prefix cache", turns[0])
                self.assertRegex(turns[1], r"of which (128|256|384|512) came from the prefix cache")
        off = run("chat", *self.CHAT, "--prefix-cache", "off", stdin="I need a hotel.\nFor two nights.\n")
        self.assertEqual(off.stderr.count(" 0 came from the prefix cache"), 2, off.stderr)

    def test_a_repeated_prompt_is_cached_and_answered_alike(self):
        requests = self.behind_others(self.ids(300))
        on = self.generate(requests, "--mode", "exact")
        off = self.generate(requests, "--mode", "exact", "--prefix-cache", "off")
        self.assertEqual([answer["ids"] for answer in on], [answer["ids"] for answer in off])
        self.assertEqual(on[0]["usage"]["cached_tokens"], 0)
        self.assertEqual(on[-1]["usage"], {"prompt_tokens": 300, "completion_tokens": 2, "cached_tokens": 256})
        self.assertEqual(off[-1]["usage"]["cached_tokens"], 0)
        self.assertEqual(self.generate(requests, "--mode", "replay")[-1]["usage"]["cached_tokens"], 256)

    def test_exact_mode_says_what_it_could_not_restore(self):
        last = self.generate(self.behind_others(self.ids(300)), "--mode", "exact", "--prefix-snapshots", 0)[-1]
        self.assertEqual(last["usage"], {"prompt_tokens": 300, "completion_tokens": 2, "cached_tokens": 0,
                                         "unrestored_tokens": 256})

    def test_tenants_share_only_when_told_to(self):
        first, *others = self.behind_others(self.ids(300))
        requests = [{**first, "tenant": "a"}, *({**other, "tenant": "b"} for other in others)]
        for shared, expected in (("off", 0), ("on", 256)):
            last = self.generate(requests, "--mode", "exact", "--prefix-shared", shared)[-1]
            self.assertEqual(last["usage"]["cached_tokens"], expected, shared)

    def test_many_requests_of_three_tenants_answer_as_one_by_one(self):
        base = self.ids(400)
        requests = [{"ids": base[: 130 + 8 * i] + self.ids(5 + i, i + 2), "max_tokens": 4 + i % 9, "seed": i,
                     "temperature": (0, 0.8)[i % 2], "tenant": "abc"[i % 3], "priority": i % 8} for i in range(32)]
        together = self.generate(requests, "--mode", "exact")
        self.assertGreater(sum(answer["usage"]["cached_tokens"] for answer in together), 1000)
        for request, answer in zip(requests, together, strict=True):
            alone = self.generate([request], "--mode", "exact")[0]
            self.assertEqual(alone["usage"]["cached_tokens"], 0)
            self.assertEqual(alone["ids"], answer["ids"], request)

    def test_plan_shows_what_it_takes(self):
        def rows(*more):
            done = run("plan", "--config", self.MODEL / "config.json", "--memory", "4G", "--json", *more)
            self.assertEqual(done.returncode, 0, done.stderr)
            plan = json.loads(done.stdout)
            return {row["tag"]: row for row in plan["rows"]}, plan
        exact, plan = rows("--mode", "exact", "--prefix-snapshots", 10)
        self.assertIn("10 exact states", exact["prefix snapshots"]["detail"])
        self.assertEqual(exact["prefix snapshots"]["place"], "device")
        each = exact["prefix index"]["bytes"] / plan["blocks"]
        self.assertTrue(212 <= each <= 261, each)
        gpu, plan = rows("--devices", "1xh200")
        self.assertEqual(gpu["prefix index"]["place"], "host")
        self.assertNotIn("prefix snapshots", gpu, "replay mode needs none")
        off, _ = rows("--mode", "exact", "--prefix-cache", "off")
        self.assertFalse({"prefix index", "prefix snapshots"} & set(off))

    def test_bad_settings(self):
        ids = ["generate", "--model", self.MODEL, "--ids", "70,71", "--max-tokens", 1]
        self.refused(2, "--prefix-cache", "on (1, true)", arguments=[*ids, "--prefix-cache", "perhaps"])
        self.refused(2, "--prefix-shared", arguments=[*ids, "--prefix-shared", "2"])
        for number in ("-1", "x", "99999999"):
            self.refused(2, "--prefix-snapshots", number, arguments=[*ids, "--prefix-snapshots", number])
        self.refused(4, "prefix snapshots", "--prefix-snapshots", arguments=[*ids, "--prefix-snapshots", 1 << 20])

    def test_secrets(self):
        ids = ["generate", "--model", self.MODEL, "--ids", "70,71", "--max-tokens", 1, "--log-level", "debug"]
        secret = self.folder / "secret"
        self.refused(3, str(secret), arguments=[*ids, "--prefix-secret-file", secret])
        secret.write_text("  tooshort \n")
        done = self.refused(3, str(secret), "8 bytes", "16", arguments=[*ids, "--prefix-secret-file", secret])
        self.assertNotIn("tooshort", done.stderr)
        secret.write_bytes(b"x" * 5000)
        self.refused(3, str(secret), arguments=[*ids, "--prefix-secret-file", secret])
        done = self.refused(2, "DEEPINFER_PREFIX_SECRET", "8 bytes", arguments=ids,
                            environment={"DEEPINFER_PREFIX_SECRET": "tooshort"})
        self.assertNotIn("tooshort", done.stderr)
        secret.write_text("0123456789abcdef0123456789abcdef\n")
        for more, environment in ((["--prefix-secret-file", secret], {}),
                                  ([], {"DEEPINFER_PREFIX_SECRET": "0123456789abcdef"}),
                                  ([], {"DEEPINFER_PREFIX_SECRET_FILE": str(secret)})):
            done = run(*ids, *more, environment=environment)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("0123456789abcdef", done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
