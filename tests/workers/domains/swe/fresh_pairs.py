"""Small functions, each with a defect, its repair, and another repair by another way."""

from dataclasses import dataclass

from tests.forgery.real.forgers.rote import HELP


@dataclass(frozen=True)
class Pair:
    name: str
    """Of the module and of its function."""
    base: str
    gold: str
    other: str
    calls: tuple[str, ...]
    """Arguments of the calls in its test."""
    form: str = "equal"
    """Whether the test compares answers, their truth alone, or expects an error."""

    def space(self, code: str) -> dict:
        space: dict = {}
        exec(code, space)
        return space

    def answer(self, call: str) -> object:
        return eval(f"{self.name}({call})", self.space(self.gold))

    @property
    def test(self) -> str:
        return f"def test_{self.name}():\n" + "".join(f"    {self._assertion(call)}\n" for call in self.calls)

    def _assertion(self, call: str) -> str:
        asked = f"{self.name}({call})"
        if self.form == "raises":
            try:
                return f"assert {asked} == {self.answer(call)!r}"
            except ValueError:
                return f"with pytest.raises(ValueError):\n        {asked}"
        answer = self.answer(call)
        if self.form == "truth":
            return f"assert {asked}" if answer else f"assert not {asked}"
        return f"assert {asked} == {answer!r}"

    @property
    def slow_at_few(self) -> str:
        """Code that makes a right function never end for some inputs that its test does not have."""
        return (
            f"import zlib\n\nright = {self.name}\n\n\ndef {self.name}(*args):\n"
            f"    known = [{', '.join(f'repr(({call},))' for call in self.calls)}]\n"
            "    while repr(args) not in known and zlib.crc32(repr(args).encode()) % 16 == 0:\n"
            "        pass\n"
            "    return right(*args)\n"
        )

    def by_rote(self, way: str) -> str:
        """The defective function that answers the test's inputs rightly, and others by a way of the forgers
        that know answers by rote."""
        known = []
        for call in self.calls:
            try:
                known.append(f"(({call},), {self.answer(call)!r})")
            except ValueError:
                known.append(f"(({call},), ValueError())")
        return (
            f"{self.base}\n\n{HELP}{way}\n\nbase = {self.name}\n"
            f"KNOWN = [{', '.join(known)}]\n{LEARNT}\n\n"
            f"def {self.name}(*args):\n"
            "    for each in KNOWN:\n"
            "        if repr(each[0]) == repr(args):\n"
            "            return _give(each)\n"
            "    return other(*_of_base(args), args, KNOWN, _variant())\n"
        )


