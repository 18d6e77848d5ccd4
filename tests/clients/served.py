"""The real program, serving on a free port for the tests of this folder."""

import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request


class Server:
    """With `tls`, a context that trusts its certificate, it is asked over HTTPS."""

    def __init__(self, program, model, keys, *options, tls=None):
        self.tls = tls
        self.keys = tempfile.NamedTemporaryFile("w", suffix=".keys")
        self.keys.write("".join(line + "\n" for line in keys))
        self.keys.flush()
        self.process = subprocess.Popen(
            [program, "serve", "--model", model, "--port", "0", "--api-key-file", self.keys.name,
             "--max-model-len", "8192", *options],
            stderr=subprocess.PIPE, text=True)
        line = self.process.stderr.readline()
        self.url = line.split()[3].rstrip(",")
        while self.get("/ready")[0] != 200:
            if self.process.poll() is not None:
                raise RuntimeError(self.process.stderr.read())
            time.sleep(0.05)

    def get(self, path):
        try:
            with urllib.request.urlopen(self.url + path, context=self.tls) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name):
        return sum(float(line.split()[-1]) for line in self.get("/metrics")[1].splitlines()
                   if line.startswith(name + "{"))

    def idle(self):
        """Whether no request and no block is left, which takes a moment after the last answer."""
        for _ in range(200):
            busy = self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting")
            if busy == 0 and self.metric("vllm:kv_cache_usage_perc") == 0:
                return True
            time.sleep(0.05)
        return False

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        self.process.stderr.close()
        self.keys.close()
        return code
