"""The scanner in Python, for where the C one was not built: the same way through a file (see ``_machine.h``), the same result.

It reads events in batches as long as they are clean, and one by one around damage.
"""

from __future__ import annotations

import re

from dtprof.ingest.kineto import damage as kinds
from dtprof.ingest.kineto.batches import decode_batch, keep_batch
from dtprof.ingest.kineto.collected import Collected
from dtprof.ingest.kineto.columns import Columns, Unclean
from dtprof.ingest.kineto.lenient import Bad, More, read_event, space, string_end, value_end
from dtprof.ingest.kineto.texts import decode

AT_START, IN_HEADER, IN_EVENTS, RESYNC, AFTER_END = range(5)
BATCH_BYTES = 2**18  # its events stay in the cache of the processor
MAX_PIECE = 32 * 2**20
SMALL_BATCH = 4096
_EVENT_KEYS = rb'"(?:ph|name|cat|ts|dur|pid|tid|args|id|bp|s|tts|cname)"'
_OPENS_EVENT = re.compile(rb"\{[ \n\r\t]*+" + _EVENT_KEYS + rb"[ \n\r\t]*+:")
_OPENS_PH = re.compile(rb'\{[ \n\r\t]*+"ph"[ \n\r\t]*+:')
_OPENS_MEMBER = re.compile(
    rb'"(?:traceEvents|distributedInfo|baseTimeNanoseconds|deviceProperties|schemaVersion|displayTimeUnit|traceName|trace_id'
    rb'|record_shapes|with_stack)"[ \n\r\t]*+:'
)
# what is left of an opener at the end of the text
_MAYBE = re.compile(rb'(?:\{[ \n\r\t]*+(?:"[a-z]{0,6}(?:"[ \n\r\t]*+)?)?|"[A-Za-z_]{0,20}(?:"[ \n\r\t]*+)?)\Z')
_OPENER = re.compile(_OPENS_EVENT.pattern + b"|" + _OPENS_MEMBER.pattern)
_NEXT_EVENT = re.compile(rb",[ \n\r\t]*+(?=" + _OPENS_EVENT.pattern + rb")")


