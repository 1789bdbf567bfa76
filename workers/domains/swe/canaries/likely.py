"""Values that a right one cannot be told from by who does not know it. Pure."""

import builtins
import random
import re
import string
from collections.abc import Sequence

from orchard.workers.domains.swe.canaries.constants import ERRORS, Leaf
from orchard.workers.domains.swe.canaries.expected import ValueSlot

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

    def __init__(
        self, values: list[list[object]], right: tuple[int, ...], rows: int, *, halves: bool
    ) -> None:
        self.values = values
        self.right = right
        """Rows of each copy that are as the task has them."""
        self.rows = rows
        self.halves = halves
        """Whether there are but two values, so that about half of all rows are right."""


class ValueDraw:
    """Draws values so that the right one is like the others: of a run of numbers any could be it, and of many
    words. What has two values has each of them in half of the copies."""

    def __init__(self, number: int, dice: random.Random, words: Sequence[str]) -> None:
        self._number = number
        self._dice = dice
        self._words = words

    def slot(self, slot: ValueSlot) -> Drawn:
        if slot.turn is not None:
            turned = self._halves()
            other_form = self._dice.random() < 0.5
            right = tuple(int(not each) for each in turned)
            return Drawn([[other_form, each] for each in turned], right, 1, halves=True)
        halves = all(isinstance(leaf.value, bool) for leaf in slot.leaves)
        values: list[list[object]] = [[] for _ in range(self._number)]
        right_rows = [0] * self._number
        for row in slot.rows:
            where = self._turned(row, values) if halves else self._replaced(row, values)
            for at in range(self._number):
                right_rows[at] += not row or where[at]
        return Drawn(values, tuple(right_rows), len(slot.rows), halves=halves)

    def _turned(self, row: Sequence[Leaf], values: list[list[object]]) -> list[bool]:
        """Append booleans, all of a row turned around in half of the copies; where they are right."""
        turned = self._halves()
        for at, turn in enumerate(turned):
            values[at] += [bool(leaf.value) is not turn for leaf in row]
        return [not turn for turn in turned]

    def _replaced(self, row: Sequence[Leaf], values: list[list[object]]) -> list[bool]:
        """Append values that are all right in one copy and all wrong in the others; where they are right.

        Numbers of a row with the same step move together: what holds between them (an order, a difference)
        holds in every copy.
        """
        right = self._dice.randrange(self._number)
        moves: dict[tuple[type, int], list[int]] = {}
        columns: list[list[object]] = []
        for leaf in row:
            value = leaf.value
            if isinstance(value, int | float):
                digits = (
                    len(repr(value).partition("e")[0].partition(".")[2]) if isinstance(value, float) else 0
                )
                whole = round(value * 10**digits)
                step = _step(whole)
                if (type(value), step) not in moves:
                    moves[type(value), step] = self._moves(whole // step, self._number // 4)
                moved = [whole + move * step for move in moves[type(value), step]]
                column: list[object] = list(moved) if not digits else [each / 10**digits for each in moved]
                if isinstance(value, float) and not digits:
                    column = [float(each) for each in moved]
            else:
                column = self._others(leaf)
                self._dice.shuffle(column)
            column.insert(right, value)
            columns.append(column)
        for at in range(self._number):
            values[at] += [column[at] for column in columns]
        return [at == right for at in range(self._number)]

    def _halves(self) -> list[bool]:
        turned = [number % 2 == 0 for number in range(self._number)]
        self._dice.shuffle(turned)
        return turned

    def _others(self, leaf: Leaf) -> list[object]:
        """As many other values as there are copies but one, all different where there are so many."""
        value = leaf.value
        if leaf.is_error:
            return list(self._errors(str(value)))
        if isinstance(value, bytes):
            return [each.encode("latin-1") for each in self._texts(value.decode("latin-1"))]
        assert isinstance(value, str)
        return list(self._texts(value))

    def _moves(self, steps: int, below: int) -> list[int]:
        """Steps to the neighbours in a run in which a number may have any place, in any order. The run of a
        small number of steps begins at 0 or up to `below` under it, whatever it is."""
        if 0 <= steps < self._number - below:
            first = steps + self._dice.randint(0, below)
        else:
            first = self._dice.randrange(self._number)
        moves = [at - first for at in range(self._number) if at != first]
        self._dice.shuffle(moves)
        return moves

    def _texts(self, value: str) -> list[str]:
        """The text with another number, another word, or another letter at one place."""
        if numbers := list(re.finditer(r"(?<![\d.])\d{1,9}(?![\d.])", value)):
            chosen = self._dice.choice(numbers)
            width = len(chosen[0])
            number = int(chosen[0])
            step = _step(number)
            return [
                value[: chosen.start()] + str(number + move * step).rjust(width, "0") + value[chosen.end() :]
                for move in self._moves(number // step, 0)
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


def _step(value: int) -> int:
    """The unit that a number is round in: round numbers stay round."""
    step = 1
    while value and value % (step * 10) == 0:
        step *= 10
    return step


def _cased(word: str, like: str) -> str:
    return word.upper() if like.isupper() else word.capitalize() if like[0].isupper() else word
