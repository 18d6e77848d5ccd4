"""Trains the demo model on one GPU, in legs: a leg continues from the checkpoint of the one before.

    train.py --data CORPUS_FOLDER --tokenizer MODEL_FOLDER --work FOLDER --minutes 9 [--begin 0 --end 1]

The schedule is a function of the share of a leg's time that is over (from --begin to --end), so that a slower machine
trains less but ends where it should. Writes WORK/state.pt (to continue), WORK/log.jsonl and, at the end of a leg,
WORK/export (the release files) and an evaluation.
"""

import argparse
import json
import math
import multiprocessing as mp
import pickle
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import checkpoint
import model as M
import ops
import render
import tokenizer
from config import Config
from data import evalset, mix

PHASES = [  # (share of the time from which it holds, what is on)
    (0.0, M.Mode()),
    (0.28, M.Mode(index_loss=True)),
    (0.68, M.Mode(index_loss=True, select=True)),
    (0.78, M.Mode(index_loss=True, select=True, quant_kv=True, quant_weights=True)),
]
FINAL = M.Mode(select=True, quant_kv=True, quant_weights=True)
WARMUP, DECAY_FROM = 150, 0.45
MUON_LR, ADAM_LR, INDEX_WEIGHT = 2.5e-3, 1.8e-3, 0.3


class Optimiser:
    """Muon for matrices, AdamW for the rest, over stacked masters; every number that changes is a device tensor, so that a
    step can be a captured graph."""

    def __init__(self, model):
        self.m = model
        dev = model.device
        self.first = {k: torch.zeros_like(v) for k, v in model.P.items()}
        self.second = {k: torch.zeros_like(v) for k, v in model.P.items() if model.spec[k][2] != "muon"}
        # learning rate factor, 1 / (1 - b1^t), 1 / (1 - b2^t)
        self.now = torch.ones(3, device=dev)

    def set(self, factor, step):
        t = torch.tensor([factor, 1 / (1 - 0.9 ** (step + 1)), 1 / (1 - 0.95 ** (step + 1))])
        self.now.copy_(t)

    @torch.no_grad()
    def step(self, grads):
        for name, w in self.m.P.items():
            g = grads.get(name)
            if g is None:
                continue
            g = g.float()
            kind = self.m.spec[name][2]
            if kind == "muon":
                m = self.first[name]
                m.lerp_(g, 0.05)
                u = orthogonal(g.lerp(m, 0.95).flatten(0, -3).to(torch.bfloat16)).view(w.shape)
                scale = 0.2 * math.sqrt(max(w.shape[-2:]))
                w.mul_(1 - 0.1 * MUON_LR * self.now[0]).sub_(u.float() * (MUON_LR * scale * self.now[0]))
            else:
                m, v = self.first[name], self.second[name]
                m.lerp_(g, 0.1)
                v.lerp_(g.square(), 0.05)
                lr = ADAM_LR * {"adam": 1.0, "adam_slow": 0.3, "adam_fast": 3.0}[kind]
                u = (m * self.now[1]) / ((v * self.now[2]).sqrt() + 1e-9)
                w.sub_(u * (lr * self.now[0]))


def orthogonal(g, steps=5):
    """Newton-Schulz iteration of Muon on a stack of matrices."""
    tall = g.shape[-2] > g.shape[-1]
    x = g.transpose(-1, -2) if tall else g
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.transpose(-1, -2)
        b = torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, b, x, beta=3.4445, alpha=1.0)
    return x.transpose(-1, -2) if tall else x


def everything(model, optimiser):
    """All tensors that a step changes."""
    return [*model.P.values(), *optimiser.first.values(), *optimiser.second.values(), model.bias]


def save(model, optimiser, path, done, step, leg):
    """What a later leg continues from; also written whenever a phase ends, so that a cut leg is not lost whole."""
    new = path.with_suffix(".new")
    torch.save({"done": done, "step": step, "leg": leg, "tensors": everything(model, optimiser)}, new)
    new.replace(path)


