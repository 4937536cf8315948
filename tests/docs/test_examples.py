"""The examples of docs/extending.md work as they stand.

In each section, a Python block that begins with ``# name.py`` is that file; a toml block is the plugin's pyproject.toml,
whose entry points are announced to Python as an installed distribution's would be; every other Python block is run, in
the folder with those files. Each section must run something that asserts.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"
BLOCK = re.compile(r"^```(python|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sections():
    """Title and blocks of every section that has blocks."""
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        blocks = BLOCK.findall(section)
        if blocks:
            yield pytest.param(blocks, id=section.partition("\n")[0])


def announce(folder, pyproject):
    """What installing a plugin leaves for Python to find: its name and its entry points."""
    project = tomllib.loads(pyproject)["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [line for group, points in groups for line in (f"[{group}]", *(f"{n} = {t}" for n, t in points.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("blocks", list(sections()))
def test_example(blocks, tmp_path):
    scripts = []
    for language, text in blocks:
        name = re.match(r"# (\w+\.py)\n", text)
        if language == "toml":
            announce(tmp_path, text)
        elif name:
            (tmp_path / name[1]).write_text(text)
        else:
            scripts.append(text)
    script = "\n".join(scripts)
    assert "assert " in script
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


class Anything:
    """Stands for the model, the loss and the optimizer of the README."""

    def __call__(self, *_):
        return self

    def __getattr__(self, name):
        return self


def test_the_readme_measures_and_reads_back(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (PAGE.parents[1] / "README.md").read_text()
    measure, read = (block for language, block in BLOCK.findall(text) if language == "python")
    exec(measure, {"batches": range(3), "model": Anything(), "optimizer": Anything()})
    exec(read, {})
    assert "0 ns of kernels" in capsys.readouterr().out
