"""Values that a right one cannot be told from by who does not know it. Pure."""

import builtins
import random
import re
import string
from collections.abc import Sequence

from orchard.workers.graders.expected import ERRORS, Leaf, Slot

_WORDS = (
    "able area back ball bank base bear bell best bird blue boat body book born both bowl call card "
    "care case city club coal coat code cold come cook cool copy corn cost crew dark data date dawn "
    "days deal deep desk door down draw drop dust duty each earn east easy edge face fact fair fall "
    "farm fast fear feed feel file fill film find fine fire firm fish five flat flow food foot form "
    "four free full fund gain game gate gift give goal gold good gray grow hair half hall hand hard "
    "harm head hear heat help here hill hold hole home "
)
"""Common words, where the test file has too few of its own."""


class Drawn:
    """One slot's values in every copy."""

    def __init__(self, values: list[list[object]], genuine: tuple[bool, ...]) -> None:
        self.values = values
        self.genuine = genuine


class Draw:
    """Draws values so that the right one is like the others: of a run of numbers any could be it, and of many
    words. What has two values has each of them in half of the copies."""

    def __init__(self, number: int, dice: random.Random, words: Sequence[str]) -> None:
        self._number = number
        self._dice = dice
        self._words = words

    def slot(self, slot: Slot) -> Drawn:
        if slot.turn is not None:
            turned = self._halves()
            other_form = self._dice.random() < 0.5
            return Drawn([[other_form, each] for each in turned], tuple(not each for each in turned))
        if all(isinstance(each.value, bool) for each in slot.leaves):
            turned = self._halves()
            return Drawn(
                [[bool(each.value) is not turn for each in slot.leaves] for turn in turned],
                tuple(not each for each in turned),
            )
        right = self._dice.randrange(self._number)
        columns = [self._others(leaf) for leaf in slot.leaves]
        for column, leaf in zip(columns, slot.leaves, strict=True):
            self._dice.shuffle(column)
            column.insert(right, leaf.value)
        values = [[column[at] for column in columns] for at in range(self._number)]
        return Drawn(values, tuple(at == right for at in range(self._number)))

    def _halves(self) -> list[bool]:
        turned = [number % 2 == 0 for number in range(self._number)]
        self._dice.shuffle(turned)
        return turned

    def _others(self, leaf: Leaf) -> list[object]:
        """As many other values as there are copies but one, all different where there are so many."""
        value = leaf.value
        if leaf.is_error:
            return list(self._errors(str(value)))
        if isinstance(value, int):
            return list(self._run(value, self._number // 4))
        if isinstance(value, float):
            digits = len(repr(value).partition("e")[0].partition(".")[2])
            return [number / 10**digits for number in self._run(round(value * 10**digits), self._number // 4)]
        if isinstance(value, bytes):
            return [each.encode("latin-1") for each in self._texts(value.decode("latin-1"))]
        assert isinstance(value, str)
        return list(self._texts(value))

    def _run(self, value: int, below: int) -> list[int]:
        """Neighbours in a run of equal steps, in which the value may have any place. Round numbers stay
        round. The run of a small number begins at 0 or up to `below` steps under it, whatever it is."""
        step = 1
        while value and value % (step * 10) == 0:
            step *= 10
        if 0 <= value // step < self._number - below:
            first = value // step + self._dice.randint(0, below)
        else:
            first = self._dice.randrange(self._number)
        return [value + (at - first) * step for at in range(self._number) if at != first]

    def _texts(self, value: str) -> list[str]:
        """The text with another number, another word, or another letter at one place."""
        if numbers := list(re.finditer(r"(?<![\d.])\d{1,9}(?![\d.])", value)):
            chosen = self._dice.choice(numbers)
            width = len(chosen[0])
            return [
                value[: chosen.start()] + str(number).rjust(width, "0") + value[chosen.end() :]
                for number in self._run(int(chosen[0]), 0)
            ]
        if words := list(re.finditer(r"[A-Za-z]{3,12}", value)):
            chosen = self._dice.choice(words)
            pool = [
                word for word in dict.fromkeys((*self._words, *_WORDS.split())) if word != chosen[0].lower()
            ]
            others = self._dice.sample(pool, min(len(pool), self._number - 1))
            return [
                value[: chosen.start()] + _cased(each, chosen[0]) + value[chosen.end() :] for each in others
            ]
        places = [at for at, each in enumerate(value) if each.isascii() and each.isalnum()]
        at = self._dice.choice(places)
        alphabet = [each for each in string.ascii_letters + string.digits if each != value[at]]
        return [value[:at] + each + value[at + 1 :] for each in self._dice.sample(alphabet, self._number - 1)]

    def _errors(self, name: str) -> list[str]:
        """Builtin exceptions that are neither above nor below it."""
        right = getattr(builtins, name)
        others = [
            each
            for each in self._dice.sample(ERRORS, len(ERRORS))
            if not issubclass(getattr(builtins, each), right)
            and not issubclass(right, getattr(builtins, each))
        ]
        return [others[at % len(others)] for at in range(self._number - 1)]


def _cased(word: str, like: str) -> str:
    return word.upper() if like.isupper() else word.capitalize() if like[0].isupper() else word
