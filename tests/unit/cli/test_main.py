import json
import os
import subprocess
import sys

import pytest

from dtprof import cli, plugins
from dtprof.cli import parser
from dtprof.errors import InputError, MissingExtra

PYTHON = [sys.executable, "-m", "dtprof"]


def run(capsys, *words):
    code = cli.main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def process(*words, **options):
    return subprocess.run([*PYTHON, *words], capture_output=True, text=True, timeout=120, check=False, **options)


class Verb:
    """A command whose behaviour a test chooses."""

    name, summary = "verb", "For tests."
    action = staticmethod(lambda args: 0)

    def configure(self, parser):
        parser.add_argument("--number", type=int)

    def run(self, args):
        return type(self).action(args)


@pytest.fixture
def verb(monkeypatch):
    def install(action):
        kind = type("Chosen", (Verb,), {"action": staticmethod(action)})
        monkeypatch.setattr(parser, "find_command", lambda name: kind())

    return install


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no verb given; try dtprof report PATH"),
        (["reprot", "x"], "unknown verb 'reprot'; did you mean report?"),
        (["xyzzy"], "unknown verb 'xyzzy'; verbs are"),
        (["--nonsense"], "unknown option --nonsense before the verb"),
        (["--debug"], "no verb given"),
        (["report"], "required: PATH; see dtprof report --help"),
        (["report", "a", "--fail-on", "terrible"], "invalid choice: 'terrible'"),
        (["report", "a", "--nonsense"], "unrecognized arguments: --nonsense; see dtprof report --help"),
        (["report", "a", "--html"], "argument --html: expected one argument"),
        (["report", "a", "b"], "unrecognized arguments: b"),
        (["plugins", "x"], "unrecognized arguments: x"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_3(capsys, words, says):
    code, out, err = run(capsys, *words)
    assert code == 3
    assert out == ""
    assert err.startswith("dtprof: ")
    assert err.count("\n") == 1
    assert says in err


def test_abbreviated_options_are_refused(capsys):
    assert run(capsys, "report", "x", "--fail", "high")[0] == 3


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_lists_every_verb(capsys, word):
    code, out, err = run(capsys, word)
    assert (code, err) == (0, "")
    for name in ("report", "plugins", *(e.name for e in plugins.announced("commands"))):
        assert f"\n  {name}" in out


@pytest.mark.parametrize("name", ["report", "plugins"])
def test_every_verb_has_help_and_json(capsys, name):
    code, out, _ = run(capsys, name, "--help")
    assert code == 0
    assert "--json" in out
    assert "--debug" in out


def test_help_loads_nothing_heavy_and_no_contributed_verb():
    check = (
        "import sys; from dtprof.cli import main; main(['--help']);"
        "heavy = {'torch', 'numpy', 'pyarrow', 'pandas', 'rich', 'dtprof_sample_jobs'} & set(sys.modules);"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_version(capsys):
    from dtprof import __version__

    assert run(capsys, "--version") == (0, f"dtprof {__version__}\n", "")


def test_python_m_works():
    done = process("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("dtprof ")
    assert process("nonsense").returncode == 3


def test_errors_map_to_their_exit_codes(capsys, verb):
    def wrong(args):
        raise InputError("trace.json: not JSON\nat byte 3", "give a torch.profiler trace")

    verb(wrong)
    code, out, err = run(capsys, "verb")
    assert (code, out) == (3, "")
    assert err == "dtprof: trace.json: not JSON at byte 3; give a torch.profiler trace\n"

    def lacking(args):
        raise MissingExtra("nvtx is not installed", "pip install 'dtprof[torch]'")

    verb(lacking)
    code, _, err = run(capsys, "verb")
    assert code == 4
    assert "pip install 'dtprof[torch]'" in err


def test_exit_codes_of_verbs_pass_through(capsys, verb):
    verb(lambda args: 17)
    assert run(capsys, "verb")[0] == 17


def test_faults_are_one_line_and_show_their_traceback_only_with_debug(capsys, verb):
    verb(lambda args: 1 / 0)
    code, _, err = run(capsys, "verb")
    assert code == 70
    assert err.count("\n") == 1
    assert "ZeroDivisionError" in err
    assert "please report it" in err
    for words in (["verb", "--debug"], ["--debug", "verb"]):
        code, _, err = run(capsys, *words)
        assert code == 70
        assert "Traceback" in err


def test_debug_of_a_child_command_is_not_ours(capsys, verb):
    def wrong(args):
        raise InputError("x", "y")

    verb(wrong)
    code, _, err = run(capsys, "verb", "--number", "1")
    assert (code, "Traceback" in err) == (3, False)


def test_interrupt_is_130(capsys, verb):
    def stop(args):
        raise KeyboardInterrupt

    verb(stop)
    assert run(capsys, "verb")[0] == 130


def test_reader_that_leaves_early_is_no_error():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*PYTHON, "plugins", "--json"], stdout=write, stderr=subprocess.PIPE, text=True, timeout=120, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_output_that_the_terminal_cannot_write_is_replaced():
    done = process("--help", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "usage: dtprof VERB ?" in done.stdout


def test_contributed_verbs_are_loaded_by_name_only(monkeypatch, capsys):
    loaded = []

    class Entry:
        def __init__(self, name, value):
            self.name, self.value, self.dist = name, value, None

        def load(self):
            loaded.append(self.name)
            if self.name == "broken":
                raise ImportError("no module named 'gone'")
            return Verb

    monkeypatch.setattr(parser, "announced", lambda group: (Entry("broken", "a:B"), Entry("verb", "c:D")))
    assert run(capsys, "--help")[0] == 0
    assert loaded == []
    assert run(capsys, "verb")[0] == 0
    assert loaded == ["verb"]
    code, _, err = run(capsys, "broken")
    assert code == 3
    assert "the verb broken" in err
    assert "see dtprof plugins" in err


def test_plugins_lists_what_is_there(capsys):
    code, out, _ = run(capsys, "plugins", "--json")
    assert code == 0
    rows = json.loads(out)["plugins"]
    names = {(r["group"], r["name"]) for r in rows}
    assert {("readers", "kineto"), ("analyses", "accounting"), ("commands", "report"), ("rules", "comm.waiting")} <= names
    assert all(r.keys() >= {"group", "name", "package", "version", "target", "error", "ok"} for r in rows)
    code, out, _ = run(capsys, "plugins")
    assert code == 0
    assert [group for group in plugins.GROUPS if f"{group}\n" in out] == list(plugins.GROUPS)


def test_broken_plugins_are_listed_with_their_error(monkeypatch, capsys):
    from dtprof.cli import plugins as verb

    broken = plugins.Plugin("collectors", "bad", "some-package", "1.0", "a:b", None, "ImportError: no module\nnamed gone")
    monkeypatch.setattr(verb, "loaded", lambda group: [broken] if group == "collectors" else [])
    code, out, _ = run(capsys, "plugins")
    assert code == 0
    assert "broken: ImportError: no module" in out
    _, out, _ = run(capsys, "plugins", "--json")
    row = next(r for r in json.loads(out)["plugins"] if r["name"] == "bad")
    assert (row["ok"], row["error"]) == (False, "ImportError: no module\nnamed gone")
