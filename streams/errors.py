"""Errors of the wire, each with one sentence that names the fix."""

from orchard.streams.records import StoredEvent


class StreamsError(Exception):
    """Base of everything this room raises on purpose; its text is one sentence for a person."""


class ServerFailed(StreamsError):
    """The embedded server could not start or run: no binary, port or store in use, bad store."""


class NatsUnreachable(StreamsError):
    """No server answered in the time allowed, at the first connection or after a lost one."""


class StreamHeld(NatsUnreachable):
    """The server is there, but its stream of events must not be written to: it has lost events, or its limits
    let it drop some. See `orchard.streams.stream_check`."""


class EventsForgotten(StreamsError):
    """The stream was restored without events that it had confirmed to this process: the process knows what no
    longer happened, so it must end and begin again."""


class NatsRefused(StreamsError):
    """The server answered and said no: credentials, TLS, or a permission."""


class TopologyError(StreamsError):
    """A stream or consumer is missing, or exists with settings that cannot be changed in place."""


class MessageTooLarge(StreamsError):
    """The message is over the server's limit; nothing was sent."""


class QueueFull(StreamsError):
    """The work stream is at its limit and refused the request; nothing was stored."""


class StoreRefused(StreamsError):
    """The stream answered that it cannot store: no disk space, a limit, a bad header."""


class NoSpace(StoreRefused):
    """The server's disk, or its JetStream limit, is full."""


class LogFull(StoreRefused):
    """The event stream is at `event_max_bytes`; nothing was stored and nothing old was dropped."""


class WrongSequence(StreamsError):
    """Compare-and-set refused (server error 10071): the subject's last sequence is another."""


FAULTS = (ServerFailed, NatsUnreachable, NatsRefused, TopologyError, StoreRefused)
"""Errors that no single request or event is to blame for: nothing else would fare better, so the process
ends."""


class NameReused(StreamsError):
    """A message id was used for another body before: the request is on no queue, and the name is at fault."""


class AwaitsEndpoint(Exception):
    """A model endpoint rests, or a team has used up its money: a request that needs it waits until it is
    there again."""

    key: str
    """Key of the endpoint in the endpoint book, or of the team's hold."""
    seconds: float
    """Seconds until it is asked again."""


class NotRequeued(StreamsError):
    """The dead letter does not exist or its rollout has an outcome already."""


class CampaignConflict(StreamsError):
    """The campaign's key exists already, or was changed since the revision that the caller read."""


class CampaignUnreadable(StreamsError):
    """The campaign's record cannot be read; nothing about the campaign can be decided."""


class OutcomeRefused(StreamsError):
    """Another event is the rollout's accepted one: the caller's result is late and must be dropped."""

    def __init__(self, accepted: StoredEvent) -> None:
        kind = accepted.event.type if accepted.event else "an unreadable event"
        super().__init__(f"{accepted.subject} already holds {kind} at sequence {accepted.sequence}")
        self.accepted = accepted
        self.sequence = accepted.sequence
        self.event = accepted.event
