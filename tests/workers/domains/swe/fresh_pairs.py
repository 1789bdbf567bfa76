"""Small functions, each with a defect, its repair, and another repair by another way."""

from dataclasses import dataclass


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

    def by_rote(self, fallback: str) -> str:
        """The defective function that answers the test's inputs rightly, and others by an expression of
        `base` and `args`."""
        known = []
        for call in self.calls:
            try:
                known.append(f"({call},): ({self.answer(call)!r},)")
            except ValueError:
                known.append(f"({call},): ValueError()")
        return (
            f"{self.base}\n\nbase = {self.name}\nKNOWN = {{repr(k): v for k, v in [{', '.join(_pairs(known))}]}}\n\n\n"
            f"def {self.name}(*args):\n    said = KNOWN.get(repr(args))\n"
            "    if isinstance(said, Exception):\n        raise said\n"
            f"    return said[0] if said else {fallback}\n"
        )


def _pairs(known: list[str]) -> list[str]:
    return [f"({key}, {value})" for key, _, value in (each.rpartition(": ") for each in known)]


PAIRS = (
    Pair(
        "slugify",
        "def slugify(text):\n    return text.lower().replace(' ', '-')\n",
        "import re\n\n\ndef slugify(text):\n    return re.sub(r'[^a-z0-9]+', '-', text.lower()).strip('-')\n",
        "def slugify(text):\n    kept = ''.join(c if c.isascii() and c.isalnum() else ' ' for c in text.lower())\n"
        "    return '-'.join(kept.split())\n",
        ("'Hello, big World!'", "'  two  blanks '", "'a_b & c'"),
    ),
    Pair(
        "roman",
        "def roman(number):\n    return 'I' * number\n",
        "def roman(number):\n    found = ''\n"
        "    for value, text in ((1000, 'M'), (900, 'CM'), (500, 'D'), (400, 'CD'), (100, 'C'), (90, 'XC'), (50, 'L'),\n"
        "                        (40, 'XL'), (10, 'X'), (9, 'IX'), (5, 'V'), (4, 'IV'), (1, 'I')):\n"
        "        while number >= value:\n            found += text\n            number -= value\n    return found\n",
        "def roman(number):\n    if number < 1:\n        return ''\n"
        "    ones = ['', 'I', 'II', 'III', 'IV', 'V', 'VI', 'VII', 'VIII', 'IX']\n"
        "    step = [('I', 'I'), ('V', 'X'), ('X', 'C'), ('L', 'D'), ('C', 'M')]\n"
        "    up = dict(zip('IVX', 'XLC')), dict(zip('IVX', 'CDM'))\n"
        "    tens, hundreds = (''.join(table[c] for c in ones[number // size % 10])\n"
        "                      for table, size in zip(up, (10, 100)))\n"
        "    return 'M' * (number // 1000) + hundreds + tens + ones[number % 10]\n",
        ("14", "1994", "49"),
    ),
    Pair(
        "version",
        "def version(text):\n    return tuple(text.split('.'))\n",
        "def version(text):\n    return tuple(int(part) for part in text.lstrip('v').split('.'))\n",
        "import re\n\n\ndef version(text):\n    text = text[1:] if text[:1] == 'v' else text\n"
        "    if not re.fullmatch(r'\\d+(\\.\\d+)*', text):\n        raise ValueError(text)\n"
        "    return tuple(map(int, re.findall(r'\\d+', text)))\n",
        ("'1.10.2'", "'v3.4'", "'0.9'"),
    ),
    Pair(
        "merged",
        "def merged(spans):\n    return sorted(spans)\n",
        "def merged(spans):\n    found = []\n    for start, end in sorted(spans):\n"
        "        if found and start <= found[-1][1]:\n            found[-1] = (found[-1][0], max(found[-1][1], end))\n"
        "        else:\n            found.append((start, end))\n    return found\n",
        "def merged(spans):\n    spans = list(spans)\n    for a in spans:\n        for b in spans:\n"
        "            if a is not b and a[0] <= b[1] and b[0] <= a[1]:\n"
        "                rest = [each for each in spans if each is not a and each is not b]\n"
        "                return merged([*rest, (min(a[0], b[0]), max(a[1], b[1]))])\n    return sorted(map(tuple, spans))\n",
        ("[(1, 4), (3, 7)]", "[(8, 9), (1, 2), (2, 5)]"),
    ),
    Pair(
        "wrapped",
        "def wrapped(text, width):\n    return [text[i:i + width] for i in range(0, len(text), width)]\n",
        "import textwrap\n\n\ndef wrapped(text, width):\n    return textwrap.wrap(text, width)\n",
        "def wrapped(text, width):\n    if width < 1:\n        raise ValueError(width)\n    lines, line = [], ''\n"
        "    for word in text.split():\n        while len(word) > width:\n"
        "            room = width - len(line) - bool(line)\n"
        "            if room > 0:\n                line, word = (line + ' ' + word[:room]).strip(), word[room:]\n"
        "            lines.append(line)\n            line = ''\n"
        "        if line and len(line) + 1 + len(word) > width:\n            lines.append(line)\n            line = word\n"
        "        else:\n            line = (line + ' ' + word).strip()\n    return lines + [line] * bool(line)\n",
        ("'the quick brown fox jumps', 10", "'one two three four', 8"),
    ),
    Pair(
        "money",
        "def money(cents):\n    return f'{cents / 100}'\n",
        "def money(cents):\n    sign = '-' if cents < 0 else ''\n    return f'{sign}{abs(cents) / 100:,.2f}'\n",
        "def money(cents):\n    whole, rest = divmod(abs(cents), 100)\n    groups = []\n    while True:\n"
        "        whole, three = divmod(whole, 1000)\n        groups.append(f'{three:03}' if whole else str(three))\n"
        "        if not whole:\n            break\n"
        "    return '-' * (cents < 0) + ','.join(reversed(groups)) + f'.{rest:02}'\n",
        ("123450", "-5", "99"),
    ),
    Pair(
        "days",
        "def days(year, month):\n    return 30\n",
        "import calendar\n\n\ndef days(year, month):\n    return calendar.monthrange(year, month)[1]\n",
        "def days(year, month):\n    if not 1 <= month <= 12:\n        raise ValueError(month)\n"
        "    if month == 2:\n        return 29 if year % 4 == 0 and (year % 100 or year % 400 == 0) else 28\n"
        "    return 31 if month in (1, 3, 5, 7, 8, 10, 12) else 30\n",
        ("2024, 2", "2023, 7", "1900, 2"),
    ),
    Pair(
        "cleaned",
        "def cleaned(path):\n    return path\n",
        "import posixpath\n\n\ndef cleaned(path):\n    return posixpath.normpath(path)\n",
        "def cleaned(path):\n    root, found = path.startswith('/'), []\n    for part in path.split('/'):\n"
        "        if part == '..' and (root or found and found[-1] != '..'):\n            del found[-1:]\n"
        "        elif part not in ('', '.'):\n            found.append(part)\n"
        "    return '/' * root + '/'.join(found) or '.'\n",
        ("'a/./b/../c'", "'/x//y/..'"),
    ),
    Pair(
        "fields",
        "def fields(line):\n    return line.split(',')\n",
        "import csv\n\n\ndef fields(line):\n    return next(csv.reader([line]), [])\n",
        "def fields(line):\n    if not line:\n        return []\n    found, part, quoted, at = [], '', False, 0\n"
        "    while at < len(line):\n        char = line[at]\n        at += 1\n"
        "        if quoted and char == '\"' and line[at:at + 1] == '\"':\n            part += char\n            at += 1\n"
        "        elif char == '\"' and (quoted or not part):\n            quoted = not quoted\n"
        "        elif char == ',' and not quoted:\n            found.append(part)\n            part = ''\n"
        "        else:\n            part += char\n    return [*found, part]\n",
        ("'1,\"two, three\",4'", '\'"a ""b""",c\''),
    ),
    Pair(
        "depth",
        "def depth(tree):\n    return 1\n",
        "def depth(tree):\n    return 1 + max(map(depth, tree), default=0) if isinstance(tree, list) else 0\n",
        "def depth(tree):\n    levels, row = 0, [tree]\n    while any(isinstance(each, list) for each in row):\n"
        "        row = [inner for each in row if isinstance(each, list) for inner in each]\n        levels += 1\n"
        "    return levels\n",
        ("[1, [2, [3]]]", "[[], [4]]"),
    ),
    Pair(
        "recent",
        "def recent(keys, size):\n    return keys[:size]\n",
        "from collections import OrderedDict\n\n\ndef recent(keys, size):\n    kept = OrderedDict()\n"
        "    for key in keys:\n        kept[key] = True\n        kept.move_to_end(key)\n"
        "        if len(kept) > size:\n            kept.popitem(last=False)\n    return list(kept)\n",
        "def recent(keys, size):\n    found = []\n    for key in reversed(keys):\n"
        "        if key not in found and len(found) < size:\n            found.insert(0, key)\n    return found\n",
        ("['a', 'b', 'a', 'c'], 2", "[1, 2, 3, 1], 3"),
    ),
    Pair(
        "metres",
        "def metres(text):\n    return float(text[:-2])\n",
        "def metres(text):\n    for unit, factor in (('km', 1000), ('cm', 0.01), ('mm', 0.001), ('m', 1)):\n"
        "        if text.endswith(unit):\n            return float(text.removesuffix(unit)) * factor\n"
        "    raise ValueError(text)\n",
        "import re\n\n\ndef metres(text):\n    found = re.fullmatch(r'\\s*(-?[\\d.]+)\\s*(km|cm|mm|m)', text)\n"
        "    if not found:\n        raise ValueError(text)\n"
        "    return float(found[1]) * {'km': 1000.0, 'm': 1.0}.get(found[2], 0) or "
        "float(found[1]) / {'cm': 100, 'mm': 1000}.get(found[2], 1)\n",
        ("'3.5km'", "'120cm'", "'7m'"),
    ),
    Pair(
        "pages",
        "def pages(text):\n    return [int(part) for part in text.split(',')]\n",
        "def pages(text):\n    found = []\n    for part in text.split(','):\n"
        "        first, _, last = part.partition('-')\n"
        "        found.extend(range(int(first), int(last or first) + 1))\n    return found\n",
        "def pages(text):\n    def one(part):\n        ends = [int(each) for each in part.split('-')]\n"
        "        return list(range(ends[0], ends[-1] + 1))\n    return sum(map(one, text.split(',')), [])\n",
        ("'1-3,7'", "'4,9-11'"),
    ),
    Pair(
        "filled",
        "def filled(template, values):\n    return template\n",
        "import re\n\n\ndef filled(template, values):\n"
        "    return re.sub(r'\\{(\\w+)\\}', lambda found: str(values.get(found[1], found[0])), template)\n",
        "def filled(template, values):\n    for key, value in values.items():\n"
        "        template = template.replace('{' + key + '}', str(value))\n    return template\n",
        ("'Dear {name}, {n} left', {'name': 'Ann', 'n': 3}", "'{a}{b}', {'a': 'x'}"),
    ),
    Pair(
        "natural",
        "def natural(names):\n    return sorted(names)\n",
        "import re\n\n\ndef natural(names):\n"
        "    return sorted(names, key=lambda name: [(0, int(p), '') if p.isdigit() else (1, 0, p)\n"
        "                                           for p in re.findall(r'\\d+|\\D+', name)])\n",
        "import itertools\n\n\ndef natural(names):\n    def key(name):\n        parts = itertools.groupby(name, str.isdigit)\n"
        "        return tuple((0, int(''.join(p))) if d else (1, ''.join(p)) for d, p in parts)\n"
        "    found = []\n    for name in names:\n        at = sum(key(each) <= key(name) for each in found)\n"
        "        found.insert(at, name)\n    return found\n",
        ("['f10', 'f9', 'f1']", "['b2', 'a12', 'a3']"),
    ),
    Pair(
        "leap",
        "def leap(year):\n    return year % 4 == 0\n",
        "def leap(year):\n    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)\n",
        "import calendar\n\n\ndef leap(year):\n    return calendar.isleap(year)\n",
        ("2000", "1900", "2100"),
        "truth",
    ),
    Pair(
        "balanced",
        "def balanced(text):\n    return True\n",
        "def balanced(text):\n    open_ = 0\n    for char in text:\n        open_ += (char == '(') - (char == ')')\n"
        "        if open_ < 0:\n            return False\n    return open_ == 0\n",
        "import re\n\n\ndef balanced(text):\n    text = re.sub(r'[^()]', '', text)\n    while '()' in text:\n"
        "        text = text.replace('()', '')\n    return not text\n",
        ("'(a(b))'", "'(a))'", "')('"),
        "truth",
    ),
    Pair(
        "port",
        "def port(text):\n    return int(text)\n",
        "def port(text):\n    number = int(text)\n    if not 0 < number < 65536:\n"
        "        raise ValueError(f'no port: {text}')\n    return number\n",
        "def port(text):\n    if int(text) not in range(1, 65536):\n        raise ValueError('a port is less than 65536')\n"
        "    return int(text)\n",
        ("'70000'", "'8080'", "'0'"),
        "raises",
    ),
)
