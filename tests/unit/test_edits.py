import json

import pytest

from dtprof.edits import KEYS, Edit, as_mapping, edits_of, parse_edit, parse_edits
from dtprof.errors import InputError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ddp.bucket_cap_mb=50", 50.0),
        (" ddp.bucket_cap_mb = 0.5 ", 0.5),
        ("ddp.bucket_cap_mb_list=1,25", (1.0, 25.0)),
        ("ddp.bucket_cap_mb_list=[1, 25]", (1.0, 25.0)),
        ("ddp.static_graph=True", True),
        ("ddp.find_unused_parameters=off", False),
        ("fsdp.reshard_after_forward=false", False),
        ("fsdp.reshard_after_forward=8", 8),
        ("comm.dtype=BF16", "bf16"),
        ("pipeline.schedule=zero-bubble", "zero-bubble"),
        ("loader.num_workers=0", 0),
        ("ideal.rank=3", 3),
    ],
)
def test_a_text_becomes_a_typed_value_and_back(text, value):
    edit = parse_edit(text)
    assert edit == Edit(text.partition("=")[0].strip(), value)
    assert type(edit.value) is type(value)
    assert parse_edit(str(edit)) == edit


@pytest.mark.parametrize(
    "text",
    [
        "ddp.bucket_cap_mb=0", "ddp.bucket_cap_mb=-1", "ddp.bucket_cap_mb=nan", "ddp.bucket_cap_mb=inf", "ddp.bucket_cap_mb=a",
        "ddp.bucket_cap_mb_list=1,,2", "ddp.bucket_cap_mb_list=", "ddp.static_graph=2", "fsdp.reshard_after_forward=1",
        "comm.dtype=fp8", "loader.num_workers=-1", "loader.num_workers=1.5", "ideal.rank=one",
    ],
)  # fmt: skip
def test_a_value_outside_its_range_is_refused_with_the_range(text):
    with pytest.raises(InputError) as refused:
        parse_edit(text)
    key = KEYS[text.partition("=")[0]]
    assert key.expects in str(refused.value)
    assert key.name in refused.value.message


def test_an_unknown_key_is_answered_with_the_nearest_and_with_types():
    with pytest.raises(InputError) as refused:
        parse_edit("ddp.bucket_cap=50")
    assert "did you mean ddp.bucket_cap_mb?" in refused.value.hint
    assert "ddp.bucket_cap_mb (MiB, a number above 0)" in refused.value.hint
    assert "fsdp." not in refused.value.hint
    with pytest.raises(InputError) as refused:
        parse_edit("zzz")
    assert "did you mean" not in refused.value.hint
    assert all(name in refused.value.hint for name in KEYS)


def test_a_key_without_a_value_and_a_key_given_twice_are_refused():
    for text in ("ddp.bucket_cap_mb", "ddp.bucket_cap_mb="):
        with pytest.raises(InputError, match="no value"):
            parse_edit(text)
    with pytest.raises(InputError, match="set twice, before to 1"):
        parse_edits(["ddp.bucket_cap_mb=1", "ddp.static_graph=1", "ddp.bucket_cap_mb=2"])


def test_edits_travel_as_json():
    edits = parse_edits(["ddp.bucket_cap_mb_list=1,25", "ddp.static_graph=yes", "comm.dtype=bf16", "net.bandwidth_scale=0.1"])
    assert edits_of(json.loads(json.dumps(as_mapping(edits)))) == edits


def test_what_a_launcher_can_apply_is_told_from_what_only_a_model_can_follow():
    assert parse_edit("ddp.bucket_cap_mb=50").at_construction
    assert parse_edit("loader.num_workers=4").at_construction
    assert not parse_edit("net.bandwidth_scale=2").at_construction


def test_every_key_says_what_it_is():
    for name, key in KEYS.items():
        assert name == key.name and "." in name
        assert key.expects and key.what and not key.what.endswith(".")
