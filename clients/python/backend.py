"""Builds the package's wheel and sdist, by PEP 517 and PEP 660, with the standard library alone."""

import base64
import hashlib
import io
import os
import pathlib
import re
import tarfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
VERSION = re.search(r'^__version__ = "(.+)"$', (HERE / "drainer" / "__init__.py").read_text(), re.M)[1]
STEM = f"agent_drainer-{VERSION}"
INFO = f"{STEM}.dist-info"
WHEEL = f"{STEM}-py3-none-any.whl"
METADATA = f"""Metadata-Version: 2.1
Name: agent-drainer
Version: {VERSION}
Summary: Commits what an agent's tool would do as an intent, in the agent's own transaction
License: Apache-2.0
Requires-Python: >=3.10
Classifier: Typing :: Typed
Classifier: Programming Language :: Python :: 3
Description-Content-Type: text/markdown

{(HERE / "README.md").read_text(encoding="utf-8")}"""


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return _wheel(wheel_directory, [(f"drainer/{path.name}", path.read_bytes()) for path in _modules()])


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return _wheel(wheel_directory, [("agent_drainer.pth", f"{HERE}\n".encode())])


def build_sdist(sdist_directory, config_settings=None):
    name = f"{STEM}.tar.gz"
    with tarfile.open(os.path.join(sdist_directory, name), "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for file in [HERE / "pyproject.toml", HERE / "backend.py", HERE / "README.md", *_modules()]:
            archive.add(file, f"{STEM}/{file.relative_to(HERE)}")
        member = tarfile.TarInfo(f"{STEM}/PKG-INFO")
        member.size = len(METADATA.encode())
        archive.addfile(member, io.BytesIO(METADATA.encode()))
    return name


def _modules():
    return sorted([*HERE.glob("drainer/*.py"), HERE / "drainer" / "py.typed"])


def _wheel(folder, files):
    files = [
        *files,
        (f"{INFO}/METADATA", METADATA.encode()),
        (f"{INFO}/WHEEL", b"Wheel-Version: 1.0\nGenerator: agent-drainer\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
    ]
    record = f"{INFO}/RECORD"
    lines = [f"{name},sha256={_digest(text)},{len(text)}\n" for name, text in files] + [f"{record},,\n"]
    with zipfile.ZipFile(os.path.join(folder, WHEEL), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in [*files, (record, "".join(lines).encode())]:
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # the same bytes on every build
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, text)
    return WHEEL


def _digest(text):
    return base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()