class PythonScanner:
    """Feed it the text in chunks; ``finish`` hands over what was collected."""

    def __init__(self, batch_bytes: int = BATCH_BYTES) -> None:
        self.columns = Columns()
        self.data = b""
        self.base = 0
        self.waiting: list[bytes] = []
        self.waiting_bytes = 0
        self.run_bytes = self.wanted = batch_bytes  # text to wait for
        self.state = AT_START
        self.bare = self.need_comma = self.resyncing = self.any_item = self.ends_inside = False
        self.arrays = 0
        self.last_byte = b""
        self.single_until = 0
        self.batch_bytes = 2 * BATCH_BYTES

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the text."""
        self.waiting.append(chunk)
        self.waiting_bytes += len(chunk)
        if self.waiting_bytes >= self.wanted:
            self._run(False)

    def finish(self) -> Collected:
        """The end of the text."""
        self._run(True)
        closed = self.state in (AFTER_END, AT_START) or (self.state == RESYNC and self.last_byte in (b"}", b"]"))
        if not closed and not self.ends_inside:
            self.columns.note(kinds.TRUNCATED, self.base)
        return self.columns.collected(self.arrays, self.bare, self.base)

    def _run(self, final: bool) -> None:
        self.data = b"".join([self.data, *self.waiting])
        self.waiting, self.waiting_bytes = [], 0
        self.single_until = 0
        steps = (self._start, self._header, self._events, self._resync, self._after)
        p = 0
        while p < len(self.data):
            try:
                p = steps[self.state](p, final)
            except More:
                if not final and len(self.data) - p <= MAX_PIECE:
                    break
                p = space(self.data, p)
                if not self.ends_inside:
                    self.columns.note(kinds.TRUNCATED if final else kinds.BROKEN, self.base + p)
                self.ends_inside = final
                self.columns.note_break(self.base + p)
                self.state = RESYNC
                p += 1
        self.wanted = max(self.run_bytes, len(self.data) if p == 0 else 0)
        self.base += p
        self.data = self.data[p:]

    def _lose(self, flaw: int, p: int, resume: int) -> int:
        self.columns.note(flaw, self.base + p)
        self.columns.note_break(self.base + p)
        self.state = RESYNC
        return resume

    def _match(self, pattern: re.Pattern[bytes], p: int) -> bool:
        """Whether ``pattern`` matches at ``p``; More where the text ends too early to say."""
        if pattern.match(self.data, p):
            return True
        if len(self.data) - p < 65536 and _MAYBE.match(self.data, p):
            raise More
        return False

    def _start(self, p: int, final: bool) -> int:
        if self.data[p] == 0xEF and len(self.data) - p < 3:
            raise More
        if self.data.startswith(b"\xef\xbb\xbf", p):
            p += 3
        p = space(self.data, p)
        if p >= len(self.data):
            return p
        byte = self.data[p : p + 1]
        if byte == b"{":
            if self._match(_OPENS_PH, p):  # events without the array around them
                self.columns.note(kinds.GARBAGE, self.base + p)
                self.state, self.bare, self.arrays = IN_EVENTS, True, 1
                return p
            self.state = IN_HEADER
            return p + 1
        if byte == b"[":
            self.state, self.bare, self.arrays = IN_EVENTS, True, 1
            return p + 1
        return self._lose(kinds.HEADER, p, p)

    def _header(self, p: int, final: bool) -> int:
        data = self.data
        p = space(data, p)
        byte = data[p : p + 1]
        if byte in (b"", b","):
            return self._comma(p) if byte else p
        if byte == b"}":
            self._end_of_items(p)
            self.state = AFTER_END
            return p + 1
        if byte == b"{" and self._match(_OPENS_EVENT, p):  # the array was closed too early
            return self._lose(kinds.GARBAGE, p, p)
        if byte != b'"':
            return self._lose(kinds.HEADER, p, p + 1)
        return self._member(p)

    def _member(self, p: int) -> int:
        """Past the top-level member whose key opens at ``p``, or into its array of events."""
        data = self.data
        end = string_end(data, p)
        colon = space(data, end)
        if colon >= len(data):
            raise More
        if data[colon] != 0x3A:
            return self._lose(kinds.HEADER, p, p + 1)
        value = space(data, colon + 1)
        is_events = data[p:end] == b'"traceEvents"'
        entered = self._enter(p, value, is_events)
        if entered is not None:
            return entered
        try:
            stop = value_end(data, value, set())
        except Bad:
            stop = -1
        if stop < 0 or is_events:
            return self._lose(kinds.HEADER, p, p + 1)
        after = space(data, stop)
        if after >= len(data):
            raise More
        if data[after] not in b',}"':  # the value may have swallowed something
            return self._lose(kinds.HEADER, p, p + 1)
        self.columns.header.append((decode(data[p + 1 : end - 1])[0], self.base + value, data[value:stop]))
        if self.need_comma:
            self.columns.note(kinds.COMMA, self.base + p)
        self.need_comma = self.any_item = True
        self.resyncing = False
        return stop

    def _comma(self, p: int) -> int:
        """Past a comma between events or top-level members."""
        if not self.need_comma and not self.resyncing:
            self.columns.note(kinds.COMMA, self.base + p)
        self.need_comma = False
        return p + 1

    def _end_of_items(self, p: int) -> None:
        if not self.need_comma and self.any_item and not self.resyncing:
            self.columns.note(kinds.COMMA, self.base + p)

    def _enter(self, p: int, value: int, is_events: bool) -> int | None:
        """Past the bracket where the member at ``p`` is an array of events."""
        data = self.data
        flaw = -1
        at, first = value, space(data, value + 1)
        if data[value : value + 1] == b"[":
            if is_events:
                flaw = kinds.AGAIN if self.arrays else -1
            elif first >= len(data):
                raise More
            elif self._match(_OPENS_PH, first):
                flaw = kinds.KEY
            else:
                return None
            at = first
        elif is_events and data[value : value + 1] == b"{" and self._match(_OPENS_EVENT, value):
            flaw = kinds.GARBAGE  # the array's bracket is missing
        else:
            return None
        if flaw >= 0:
            self.columns.note(flaw, self.base + (value if flaw == kinds.GARBAGE else p))
        if self.need_comma:
            self.columns.note(kinds.COMMA, self.base + p)
        self.state = IN_EVENTS
        self.need_comma = self.resyncing = self.any_item = False
        self.arrays += 1
        return at

    def _events(self, p: int, final: bool) -> int:
        p = self._batch(p)
        data = self.data
        p = space(data, p)
        byte = data[p : p + 1]
        if byte == b",":
            return self._comma(p)
        if byte == b"]":
            self._end_of_items(p)
            self.state = AFTER_END if self.bare else IN_HEADER
            self.need_comma = self.any_item = True
            return p + 1
        if byte == b"":
            return p
        if byte != b"{":
            return self._lose(kinds.GARBAGE, p, p)
        try:
            event, end = read_event(data, p)
        except Bad:
            return self._lose(kinds.BROKEN, p, p + 1)
        if not event.has_ph:
            if self.resyncing:  # some object inside the damage
                self.state = RESYNC
                return p + 1
            self.columns.note(kinds.NO_PH, self.base + p)
        else:
            if self.need_comma:
                self.columns.note(kinds.COMMA, self.base + p)
            self.columns.keep(event, data, p, end, self.base)
            self.resyncing = False
        self.need_comma = self.any_item = True
        return end

    def _batch(self, p: int) -> int:
        """Past as many clean events from ``p`` as can be had at once."""
        data = self.data
        while not self.resyncing and p >= self.single_until:
            start = space(data, p)
            if (data[start : start + 1] == b",") != self.need_comma:
                return p
            start = space(data, start + self.need_comma)
            if data[start : start + 1] != b"{":
                return p
            stop = self._batch_end(start)
            if stop is None:
                return p
            body = data[start:stop]
            try:
                keep_batch(self.columns, decode_batch(body), body)
            except Unclean:
                self.batch_bytes = len(body) // 2
                if self.batch_bytes < SMALL_BATCH or self._batch_end(start) == stop:
                    self.single_until = stop
                    self.batch_bytes = SMALL_BATCH
                continue
            self.batch_bytes = min(2 * self.batch_bytes, 2 * BATCH_BYTES)
            self.need_comma = self.any_item = True
            p = stop
        return p

    def _batch_end(self, start: int) -> int | None:
        """The comma before an event some way after ``start``, or before the last one that is there."""
        data = self.data
        found = _NEXT_EVENT.search(data, start + self.batch_bytes)
        if found:
            return found.start()
        for window in (8192, 65536, len(data)):
            last = None
            for last in _NEXT_EVENT.finditer(data, max(start + 1, len(data) - window)):  # noqa: B007
                pass
            if last:
                return last.start()
            if window >= len(data) - start:
                break
        return None

    def _resync(self, p: int, final: bool) -> int:
        """To the next event or top-level member after damage."""
        data = self.data
        found = _OPENER.search(data, p)
        stop = found.start() if found else len(data)
        if not found and not final and (rest := _MAYBE_ANYWHERE.search(data, max(p, len(data) - 65536))):
            stop = rest.start()
            if stop == p:
                raise More
        self.last_byte = data[p:stop].rstrip(b" \n\r\t")[-1:] or self.last_byte
        if found:
            self.state = IN_EVENTS if data[stop] == 0x7B else IN_HEADER
            self.need_comma = False
            self.resyncing = True
        return stop

    def _after(self, p: int, final: bool) -> int:
        p = space(self.data, p)
        return self._lose(kinds.GARBAGE, p, p) if p < len(self.data) else p


_MAYBE_ANYWHERE = re.compile(_MAYBE.pattern)
