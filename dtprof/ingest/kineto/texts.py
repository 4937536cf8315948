"""Texts as JSON writes them, to str: escapes, surrogates, and what is not decodable."""

from __future__ import annotations

import re

_SUSPECT = re.compile(rb"[\x00-\x1f\\]")
_CONTROL = re.compile(rb"[\x00-\x1f]")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.?)", re.S)
_PLAIN = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def decode(raw: bytes, is_json: bool = False) -> tuple[str, bool]:
    """The text and whether it had to be repaired.

    ``raw`` is the inside of a JSON string, or a whole JSON value (``is_json``), whose escapes stay as they are. Bytes that
    are not UTF-8 and lone surrogates become U+FFFD; a backslash that begins no escape stands for itself.
    """
    try:
        text, repaired = raw.decode(), False
    except UnicodeDecodeError:
        text, repaired = raw.decode(errors="replace"), True
    if not _SUSPECT.search(raw):
        return text, repaired
    repaired = repaired or bool(_CONTROL.search(raw))
    if is_json or "\\" not in text:
        return text, repaired
    bad = False

    def unescape(found: re.Match[str]) -> str:
        nonlocal bad
        code = found[1]
        if len(code) == 5:
            return chr(int(code[1:], 16))
        if code not in _PLAIN:
            bad = True
        return _PLAIN.get(code, found[0])

    text = _ESCAPE.sub(unescape, text)
    joined = text.encode("utf-16", "surrogatepass")
    try:
        return joined.decode("utf-16"), repaired or bad
    except UnicodeDecodeError:
        return joined.decode("utf-16", "replace"), True
