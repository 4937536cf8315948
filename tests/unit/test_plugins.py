"""Plugins: listed with what went wrong, never fatal."""

from importlib.metadata import EntryPoint

import pytest

from dtprof import plugins, protocols


@pytest.fixture
def announce(monkeypatch):
    """Announce entry points for one test: name -> target."""

    def announce_(**targets):
        found = tuple(EntryPoint(name, target, "dtprof.collectors") for name, target in targets.items())
        monkeypatch.setattr(plugins, "announced", lambda group: found if group == "collectors" else ())

    return announce_


def test_our_own_collectors_are_announced_without_being_loaded():
    names = [entry.name for entry in plugins.announced("collectors")]
    assert names == sorted(names)
    assert {"ddp", "host", "torch_profiler"} <= set(names)


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("no.such.module:X", "ModuleNotFoundError"),
        ("json:no_such_name", "AttributeError"),
        ("tests.unit.broken_plugin:X", "ZeroDivisionError"),
    ],
)
def test_a_broken_plugin_is_listed_with_its_error(announce, target, error):
    announce(broken=target, good="json:JSONDecoder")
    broken, good = plugins.loaded("collectors")
    assert broken.value is None
    assert broken.error.startswith(error)
    assert broken.target == target
    assert good.error == ""
    assert good.value.__name__ == "JSONDecoder"


def test_find_loads_one(announce):
    announce(a="json:loads", b="no.such.module:X")
    assert plugins.find("collectors", "a").error == ""
    assert plugins.find("collectors", "b").error
    assert plugins.find("collectors", "c") is None
    assert plugins.find("rules", "a") is None


def test_every_group_has_a_protocol():
    singular = {"analyses": "Analysis"}
    for group in plugins.GROUPS:
        assert hasattr(protocols, singular.get(group, group[:-1].capitalize()))
