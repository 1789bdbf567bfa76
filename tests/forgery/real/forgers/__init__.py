"""Generic forgers: each knows the scheme of grading, and nothing of the repository that it is put into."""

from tests.forgery.real.forgers.answers import ANSWERS
from tests.forgery.real.forgers.combined import COMBINED
from tests.forgery.real.forgers.inside import INSIDE
from tests.forgery.real.forgers.protocol import PROTOCOL
from tests.forgery.real.forgers.reading import READING
from tests.forgery.real.forgers.runner import RUNNER
from tests.forgery.real.forgers.scheme import SCHEME
from tests.forgery.real.forgers.statement import STATEMENT
from tests.forgery.real.forgers.told import TOLD

FORGERS = (*ANSWERS, *READING, *COMBINED, *SCHEME, *STATEMENT, *TOLD, *RUNNER, *PROTOCOL, *INSIDE)
