"""The files of deploy/ against the program and the tree: flags, paths, probes, times, packages.

usage: files_test.py DEEPINFER PROJECT_FOLDER
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from scrape import Server

try:
    import yaml
except ImportError:  # Debian's package (clang-tidy-16 depends on it) is not in the path of another Python
    sys.path.append("/usr/lib/python3/dist-packages")
    import yaml

PROGRAM, PROJECT = Path(sys.argv[1]), Path(sys.argv[2])
UNIT = PROJECT / "deploy/systemd/deepinfer.service"
DOCKERFILE = PROJECT / "deploy/docker/Dockerfile"
MANIFESTS = PROJECT / "deploy/kubernetes/deepinfer.yaml"
CONNECTIONS = 20_000  # the default of --max-connections


def joined(text):
    """Lines, those that end with a backslash put together, comments left out."""
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return kept.replace("\\\n", " ").splitlines()


def unit_settings():
    """(key, value) of every setting of the unit, continued lines put together."""
    return [tuple(line.split("=", 1)) for line in joined(UNIT.read_text()) if "=" in line]


def setting(key):
    values = [value for name, value in unit_settings() if name == key]
    assert len(values) == 1, f"{key}: {values}"
    return values[0]


def instructions():
    """(instruction, arguments) of the Dockerfile."""
    return [tuple(line.split(maxsplit=1)) for line in joined(DOCKERFILE.read_text()) if line.strip()]


def instruction(name):
    found = [arguments for one, arguments in instructions() if one == name]
    assert len(found) == 1, f"{name}: {found}"
    return found[0]


def manifests():
    documents = list(yaml.safe_load_all(MANIFESTS.read_text()))
    return {document["kind"]: document for document in documents}


def container():
    containers = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert len(containers) == 1
    return containers[0]


def option(arguments, flag):
    return arguments[arguments.index(flag) + 1]


def help_of(*command):
    return subprocess.run([PROGRAM, *command, "--help"], capture_output=True, text=True, check=True).stdout


class Commands(unittest.TestCase):
    """Every command line: the subcommand exists, and so does each of its flags."""

    def check(self, arguments):
        self.assertEqual(arguments[0], "serve")
        known = set(re.findall(r"^ +(?:-\w,)?(--[a-z-]+)", help_of("serve"), re.M))
        self.assertIn("--port", known)
        flags = [word for word in arguments if word.startswith("-")]
        self.assertGreaterEqual(len(flags), 3)
        for flag in flags:
            self.assertIn(flag, known)

    def test_unit(self):
        program, *arguments = shlex.split(setting("ExecStart"))
        self.assertEqual(Path(program).name, "deepinfer")
        self.check(arguments)
        self.assertEqual(option(arguments, "--host"), "127.0.0.1")

    def test_image(self):
        self.assertEqual(json.loads(instruction("ENTRYPOINT")), ["deepinfer"])
        self.check(json.loads(instruction("CMD")))

    def test_examples_of_the_image(self):
        lines = "\n".join(line[1:] for line in DOCKERFILE.read_text().splitlines() if line.startswith("#"))
        commands = re.findall(r"deepinfer (serve .*)", lines.replace("\\\n", " "))
        self.assertEqual(len(commands), 1)
        self.check(commands[0].split())

    def test_deployment(self):
        self.check(container()["args"])


class Unit(unittest.TestCase):
    def test_times_and_limits(self):
        arguments = shlex.split(setting("ExecStart"))
        self.assertEqual(setting("KillSignal"), "SIGTERM")
        self.assertGreater(int(setting("TimeoutStopSec")), int(option(arguments, "--drain-seconds")))
        self.assertGreater(int(setting("LimitNOFILE")), CONNECTIONS)
        self.assertIn(f"--max-connections INT:POSITIVE={CONNECTIONS}", help_of("serve"))

    def test_keys_are_a_credential(self):
        name, _ = setting("LoadCredential").split(":")
        self.assertEqual(option(shlex.split(setting("ExecStart")), "--api-key-file"),
                         "${CREDENTIALS_DIRECTORY}/" + name)

    def test_systemd_accepts_it(self):
        tool = shutil.which("systemd-analyze")
        if tool is None:
            self.skipTest("systemd-analyze is not here: the unit is not verified")
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / UNIT.name
            copy.write_text(UNIT.read_text().replace(setting("ExecStart").split()[0], str(PROGRAM)))
            done = subprocess.run([tool, "verify", copy], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


class Image(unittest.TestCase):
    """There is no Docker engine where tests run: what can be known without building."""

    def test_sources_exist(self):
        copies = [arguments.split() for name, arguments in instructions() if name == "COPY"]
        self.assertGreater(len(copies), 4)
        for *sources, target in copies:
            if not sources[0].startswith("--from="):
                for source in sources:
                    self.assertTrue((PROJECT / source).exists(), source)
            else:
                self.assertEqual(sources, ["--from=build", "/src/build/deepinfer"])

    def test_what_configuring_reads_is_copied(self):
        copied = {word for name, arguments in instructions() if name == "COPY" for word in arguments.split()}
        program = (PROJECT / "apps/deepinfer/CMakeLists.txt").read_text()
        self.assertIn("deepinfer_bench", program)  # why bench is among them
        self.assertLessEqual({"build.sh", "CMakeLists.txt", "CMakePresets.json", "cmake", "engine", "apps", "bench"},
                             copied)

    def test_packages_are_those_of_the_build(self):
        build = (PROJECT / "build.sh").read_text()
        wanted = re.search(r"BUILD_PACKAGES=\((.*?)\)", build, re.S)[1].split()
        runs = [arguments for name, arguments in instructions() if name == "RUN"]
        installed = re.search(r"--no-install-recommends (.*?) &&", runs[0])[1].split()
        self.assertEqual(installed, wanted)
        self.assertEqual(runs[1:], ["./build.sh"])
        base = [arguments for name, arguments in instructions() if name == "FROM"]
        self.assertEqual(base, ["debian:12 AS build", "debian:12-slim"])

    def test_program_needs_no_package(self):
        libraries = subprocess.run(["ldd", PROGRAM], capture_output=True, text=True, check=True).stdout
        if "libasan" in libraries:
            self.skipTest("a build with sanitizers is not what an image holds")
        names = set(re.findall(r"(lib\w+)\.so", libraries))
        self.assertLessEqual(names, {"libc", "libm"})

    def test_user_and_port(self):
        user = int(instruction("USER").split(":")[0])
        self.assertGreater(user, 0)
        self.assertEqual(option(json.loads(instruction("CMD")), "--port"), instruction("EXPOSE"))
        self.assertEqual(instruction("STOPSIGNAL"), setting("KillSignal"))


class Manifests(unittest.TestCase):
    def test_names_fit(self):
        deployment, service = manifests()["Deployment"]["spec"], manifests()["Service"]["spec"]
        labels = deployment["template"]["metadata"]["labels"]
        self.assertEqual(deployment["selector"]["matchLabels"], labels)
        self.assertEqual(service["selector"], labels)
        ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
        self.assertIn(service["ports"][0]["targetPort"], ports)
        self.assertEqual(option(container()["args"], "--port"), str(ports["http"]))
        self.assertEqual(deployment["template"]["metadata"]["annotations"]["prometheus.io/port"], str(ports["http"]))
        for probe in ("livenessProbe", "readinessProbe"):
            self.assertIn(container()[probe]["httpGet"]["port"], ports)

    def test_paths_are_mounted(self):
        pod = manifests()["Deployment"]["spec"]["template"]["spec"]
        mounts = {mount["name"]: mount for mount in container()["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        self.assertEqual(set(mounts), set(volumes))
        self.assertTrue(all(mount["readOnly"] for mount in mounts.values()))
        arguments = container()["args"]
        self.assertEqual(option(arguments, "--model"), mounts["model"]["mountPath"])
        keys = Path(option(arguments, "--api-key-file"))
        self.assertEqual(str(keys.parent), mounts["keys"]["mountPath"])
        self.assertIn(f"--from-file={keys.name}=", MANIFESTS.read_text())
        self.assertIn(f"generic {volumes['keys']['secret']['secretName']} ", MANIFESTS.read_text())

    def test_time_to_drain(self):
        pod = manifests()["Deployment"]["spec"]["template"]["spec"]
        pause = int(container()["lifecycle"]["preStop"]["exec"]["command"][1])
        drain = int(option(container()["args"], "--drain-seconds"))
        self.assertGreater(pod["terminationGracePeriodSeconds"], pause + drain)

    def test_no_more_rights_than_needed(self):
        pod = manifests()["Deployment"]["spec"]["template"]["spec"]
        self.assertTrue(pod["securityContext"]["runAsNonRoot"])
        self.assertEqual(pod["securityContext"]["runAsUser"], int(instruction("USER").split(":")[0]))
        self.assertFalse(container()["securityContext"]["allowPrivilegeEscalation"])
        self.assertTrue(container()["securityContext"]["readOnlyRootFilesystem"])
        self.assertEqual(container()["securityContext"]["capabilities"]["drop"], ["ALL"])
        self.assertEqual(container()["resources"]["requests"], container()["resources"]["limits"])


class Probes(unittest.TestCase):
    """Against a running server."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server(PROGRAM, PROJECT / "models/demo")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_paths_answer(self):
        annotations = manifests()["Deployment"]["spec"]["template"]["metadata"]["annotations"]
        paths = [container()[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")]
        self.assertEqual(paths, ["/health", "/ready"])
        for path in [*paths, annotations["prometheus.io/path"]]:
            self.assertEqual(self.server.get(path)[0], 200, path)
        self.assertIn("# TYPE ", self.server.get(annotations["prometheus.io/path"])[1])

    def test_health_check_of_the_image(self):
        command = json.loads(instruction("HEALTHCHECK").split("CMD", 1)[1])
        port = self.server.url.rsplit(":", 1)[1]
        self.assertIn("/127.0.0.1/8000", command[-1])

        def check(replaced):
            words = [*command[:-1], replaced(command[-1].replace("/127.0.0.1/8000", f"/127.0.0.1/{port}"))]
            return subprocess.run(words, capture_output=True, timeout=10).returncode

        self.assertEqual(check(lambda words: words), 0)
        self.assertNotEqual(check(lambda words: words.replace("/health", "/nothing")), 0)
        self.assertNotEqual(check(lambda words: words.replace(f"/{port}", "/1")), 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
