"""The package is installed as its readers install it, and its types hold."""

import os
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import unittest
import zipfile
from pathlib import Path

import world

PACKAGE = Path(__file__).resolve().parents[1]
OFFLINE = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))} | {
    "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9",
}


def run(*command, cwd=None):
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=OFFLINE, text=True, capture_output=True)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.stdout}{done.stderr}")
    return done.stdout


class TestInstall(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_pip_install_with_build_isolation_and_without_a_network(self):
        if lacking := world.missing(("venv", "ensurepip")):
            self.skipTest(f"{lacking} is not installed; install Debian's python3-venv")
        run(sys.executable, "-m", "venv", self.folder / "venv")
        self.python = self.folder / "venv" / "bin" / "python"
        run(self.python, "-m", "pip", "install", PACKAGE)
        out = run(self.python, "-c", "import drainer, pathlib; print(drainer.__version__, pathlib.Path(drainer.__file__).with_name('py.typed').exists())", cwd="/")
        self.assertEqual(out, "0.1.0 True\n")
        self.assertIn("agent-drainer", run(self.python, "-m", "pip", "list"))
        run(self.python, "-m", "pip", "check")
        run(self.python, "-m", "pip", "uninstall", "-y", "agent-drainer")
        self.assertEqual(list(self.folder.rglob("drainer")), [])
        run(self.python, "-m", "pip", "install", "-e", PACKAGE)
        self.assertEqual(run(self.python, "-c", "import drainer; print(drainer.__file__)", cwd="/").strip(), str(PACKAGE / "drainer" / "__init__.py"))

    def test_the_sdist_builds_the_same_wheel(self):
        build = "import sys; sys.path.insert(0, '.'); import backend; backend.build_wheel(sys.argv[1]); backend.build_sdist(sys.argv[1])"
        (self.folder / "one").mkdir()
        run(sys.executable, "-c", build, self.folder / "one", cwd=PACKAGE)
        with tarfile.open(next((self.folder / "one").glob("*.tar.gz"))) as archive:
            archive.extractall(self.folder / "unpacked")
        (self.folder / "two").mkdir()
        run(sys.executable, "-c", build, self.folder / "two", cwd=next((self.folder / "unpacked").iterdir()))
        one, two = (next((self.folder / name).glob("*.whl")) for name in ("one", "two"))
        self.assertEqual(one.read_bytes(), two.read_bytes())
        self.assertEqual([name for name in zipfile.ZipFile(one).namelist() if "test" in name], [])


class TestTypes(unittest.TestCase):
    def test_mypy_strict(self):
        if lacking := world.missing(("mypy",)):
            self.skipTest(f"{lacking} is not installed; install Debian's mypy")
        program = textwrap.dedent("""
            from collections.abc import Awaitable
            from drainer import Completed, Intent, Outbox, Pending
            import psycopg

            def charge(conn: "psycopg.Connection[tuple[int]]") -> Intent:
                return Outbox().enqueue(conn, run="r", step="s", tool="p/o", scope="b", payload={})

            async def charge_async(conn: "psycopg.AsyncConnection[tuple[int]]") -> Completed | Pending:
                intent = await Outbox().enqueue(conn, run="r", step="s", tool="p/o", scope="b", payload={})
                return await Outbox().result("dsn", intent, timeout=1)
        """)
        with tempfile.TemporaryDirectory() as cache:
            run(sys.executable, "-m", "mypy", "--cache-dir", cache, "drainer", cwd=PACKAGE)
            if not world.missing(("psycopg",)):
                run(sys.executable, "-m", "mypy", "--cache-dir", cache, "--strict", "-c", program, cwd=PACKAGE)


if __name__ == "__main__":
    unittest.main()
