from hypothesis import given
from hypothesis import strategies as st

from dtprof.ranges import INT_TAGS, TAGS, TEXT_TAGS, format_range, parse_range

tags = st.fixed_dictionaries({}, optional={
    **{key: st.integers(-(10**9), 10**9) for key in INT_TAGS},
    **{key: st.text(min_size=0, max_size=20) for key in TEXT_TAGS},
})  # fmt: skip


def test_tags_follow_the_name_in_a_fixed_order():
    assert (
        format_range("forward", {"layer": "blocks.0", "microbatch": 2, "bucket": None}) == "forward#microbatch=2#layer=blocks.0"
    )
    assert parse_range("forward#microbatch=2#layer=blocks.0") == ("forward", {"microbatch": 2, "layer": "blocks.0"})


def test_what_is_no_tag_stays_in_the_name():
    for name in ("forward", "ProfilerStep#5", "a#b=c", "a#step=x", "#step=5", "a#step=", "a#step=²", "", "#"):
        assert parse_range(name) == (name, {})
    assert parse_range("a#step=1#step=2") == ("a#step=1", {"step": 2})
    assert parse_range("ProfilerStep#5#step=5") == ("ProfilerStep#5", {"step": 5})


@given(st.text(alphabet=st.characters(exclude_characters="#"), min_size=1, max_size=20), tags)
def test_every_name_and_tag_comes_back(base, given_tags):
    assert parse_range(format_range(base, given_tags)) == (base, given_tags)


@given(st.text(max_size=60))
def test_any_text_is_a_name(text):
    base, found = parse_range(text)
    assert set(found) <= set(TAGS)
    assert format_range(base, found).count("#") == text.count("#")


@given(st.lists(st.sampled_from(["#", "=", "%23", "step", "layer", "7", "-", "9" * 30, "x"]), max_size=12).map("".join))
def test_any_text_of_our_own_alphabet_is_a_name(text):
    base, found = parse_range(text)
    assert parse_range(format_range(base, found))[1] == found
