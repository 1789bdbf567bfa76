"""All tricks, by family."""

from tests.forgery.trick import Trick
from tests.forgery.tricks.adaptive import ADAPTIVE
from tests.forgery.tricks.answers import ANSWERS
from tests.forgery.tricks.doctests import DOCTESTS
from tests.forgery.tricks.imports import IMPORTS
from tests.forgery.tricks.patches import PATCHES
from tests.forgery.tricks.processes import PROCESSES
from tests.forgery.tricks.runner import RUNNER
from tests.forgery.tricks.second import SECOND
from tests.forgery.tricks.shown import SHOWN

TRICKS: tuple[Trick, ...] = (
    *(*RUNNER, *IMPORTS, *ANSWERS, *PROCESSES, *PATCHES, *ADAPTIVE, *SHOWN),
    *(*SECOND, *DOCTESTS),
)
