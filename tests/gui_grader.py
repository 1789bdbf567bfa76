"""A grader of the hand-made site: was the word said?"""

from typing import Any

import msgspec

from orchard.schemas.gui import GuiSubmission, reward
from orchard.schemas.outcomes import Reward
from orchard.workers.graders.judgement import Judgement


class Nothing(msgspec.Struct, frozen=True):
    """No settings."""


class Seen:
    """The plug-in."""

    name = "tests.gui_grader:Seen"
    in_place = False
    settings = Nothing

    async def grade(self, _settings: Any, judgement: Judgement) -> Reward:
        """See Grader."""
        outcome = msgspec.json.decode(judgement.submission, type=GuiSubmission)
        solved = "/said?word=tea" in (outcome.records or {}).get("seen", [])
        return Reward(value=reward(outcome, solved), resolved=solved and outcome.parsed, grader=self.name)
