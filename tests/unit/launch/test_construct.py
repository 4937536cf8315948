import inspect

import pytest

from dtprof.edits import parse_edits
from dtprof.launch import construct
from dtprof.launch.seen import _layout
from dtprof.session import launched


class Wrapper:
    """As torch's constructors: what it was given, in ``given``."""

    def __init__(self, module, device_ids=None, bucket_cap_mb=None, bucket_cap_mb_list=None, static_graph=False):
        if bucket_cap_mb_list == [13]:
            raise RuntimeError("unlucky")
        self.given = (module, device_ids, bucket_cap_mb, bucket_cap_mb_list, static_graph)


class Loader:
    def __init__(self, dataset, batch_size=1, num_workers=0, prefetch_factor=None, persistent_workers=False, timeout=0):
        if num_workers == 0 and (prefetch_factor is not None or persistent_workers):
            raise ValueError("only with workers")
        self.given = (batch_size, num_workers, prefetch_factor, persistent_workers)


@pytest.fixture(autouse=True)
def facts(monkeypatch):
    found = {}
    monkeypatch.setattr(launched, "facts", found)
    return found


def changed(kind, texts, change=construct._replace):
    """``kind`` with its constructor under these edits."""
    made = construct._changed(kind.__init__, list(parse_edits(texts)), change, "DistributedDataParallel")
    return type(kind.__name__, (kind,), {"__init__": made})


def test_arguments_are_replaced_however_they_were_given(facts):
    kind = changed(Wrapper, ["ddp.bucket_cap_mb=50", "ddp.static_graph=true"])
    assert kind("m", None, 25).given == ("m", None, 50, None, True)
    assert kind("m", bucket_cap_mb=10).given == ("m", None, 50, None, True)
    assert kind(module="m").given == ("m", None, 50, None, True)
    assert facts["edits"]["ddp.bucket_cap_mb=50"] == {
        "applied_to": 3, "target": "DistributedDataParallel", "before": None,
    }  # fmt: skip
    assert type(kind("m").given[2]) is int
    assert inspect.signature(kind.__init__) == inspect.signature(Wrapper.__init__)


def test_a_subclass_that_calls_up_is_changed_too(facts):
    class Mine(changed(Wrapper, ["ddp.bucket_cap_mb=0.5"])):
        def __init__(self, module):
            super().__init__(module, bucket_cap_mb=3)

    assert Mine("m").given[2] == 0.5
    assert facts["edits"]["ddp.bucket_cap_mb=0.5"]["before"] == 3


def test_what_refuses_the_edit_is_made_as_the_script_wants_it(facts):
    kind = changed(Wrapper, ["ddp.bucket_cap_mb_list=13"])
    assert kind("m", bucket_cap_mb=7).given == ("m", None, 7, None, False)
    assert "unlucky" in facts["edits"]["ddp.bucket_cap_mb_list=13"]["failed"]
    kind = changed(Wrapper, ["ddp.gradient_as_bucket_view=true"])
    assert kind("m").given[0] == "m"
    assert "no argument gradient_as_bucket_view" in facts["edits"]["ddp.gradient_as_bucket_view=true"]["failed"]


def test_the_scripts_own_error_stays_its_own():
    with pytest.raises(TypeError, match="module"):
        changed(Wrapper, ["ddp.bucket_cap_mb=1"])()
    with pytest.raises(ValueError, match="only with workers"):
        changed(Loader, ["loader.pin_memory=true"], construct._replace_loading)([], prefetch_factor=2)


def test_loading_processes_take_with_them_what_only_they_have():
    none = changed(Loader, ["loader.num_workers=0"], construct._replace_loading)
    assert none([], 4, 2, prefetch_factor=3, persistent_workers=True).given == (4, 0, None, False)
    more = changed(Loader, ["loader.num_workers=3", "loader.prefetch_factor=5"], construct._replace_loading)
    assert more([]).given == (1, 3, 5, False)


def test_a_mesh_gives_places_and_groups():
    layout = _layout(("dp", "tp"), [[0, 1], [2, 3], [4, 5]], (3, 2))
    assert layout.mesh == {"dp": 3, "tp": 2}
    assert layout.coordinates["4"] == {"dp": 2, "tp": 0}
    assert [(g["axis"], g["ranks"]) for g in layout.groups] == [
        ("dp", [0, 2, 4]), ("dp", [1, 3, 5]), ("tp", [0, 1]), ("tp", [2, 3]), ("tp", [4, 5]),
    ]  # fmt: skip
    assert _layout(("dp",), [[0]], (1, 1)).mesh == {}