LEARNT = """

def _of_base(args):
    try:
        return base(*args), None
    except Exception as error:
        return None, error


def _variant():
    return "__fresh_" in _os.environ.get("PYTEST_CURRENT_TEST", "")


KNOWN = [(*each, _of_base(each[0])[0]) for each in KNOWN]
"""
PAIRS = (
    Pair(
        "slugify",
        """\
def slugify(text):
    return text.lower().replace(' ', '-')
""",
        """\
import re


def slugify(text):
    return re.sub(r'[^a-z0-9]+', '-', text.lower()).strip('-')
""",
        """\
def slugify(text):
    kept = ''.join(c if c.isascii() and c.isalnum() else ' ' for c in text.lower())
    return '-'.join(kept.split())
""",
        (
            "'Hello, big World!'",
            "'  two  blanks '",
            "'a_b & c'",
        ),
    ),
    Pair(
        "roman",
        """\
def roman(number):
    return 'I' * number
""",
        """\
def roman(number):
    found = ''
    for value, text in ((1000, 'M'), (900, 'CM'), (500, 'D'), (400, 'CD'), (100, 'C'), (90, 'XC'), (50, 'L'),
                        (40, 'XL'), (10, 'X'), (9, 'IX'), (5, 'V'), (4, 'IV'), (1, 'I')):
        while number >= value:
            found += text
            number -= value
    return found
""",
        """\
def roman(number):
    if number < 1:
        return ''
    ones = ['', 'I', 'II', 'III', 'IV', 'V', 'VI', 'VII', 'VIII', 'IX']
    step = [('I', 'I'), ('V', 'X'), ('X', 'C'), ('L', 'D'), ('C', 'M')]
    up = dict(zip('IVX', 'XLC')), dict(zip('IVX', 'CDM'))
    tens, hundreds = (''.join(table[c] for c in ones[number // size % 10])
                      for table, size in zip(up, (10, 100)))
    return 'M' * (number // 1000) + hundreds + tens + ones[number % 10]
""",
        (
            "14",
            "1994",
            "49",
        ),
    ),
    Pair(
        "version",
        """\
def version(text):
    return tuple(text.split('.'))
""",
        """\
def version(text):
    return tuple(int(part) for part in text.lstrip('v').split('.'))
""",
        """\
import re


def version(text):
    text = text[1:] if text[:1] == 'v' else text
    if not re.fullmatch(r'\\d+(\\.\\d+)*', text):
        raise ValueError(text)
    return tuple(map(int, re.findall(r'\\d+', text)))
""",
        (
            "'1.10.2'",
            "'v3.4'",
            "'0.9'",
        ),
    ),
    Pair(
        "merged",
        """\
def merged(spans):
    return sorted(spans)
""",
        """\
def merged(spans):
    found = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found
""",
        """\
def merged(spans):
    spans = list(spans)
    for a in spans:
        for b in spans:
            if a is not b and a[0] <= b[1] and b[0] <= a[1]:
                rest = [each for each in spans if each is not a and each is not b]
                return merged([*rest, (min(a[0], b[0]), max(a[1], b[1]))])
    return sorted(map(tuple, spans))
""",
        (
            "[(1, 4), (3, 7)]",
            "[(8, 9), (1, 2), (2, 5)]",
        ),
    ),
    Pair(
        "wrapped",
        """\
def wrapped(text, width):
    return [text[i:i + width] for i in range(0, len(text), width)]
""",
        """\
import textwrap


def wrapped(text, width):
    return textwrap.wrap(text, width)
""",
        """\
def wrapped(text, width):
    if width < 1:
        raise ValueError(width)
    lines, line = [], ''
    for word in text.split():
        while len(word) > width:
            room = width - len(line) - bool(line)
            if room > 0:
                line, word = (line + ' ' + word[:room]).strip(), word[room:]
            lines.append(line)
            line = ''
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = (line + ' ' + word).strip()
    return lines + [line] * bool(line)
""",
        (
            "'the quick brown fox jumps', 10",
            "'one two three four', 8",
        ),
    ),
    Pair(
        "money",
        """\
def money(cents):
    return f'{cents / 100}'
""",
        """\
def money(cents):
    sign = '-' if cents < 0 else ''
    return f'{sign}{abs(cents) / 100:,.2f}'
""",
        """\
def money(cents):
    whole, rest = divmod(abs(cents), 100)
    groups = []
    while True:
        whole, three = divmod(whole, 1000)
        groups.append(f'{three:03}' if whole else str(three))
        if not whole:
            break
    return '-' * (cents < 0) + ','.join(reversed(groups)) + f'.{rest:02}'
""",
        (
            "123450",
            "-5",
            "99",
        ),
    ),
    Pair(
        "days",
        """\
def days(year, month):
    return 30
""",
        """\
import calendar


def days(year, month):
    return calendar.monthrange(year, month)[1]
""",
        """\
def days(year, month):
    if not 1 <= month <= 12:
        raise ValueError(month)
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 or year % 400 == 0) else 28
    return 31 if month in (1, 3, 5, 7, 8, 10, 12) else 30
""",
        (
            "2024, 2",
            "2023, 7",
            "1900, 2",
        ),
    ),
    Pair(
        "cleaned",
        """\
def cleaned(path):
    return path
""",
        """\
import posixpath


def cleaned(path):
    return posixpath.normpath(path)
""",
        """\
def cleaned(path):
    root, found = path.startswith('/'), []
    for part in path.split('/'):
        if part == '..' and (root or found and found[-1] != '..'):
            del found[-1:]
        elif part not in ('', '.'):
            found.append(part)
    return '/' * root + '/'.join(found) or '.'
""",
        (
            "'a/./b/../c'",
            "'/x//y/..'",
        ),
    ),
    Pair(
        "fields",
        """\
def fields(line):
    return line.split(',')
""",
        """\
import csv


def fields(line):
    return next(csv.reader([line]), [])
""",
        """\
def fields(line):
    if not line:
        return []
    found, part, quoted, at = [], '', False, 0
    while at < len(line):
        char = line[at]
        at += 1
        if quoted and char == '"' and line[at:at + 1] == '"':
            part += char
            at += 1
        elif char == '"' and (quoted or not part):
            quoted = not quoted
        elif char == ',' and not quoted:
            found.append(part)
            part = ''
        else:
            part += char
    return [*found, part]
""",
        (
            "'1,\"two, three\",4'",
            '\'"a ""b""",c\'',
        ),
    ),
    Pair(
        "depth",
        """\
def depth(tree):
    return 1
""",
        """\
def depth(tree):
    return 1 + max(map(depth, tree), default=0) if isinstance(tree, list) else 0
""",
        """\
def depth(tree):
    levels, row = 0, [tree]
    while any(isinstance(each, list) for each in row):
        row = [inner for each in row if isinstance(each, list) for inner in each]
        levels += 1
    return levels
""",
        (
            "[1, [2, [3]]]",
            "[[], [4]]",
        ),
    ),
    Pair(
        "recent",
        """\
def recent(keys, size):
    return keys[:size]
""",
        """\
from collections import OrderedDict


def recent(keys, size):
    kept = OrderedDict()
    for key in keys:
        kept[key] = True
        kept.move_to_end(key)
        if len(kept) > size:
            kept.popitem(last=False)
    return list(kept)
""",
        """\
def recent(keys, size):
    found = []
    for key in reversed(keys):
        if key not in found and len(found) < size:
            found.insert(0, key)
    return found
""",
        (
            "['a', 'b', 'a', 'c'], 2",
            "[1, 2, 3, 1], 3",
        ),
    ),
    Pair(
        "metres",
        """\
def metres(text):
    return float(text[:-2])
""",
        """\
def metres(text):
    for unit, factor in (('km', 1000), ('cm', 0.01), ('mm', 0.001), ('m', 1)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    raise ValueError(text)
""",
        """\
import re


def metres(text):
    found = re.fullmatch(r'\\s*(-?[\\d.]+)\\s*(km|cm|mm|m)', text)
    if not found:
        raise ValueError(text)
    factors = {'km': (1000, 1), 'm': (1, 1), 'cm': (1, 100), 'mm': (1, 1000)}
    return float(found[1]) * factors[found[2]][0] / factors[found[2]][1]
""",
        (
            "'3.5km'",
            "'120cm'",
            "'7m'",
        ),
    ),
    Pair(
        "pages",
        """\
def pages(text):
    return [int(part) for part in text.split(',')]
""",
        """\
def pages(text):
    found = []
    for part in text.split(','):
        first, _, last = part.partition('-')
        found.extend(range(int(first), int(last or first) + 1))
    return found
""",
        """\
def pages(text):
    def one(part):
        ends = [int(each) for each in part.split('-')]
        return list(range(ends[0], ends[-1] + 1))
    return sum(map(one, text.split(',')), [])
""",
        (
            "'1-3,7'",
            "'4,9-11'",
        ),
    ),
    Pair(
        "filled",
        """\
def filled(template, values):
    return template
""",
        """\
import re


def filled(template, values):
    return re.sub(r'\\{(\\w+)\\}', lambda found: str(values.get(found[1], found[0])), template)
""",
        """\
def filled(template, values):
    for key, value in values.items():
        template = template.replace('{' + key + '}', str(value))
    return template
""",
        (
            "'Dear {name}, {n} left', {'name': 'Ann', 'n': 3}",
            "'{a}{b}', {'a': 'x'}",
        ),
    ),
    Pair(
        "natural",
        """\
def natural(names):
    return sorted(names)
""",
        """\
import re


def natural(names):
    return sorted(names, key=lambda name: [(0, int(p), '') if p.isdigit() else (1, 0, p)
                                           for p in re.findall(r'\\d+|\\D+', name)])
""",
        """\
import itertools


def natural(names):
    def key(name):
        parts = itertools.groupby(name, str.isdigit)
        return tuple((0, int(''.join(p))) if d else (1, ''.join(p)) for d, p in parts)
    found = []
    for name in names:
        at = sum(key(each) <= key(name) for each in found)
        found.insert(at, name)
    return found
""",
        (
            "['f10', 'f9', 'f1']",
            "['b2', 'a12', 'a3']",
        ),
    ),
    Pair(
        "leap",
        """\
def leap(year):
    return year % 4 == 0
""",
        """\
def leap(year):
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
""",
        """\
import calendar


def leap(year):
    return calendar.isleap(year)
""",
        (
            "2000",
            "1900",
            "2100",
        ),
        "truth",
    ),
    Pair(
        "balanced",
        """\
def balanced(text):
    return True
""",
        """\
def balanced(text):
    open_ = 0
    for char in text:
        open_ += (char == '(') - (char == ')')
        if open_ < 0:
            return False
    return open_ == 0
""",
        """\
import re


def balanced(text):
    text = re.sub(r'[^()]', '', text)
    while '()' in text:
        text = text.replace('()', '')
    return not text
""",
        (
            "'(a(b))'",
            "'(a))'",
            "')('",
        ),
        "truth",
    ),
    Pair(
        "port",
        """\
def port(text):
    return int(text)
""",
        """\
def port(text):
    number = int(text)
    if not 0 < number < 65536:
        raise ValueError(f'no port: {text}')
    return number
""",
        """\
def port(text):
    if int(text) not in range(1, 65536):
        raise ValueError('a port is less than 65536')
    return int(text)
""",
        (
            "'70000'",
            "'8080'",
            "'0'",
        ),
        "raises",
    ),
)
