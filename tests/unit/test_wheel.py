"""The wheel holds every file of the four packages, and nothing else."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "dtprof": "dtprof",
    "dtprof_collectors": "collectors/dtprof_collectors",
    "dtprof_dashboards": "dashboards/dtprof_dashboards",
    "dtprof_sample_jobs": "sample_jobs/dtprof_sample_jobs",
}
BUILT = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info", ".*")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A clean copy of what a build needs, so that nothing built before can help."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for path in PACKAGES.values():
        shutil.copytree(ROOT / path, folder / path, ignore=BUILT)
    return folder


@pytest.fixture(scope="module")
def wheel(source):
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(source / "out"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (source / "out").glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


def wanted(source):
    """Every file of the four packages, by its name in a wheel."""
    for name, path in PACKAGES.items():
        for file in (source / path).rglob("*"):
            if file.is_file():
                yield f"{name}/{file.relative_to(source / path).as_posix()}"


def test_every_file_is_in_the_wheel(source, wheel):
    files = set(wanted(source))
    assert {f"{name}/{file}" for name in PACKAGES for file in ("__init__.py", "py.typed")} <= files
    assert files - wheel == set()


def test_nothing_else_is_in_the_wheel(source, wheel):
    info = {name for name in wheel if name.split("/")[0].endswith(".dist-info")}
    extra = wheel - info - set(wanted(source))
    assert {name for name in extra if not name.startswith("dtprof/ingest/kineto/_scan.")} == set()


def test_every_package_folder_is_a_package(source):
    for path in PACKAGES.values():
        for file in (source / path).rglob("*.py"):
            assert (file.parent / "__init__.py").exists(), file
