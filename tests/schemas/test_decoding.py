"""The boundary of decoding: whatever the bytes are, a value or one kind of error, wherever one stands."""

import msgspec
import pytest

from orchard.schemas.decoding import NESTING_LIMIT, Unreadable, decode, decode_whole

ANY = msgspec.json.Decoder(dict[str, msgspec.Raw])


def nested(levels: int) -> bytes:
    """A document of so many levels, with brackets in strings that are none."""
    return b'{"a[{\\"[":' * (levels - 1) + b"{}" + b"}" * (levels - 1)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"a": "\xff"}',
        b'{"a": "\\ud800"}',
        b'{"a": ' + nested(3000) + b"}",
        b'{"a": ' + b"[" * 3000 + b"}",
        b"[]",
    ],
)
def test_bytes_that_are_no_such_document_are_unreadable(raw: bytes) -> None:
    with pytest.raises(Unreadable):
        decode_whole(ANY, raw)


def test_a_number_that_fits_no_type_is_unreadable() -> None:
    for text in (b"9" * 5000, b"1e999", b"NaN"):
        with pytest.raises(Unreadable):
            decode(msgspec.json.Decoder(float), text)


def test_how_deep_is_too_deep_does_not_depend_on_the_stack() -> None:
    def from_below(frames: int, raw: bytes) -> object:
        return from_below(frames - 1, raw) if frames else decode_whole(ANY, raw)

    for frames in (0, 300):
        from_below(frames, nested(NESTING_LIMIT))
        with pytest.raises(Unreadable, match="nested"):
            from_below(frames, nested(NESTING_LIMIT + 1))


def test_brackets_in_text_do_not_nest() -> None:
    decode_whole(ANY, msgspec.json.encode({"code": "[" * 5000 + '\\"{' * 5000 + "\\"}))
