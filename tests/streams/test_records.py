"""What the acknowledgement subject of a delivery says, in both of its forms."""

import pytest

from orchard.streams.records import Delivery, parse_headers


@pytest.mark.parametrize(
    "reply",
    [
        b"$JS.ACK.S.c.3.70.90.1700000000000000000.12",
        b"$JS.ACK.hub.acc.S.c.3.70.90.1700000000000000000.12.token",
    ],
    ids=["plain", "with domain and account"],
)
def test_a_delivery_is_read_from_its_acknowledgement_subject(reply: bytes) -> None:
    delivery = Delivery.of(reply)

    assert (delivery.deliveries, delivery.sequence, delivery.consumer_sequence) == (3, 70, 90)
    assert (delivery.time, delivery.waiting) == (1_700_000_000_000_000_000, 12)


def test_another_subject_is_refused() -> None:
    with pytest.raises(ValueError, match="is not the acknowledgement subject"):
        Delivery.of(b"_INBOX.abc")


def test_headers_keep_colons_and_unicode() -> None:
    block = "NATS/1.0\r\nReason: what: größer\r\nNats-Msg-Id: a\r\n\r\n".encode()

    assert parse_headers(block) == {"Reason": "what: größer", "Nats-Msg-Id": "a"}
