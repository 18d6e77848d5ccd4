"""A server of the demo model on a free port of the loopback address, and its /metrics."""

import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

SAMPLE = re.compile(r'^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')


class Server:
    def __init__(self, program, model, *options):
        self.process = subprocess.Popen(
            [program, "serve", "--model", model, "--host", "127.0.0.1", "--port", "0", "--served-model-name", "demo",
             "--max-model-len", "2048", "--threads", "1", *options], stderr=subprocess.PIPE, text=True)
        self.url = self.process.stderr.readline().split()[3].rstrip(",")
        while self.get("/ready")[0] != 200:
            if self.process.poll() is not None:
                raise RuntimeError(self.process.stderr.read())
            time.sleep(0.05)

    def get(self, path, body=None):
        request = urllib.request.Request(self.url + path, data=body)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def stop(self):
        """The exit code, and how long it took."""
        begin = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        self.process.stderr.close()
        return code, time.monotonic() - begin


class Scrape:
    """A page in Prometheus' text format: kinds by family, label sets by sample name."""

    def __init__(self, text):
        self.kinds, self.helps, self.samples = {}, {}, {}
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, family, kind = line.split()
                self.kinds[family] = kind
            elif line.startswith("# HELP "):
                _, _, family, words = line.split(" ", 3)
                self.helps[family] = words
            else:
                match = SAMPLE.match(line)
                if not match:
                    raise ValueError(f"no sample: {line}")
                self.samples.setdefault(match[1], []).append(dict(LABEL.findall(match[2] or "")))

    def family(self, sample):
        """The family that a sample's name belongs to; None: of no family."""
        if sample in self.kinds and self.kinds[sample] != "histogram":
            return sample
        base = re.sub(r"_(bucket|sum|count)$", "", sample)
        return base if base != sample and self.kinds.get(base) == "histogram" else None
