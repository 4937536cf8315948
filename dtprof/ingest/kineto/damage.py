"""The kinds of damage a scanner can meet; the numbers are those of the C scanner (``_text.h``)."""

from __future__ import annotations

FLAWS = (
    "event that is not valid JSON, lost",
    "object that is no event (no ph), ignored",
    "two events run together, lost",
    "event without a usable ts or dur (absent, not finite or out of range), left out",
    "event with a negative dur, left out",
    "number in an event that is not finite or out of range, read as missing",
    "stray or missing comma",
    "text that is no event between or after the events, skipped",
    "top-level text that cannot be read, skipped",
    "the file ends too early: it was cut or its writer was stopped",
    "begin without end or end without begin, left out",
    "flow without a usable id, left out",
    "events under another key than traceEvents, read",
    "traceEvents appears more than once, all read",
)
(BROKEN, NO_PH, TWICE, TIME, NEGATIVE, NUMBER, COMMA, GARBAGE, HEADER, TRUNCATED, UNPAIRED, FLOW, KEY, AGAIN) = range(
    len(FLAWS)
)

BAD_TEXT = "text with a bad escape, a control character or bytes that are not UTF-8, repaired"
TWO_WRITERS = "two writers: what follows comes from another process, left out"
GZIP_CUT = "the gzip data ends too early: the file was cut or its writer was stopped"
GZIP_BAD = "the gzip data is damaged from here on"
GZIP_CHECK = "the gzip check at the end of the file does not match: some of the data may be wrong"
GZIP_TAIL = "bytes after the end of the gzip data, skipped"

# Limits beyond which a time is damage, in ns: 2^62 leaves room to add baseTimeNanoseconds; no capture lasts 116 days.
MAX_TIME = 2**62
MAX_DURATION = 10**16
