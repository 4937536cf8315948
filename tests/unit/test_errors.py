"""The exception tree: every error has an exit code, and says its remedy."""

import pytest

from dtprof import errors


def subclasses(cls):
    for sub in cls.__subclasses__():
        yield sub
        yield from subclasses(sub)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InputError, 3),
        (errors.NotATrace, 3),
        (errors.DamagedRun, 3),
        (errors.MissingExtra, 4),
        (errors.PluginError, 3),
    ],
)
def test_exit_codes(error, code):
    assert error.exit_code == code
    assert issubclass(error, errors.DtprofError)


def test_message_and_hint_make_one_line():
    assert str(errors.InputError("a.json: no events", "give a trace")) == "a.json: no events; give a trace"
    assert str(errors.InputError("a.json: no events")) == "a.json: no events"


def test_the_tree_in_the_docstring_is_the_real_one():
    own = [c for c in subclasses(errors.DtprofError) if c.__module__ == "dtprof.errors"]
    assert len(own) == 5
    for cls in own:
        line = next(line for line in errors.__doc__.splitlines() if f" {cls.__name__} " in line)
        if "exit" in line:
            assert f"exit {cls.exit_code}" in line