class Step:
    """One training step for one batch shape and mode, captured as a graph on a GPU."""

    def __init__(self, model, optimiser, tokens, length, mode, pool=None, graph=True):
        dev = model.device
        self.m, self.o, self.mode = model, optimiser, mode
        self.ids = torch.zeros(tokens, dtype=torch.int32, device=dev)
        self.target = torch.zeros(tokens, dtype=torch.int32, device=dev)
        self.weight = torch.zeros(tokens, device=dev)
        self.start = torch.zeros(tokens, dtype=torch.int32, device=dev)
        self.base = torch.arange(tokens, dtype=torch.int32, device=dev) % length
        self.pos = torch.zeros(tokens, dtype=torch.int32, device=dev)
        self.out = torch.zeros(4, device=dev)
        self.lay = ops.Layout(tokens // length, length, self.pos, self.start)
        self.skipped = torch.zeros((), device=dev)
        self.graph = None
        self.use_graph, self.pool = graph and dev.type == "cuda", pool

    def load(self, batch):
        dev = self.m.device
        for name in ("ids", "target", "weight", "start"):
            t = torch.from_numpy(batch[name])
            getattr(self, name).copy_(t.pin_memory() if dev.type == "cuda" else t, non_blocking=True)
        torch.sub(self.base, self.start, out=self.pos)

    def _probe(self):
        """One token in 16 of each row for the index loss, those that answer first: there the selection matters."""
        noise = (self.ids * 40503 + self.base * 30011) % 1024 / 1024
        rank = (self.weight == 1.0).float() + noise
        return rank.view(self.lay.b, self.lay.s).topk(self.lay.s // 16, dim=1).indices

    def _run(self):
        m, mode = self.m, self.mode
        w = m.working(mode)
        x, index_loss, counts = m.forward(w, self.ids, self.lay, mode, self._probe() if mode.index_loss else None)
        loss, each, right = ops.head_loss(x, w["head"], self.target, self.weight)
        total = loss + INDEX_WEIGHT * index_loss if mode.index_loss else loss
        grads = torch.autograd.grad(total, list(w.values()), allow_unused=True)
        with torch.no_grad():
            # A step whose gradients are not finite changes nothing but momentum.
            sane = torch.isfinite(sum(g.float().sum() for g in grads if g is not None))
            grads = [None if g is None else torch.where(sane, g, torch.zeros_like(g)) for g in grads]
            self.skipped.add_(~sane)
            answer = self.weight == 1.0
            self.out.copy_(torch.stack([loss, index_loss.detach() if mode.index_loss else loss * 0,
                                        (each * answer).sum() / answer.sum().clamp(min=1),
                                        (right * answer).sum() / answer.sum().clamp(min=1)]))
            self.o.step(dict(zip(w, grads)))
            share = counts.float()
            m.bias.add_(torch.sign(share.mean(1, keepdim=True) - share) * (2e-3 * self.o.now[0]))

    def capture(self):
        """Two runs to compile and settle, then the graph; what they changed is put back."""
        keep = self.o.now.clone()
        states = [t.clone() for t in everything(self.m, self.o)]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._run()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=self.pool):
            self._run()
        for t, s in zip(everything(self.m, self.o), states):
            t.copy_(s)
        self.o.now.copy_(keep)

    def __call__(self, batch):
        self.load(batch)
        if not self.use_graph:
            self._run()
            return
        if self.graph is None:
            self.capture()
        self.graph.replay()


@torch.no_grad()
def evaluate(model, tok, encode, items, mode, length=4096, rows=8):
    """Counts and losses of assistant turns, one pass over packed items. Returns (Table, nats per byte by set)."""
    w = model.working(mode)
    pad = model.c.engram_pad_token_id
    opener = encode(render.calls([{"name": "a", "arguments": {}}]))[0][0]
    table, loss, size = evalset.Table(), {}, {}
    todo = sorted(items, key=lambda i: -len(i["ids"]))
    while todo:
        take, free, used = [], [length] * rows, []
        for item in todo:
            need = -(-len(item["ids"]) // mix.ALIGN) * mix.ALIGN
            k = next((k for k in range(rows) if free[k] >= need), None)
            if k is not None:
                take.append((item, k, length - free[k]))
                free[k] -= need
                used.append(id(item))
        used = set(used)
        todo = [i for i in todo if id(i) not in used]
        ids = np.full((rows, length), pad, np.int32)
        start = np.zeros((rows, length), np.int32)
        for item, k, at in take:
            ids[k, at : at + len(item["ids"])] = item["ids"]
            start[k, at : at + -(-len(item["ids"]) // mix.ALIGN) * mix.ALIGN] = at
        for k in range(rows):
            start[k, length - free[k] :] = length - free[k]
        dev = model.device
        ids_t, start_t = (torch.from_numpy(a.ravel()).to(dev) for a in (ids, start))
        pos = (torch.arange(rows * length, dtype=torch.int32, device=dev) % length - start_t).contiguous()
        lay = ops.Layout(rows, length, pos, start_t)
        x, _, _ = model.forward(w, ids_t, lay, mode)
        logits = x @ w["head"].t()
        best = logits.argmax(-1).cpu().numpy()
        nll = torch.nn.functional.cross_entropy(logits.float(), torch.cat([ids_t[1:], ids_t[:1]]).long(), reduction="none").cpu().numpy()
        for item, k, at in take:
            name = item["set"]
            for s in item["spans"]:
                a, b = k * length + at + s["start"] - 1, k * length + at + s["end"] - 1
                evalset.judge(table, name, s | {"opener": opener}, item["ids"], best[a:b])
                loss[name] = loss.get(name, 0.0) + float(nll[a:b].sum())
                text = tok.decode(item["ids"][s["start"] : s["end"] - 1], skip_special_tokens=False)
                size[name] = size.get(name, 0) + len(text.encode())
    return table, {k: loss[k] / max(size[k], 1) for k in loss}


def export(model, tok, tokenizer_folder, out):
    """The release files of the model as it is now."""
    payload = checkpoint.write(out, model.c, M.export_weights(model))
    (out / "config.json").write_text(json.dumps(model.c.to_json(), indent=2) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json", "engram_token_map.i32"):
        shutil.copy(Path(tokenizer_folder) / name, out / name)
    print(f"exported {payload} bytes of tensors", flush=True)


def phase(share):
    return [m for at, m in PHASES if share >= at][-1]


def factor(share, step):
    """Learning rate factor: linear warm-up, constant, linear decay to 2 %."""
    down = 1.0 if share < DECAY_FROM else max(0.02, 1 - 0.98 * (share - DECAY_FROM) / (1 - DECAY_FROM))
    return min(1.0, (step + 1) / WARMUP) * down


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True, help="folder of the corpora")
    p.add_argument("--tokenizer", required=True, help="folder with tokenizer.json and engram_token_map.i32")
    p.add_argument("--work", required=True, help="folder of state, log and export")
    p.add_argument("--minutes", type=float, required=True, help="training time of this leg")
    p.add_argument("--begin", type=float, default=0.0, help="share of the schedule at the leg's start")
    p.add_argument("--end", type=float, default=1.0, help="share of the schedule at the leg's end")
    p.add_argument("--init", help="release folder to start from when there is no state to continue")
    p.add_argument("--tokens", type=int, default=32768, help="tokens a step")
    p.add_argument("--workers", type=int, default=13, help="data processes")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--no-graph", action="store_true", help="run steps eagerly")
    p.add_argument("--evaluate", type=float, default=1.0, help="share of the evaluation items (0: none)")
    a = p.parse_args()
    began = time.time()
    dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if dev.type == "cpu":
        ops.use_kernels = False
    work = Path(a.work)
    work.mkdir(parents=True, exist_ok=True)
    state_file = work / "state.pt"
    state = torch.load(state_file, map_location=dev) if state_file.exists() else None
    done = state["done"] if state else 0.0
    step = state["step"] if state else 0
    context = mp.get_context("spawn")
    queue = context.Queue(maxsize=64)
    leg = state["leg"] + 1 if state else 0
    workers = [context.Process(target=mix.worker, args=(a.data, a.tokenizer, a.seed * 100_000 + leg * 1000 + k, a.tokens, queue, 4096), daemon=True)
               for k in range(a.workers)]
    for w in workers:
        w.start()
    items_file = work / "items.pkl"
    maker = context.Process(target=evalset.build_all, args=(a.data, a.tokenizer, a.evaluate, items_file))
    if a.evaluate > 0:
        maker.start()
    tok = tokenizer.load(a.tokenizer)
    encode = render.Encoder(tok)
    token_map = np.fromfile(Path(a.tokenizer) / "engram_token_map.i32", "<i4")
    c = Config(vocab_size=tok.get_vocab_size(), image_token_id=tok.token_to_id(tokenizer.IMAGE), engram_compressed_vocab_size=int(token_map.max()) + 1)
    model = M.Model(c, token_map, dev, seed=a.seed)
    optimiser = Optimiser(model)
    if not state and a.init:
        M.load_weights(model, checkpoint.read(a.init, c))
    if state:
        for t, s in zip(everything(model, optimiser), state["tensors"]):
            t.copy_(s)
        del state
    log = open(work / "log.jsonl", "a")
    pool = torch.cuda.graph_pool_handle() if dev.type == "cuda" else None
    steps, mode_now = {}, None
    print(f"ready after {time.time() - began:.1f} s; leg {leg}, {done:.2f} min done, {sum(v.numel() for v in model.P.values()) / 1e6:.1f} M parameters", flush=True)
    waited, seen = 0.0, 0
    t0 = last = time.time()
    compiling = 0.0
    while True:
        over = (time.time() - t0) / 60 / a.minutes
        if over >= 1:
            break
        share = a.begin + (a.end - a.begin) * over
        mode = phase(share)
        if mode is not mode_now:
            if mode_now is not None:
                save(model, optimiser, state_file, done + (time.time() - t0) / 60, step, leg)
            steps, mode_now = {}, mode
            if dev.type == "cuda":
                torch.cuda.empty_cache()
                pool = torch.cuda.graph_pool_handle()
        t1 = time.time()
        batch = queue.get()
        waited += time.time() - t1
        optimiser.set(factor(share, step), step)
        key = batch["length"]
        if key not in steps:
            if dev.type == "cuda":
                torch.cuda.synchronize()
            t1 = time.time()
            # Half of the last phase also rounds activations: engines differ there.
            own = replace(mode, quant_acts=mode.quant_weights and key == 4096)
            steps[key] = Step(model, optimiser, a.tokens, key, own, pool, not a.no_graph)
            steps[key](batch)
            if dev.type == "cuda":
                torch.cuda.synchronize()
            compiling += time.time() - t1
            print(f"length {key}, phase {PHASES.index(next(x for x in PHASES if x[1] is mode))}: prepared in {time.time() - t1:.1f} s", flush=True)
        else:
            steps[key](batch)
        step += 1
        seen += a.tokens
        if step % 50 == 0 or dev.type == "cpu":
            values = [round(v, 4) for v in steps[key].out.tolist()]
            now = time.time()
            rate = 50 * a.tokens / (now - last)
            last = now
            line = {"step": step, "share": round(share, 4), "loss": values[0], "index": values[1], "answer": values[2], "right": values[3], "tok_s": round(rate), "waited": round(waited, 1), "skipped": int(steps[key].skipped)}
            log.write(json.dumps(line) + "\n")
            log.flush()
            if step % 250 == 0 or step <= 100 or not all(map(math.isfinite, values)):
                print(line, flush=True)
            if not math.isfinite(values[0]):
                sys.exit("the loss is not finite")
    if dev.type == "cuda":
        torch.cuda.synchronize()
    done += (time.time() - t0) / 60
    for w in workers:
        w.kill()
    print(f"trained {seen / 1e6:.1f} M tokens in {time.time() - t0:.0f} s ({compiling:.0f} s of it preparing), waited {waited:.1f} s for data; {done:.2f} min in all, peak memory {torch.cuda.max_memory_allocated() / 1e9 if dev.type == 'cuda' else 0:.1f} GB", flush=True)
    save(model, optimiser, state_file, done, step, leg)
    export(model, tok, a.tokenizer, work / "export")
    if a.evaluate > 0:
        steps = {}
        maker.join()
        items = pickle.loads(items_file.read_bytes())
        print(f"{len(items)} evaluation documents", flush=True)
        runs = {"all quantised": FINAL, "not quantised": M.Mode(select=True)}
        for title, mode in runs.items():
            table, per_byte = evaluate(model, tok, encode, items, mode)
            print(f"--- {title}", *table.lines(), *(f"nats per byte {k}: {v:.4f}" for k, v in per_byte.items() if k.startswith("sgd")), sep="\n", flush=True)
    print(f"all done after {time.time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
