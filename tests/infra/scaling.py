"""KEDA's arithmetic for workers as Jobs: what it asks NATS, the lag it reads, the Jobs it creates.

Pure functions after KEDA 2.20 (`nats_jetstream_scaler.go`, `scale_jobs.go`), so that the closed loop of
queue, scaler and workers can be simulated against a real server without a cluster.
"""

import math
from typing import Literal
from urllib.parse import urlencode

import msgspec

Strategy = Literal["default", "accurate", "eager"]


class ScalingError(ValueError):
    """A trigger or an answer of the monitoring port that KEDA could not work with, in one sentence."""


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of a `nats-jetstream` trigger. On the wire every value is a string."""

    endpoint: str
    """`host:port` of the server's monitoring."""
    scheme: Literal["http", "https"] = "http"
    account: str
    stream: str
    consumer: str
    lag_threshold: int = 10
    """Requests that one Job stands for."""
    activation_lag_threshold: int = 0
    """Lag up to which nothing is started at all."""

    @classmethod
    def of_metadata(cls, metadata: dict[str, str]) -> "Trigger":
        """Raises ScalingError for a name that is missing, a number that is none, a value not a string."""
        if wrong := [key for key, value in metadata.items() if not isinstance(value, str)]:
            raise ScalingError(f"trigger metadata {wrong} must be strings: quote them")
        try:
            return cls(
                endpoint=metadata["natsServerMonitoringEndpoint"],
                scheme="https" if metadata.get("useHttps", "false") == "true" else "http",
                account=metadata["account"],
                stream=metadata["stream"],
                consumer=metadata["consumer"],
                lag_threshold=int(metadata.get("lagThreshold", "10")),
                activation_lag_threshold=int(metadata.get("activationLagThreshold", "0")),
            )
        except KeyError as error:
            raise ScalingError(f"the trigger metadata has no {error.args[0]}: add it") from error
        except ValueError as error:
            raise ScalingError(f"a threshold of the trigger is no whole number: {error}") from error

    @property
    def url(self) -> str:
        """What the scaler gets at each poll, without authentication."""
        query = urlencode({"acc": self.account, "consumers": "true", "config": "true"})
        return f"{self.scheme}://{self.endpoint}/jsz?{query}"


class _Consumer(msgspec.Struct):
    name: str
    num_pending: int = 0
    num_ack_pending: int = 0


class _Stream(msgspec.Struct):
    name: str
    consumer_detail: list[_Consumer] = []


class _Account(msgspec.Struct):
    name: str
    stream_detail: list[_Stream] = []


class _Answer(msgspec.Struct):
    account_details: list[_Account] = []


def lag(answer: bytes, trigger: Trigger) -> int:
    """Requests waiting or in work, from the body of an answer to `trigger.url`.

    0 when the account or the stream is not there yet. Raises ScalingError for an answer that is not the
    monitoring port's, and where the stream is there and the consumer is not: since 2.20.0 KEDA reports an
    error then and creates nothing; before, it took every request ever made as the lag.
    """
    try:
        decoded = msgspec.json.decode(answer, type=_Answer)
    except msgspec.DecodeError as error:
        raise ScalingError(f"the answer of {trigger.url} is not JetStream's: {error}") from error
    for account in decoded.account_details:
        for stream in account.stream_detail:
            if account.name == trigger.account and stream.name == trigger.stream:
                for consumer in stream.consumer_detail:
                    if consumer.name == trigger.consumer:
                        return consumer.num_pending + consumer.num_ack_pending
                raise ScalingError(
                    f"{stream.name} has no consumer {trigger.consumer}: submit to its queue once"
                )
    return 0


def jobs_to_create(
    lag: int,
    *,
    trigger: Trigger,
    running: int,
    pending: int,
    max_replicas: int,
    strategy: Strategy = "default",
) -> int:
    """How many Jobs one poll creates.

    `running` counts every Job that has not ended, `pending` those of them whose Pod does not run yet.

    The lag holds what is in work too, so only `default`, which takes away the running Jobs, arrives at the
    number of requests. `accurate` takes away the pending ones only, `eager` fills up to the maximum: both
    start Jobs again for requests that a worker has already.
    """
    if lag <= trigger.activation_lag_threshold:
        return 0
    most = min(max_replicas, math.ceil(lag / trigger.lag_threshold))
    wanted = lag
    match strategy:
        case "default":
            allowed = most - running
        case "accurate":
            allowed = max_replicas - running if most + running > max_replicas else most - pending
        case "eager":
            allowed = min(max_replicas - running - pending, most)
            wanted = max_replicas
    return max(0, min(wanted, allowed))
