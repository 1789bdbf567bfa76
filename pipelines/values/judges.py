"""Annotation protocols: what a model is asked about a trajectory, and which answers are accepted. Built
in, or a plug-in."""

from typing import Protocol

from orchard.pipelines.values.cases import Case
from orchard.pipelines.values.prompt import PROMPT_VERSION, AnnotationPrompt, make_prompt, retry_message
from orchard.pipelines.values.replies import Reading, read_reply
from orchard.schemas.plugins import GUIDE, Kind, PluginError
from orchard.workers.plugins import need


class Judge(Protocol):
    """A protocol for judging failed trajectories."""

    version: str
    """Version of the prompt in the log: another prompt or another rule is another version."""

    def prompt(self, case: Case, limit: int) -> AnnotationPrompt:
        """The first messages about a trajectory, about `limit` characters at most."""

    def read(self, text: str, steps: int) -> Reading:
        """The values of a trajectory of `steps` steps. Raises BadReply for an answer that breaks a rule."""

    def retry(self, fault: str) -> str:
        """The message after an answer that was not accepted."""


class BuiltIn:
    """The contract of the paper: key steps with probabilities, in one JSON array."""

    version = PROMPT_VERSION

    def prompt(self, case: Case, limit: int) -> AnnotationPrompt:
        return make_prompt(case, limit)

    def read(self, text: str, steps: int) -> Reading:
        return read_reply(text, steps)

    def retry(self, fault: str) -> str:
        return retry_message(fault)


BUILT_IN = BuiltIn()


def get_judge(version: str) -> Judge:
    """The judge of a prompt version; a plug-in's is its name. Raises PluginError."""
    if version == BUILT_IN.version:
        return BUILT_IN
    judge: Judge = need(Kind.JUDGE, version, [BUILT_IN.version])
    if missing := [each for each in ("prompt", "read", "retry") if not hasattr(judge, each)]:
        raise PluginError(
            f"the judge {version!r} is none of values: it has no {', '.join(missing)} ({GUIDE})"
        )
    return judge
