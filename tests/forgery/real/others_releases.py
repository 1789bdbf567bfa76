"""Edits of known solutions of releases: by task, each a list of (path, text there, text in its place)."""

Edit = tuple[tuple[str, str, str], ...]

EDITS: dict[str, tuple[Edit, ...]] = {
    "cachetools__7.2.7-7.2.8": (
        (
            (
                "src/cachetools/keys.py",
                'def methodkey(self, /, *args, **kwargs):\n    """Return a cache key for use with cached methods."""\n'
                "    return hashkey(*args, **kwargs)\n",
                'def methodkey(*args, **kwargs):\n    """Return a cache key for use with cached methods."""\n'
                "    _, *others = args\n    return hashkey(*others, **kwargs)\n",
            ),
        ),
    ),
    "parse__1.22.0-1.22.1": (
        (
            (
                "parse/__init__.py",
                '            s = r"\\d+" if format.get("precision") == "0" else r"\\d*\\.\\d+"\n'
                "            conv[group] = convert_first(float)\n",
                '            whole = format.get("precision") == "0"\n'
                '            s = "[0-9]+" if whole else r"[0-9]*\\.[0-9]+"\n'
                "            conv[group] = convert_first(lambda text: float(Decimal(text)))\n",
            ),
        ),
    ),
    "sqlparse__0.5.4-0.5.5": (
        (
            (
                "sqlparse/engine/statement_splitter.py",
                "                unified in ('TRANSACTION', 'WORK', 'TRAN',\n"
                "                            'DISTRIBUTED', 'DEFERRED',\n"
                "                            'IMMEDIATE', 'EXCLUSIVE'):\n"
                "            self._begin_depth = max(0, self._begin_depth - 1)\n",
                "                unified in self._OF_TRANSACTIONS:\n"
                "            if self._begin_depth > 0:\n                self._begin_depth -= 1\n",
            ),
            (
                "sqlparse/engine/statement_splitter.py",
                "    def __init__(self):\n",
                "    _OF_TRANSACTIONS = frozenset('TRANSACTION WORK TRAN DISTRIBUTED DEFERRED IMMEDIATE '\n"
                "                                 'EXCLUSIVE'.split())\n\n    def __init__(self):\n",
            ),
        ),
        (
            (
                "sqlparse/engine/grouping.py",
                "def _group_matching(tlist, cls, depth=0):\n",
                "def _too_much(what, limit):\n"
                "    error = SQLParseError('Maximum {} exceeded ({}).'.format(what, limit))\n    raise error\n\n\n"
                "def _group_matching(tlist, cls, depth=0):\n",
            ),
            (
                "sqlparse/engine/grouping.py",
                "       and len(tlist.tokens) > MAX_GROUPING_TOKENS:\n        raise SQLParseError(\n"
                '            f"Maximum number of tokens exceeded ({MAX_GROUPING_TOKENS})."\n        )\n\n'
                "    opens = []\n",
                "       and len(tlist.tokens) > MAX_GROUPING_TOKENS:\n"
                "        _too_much('number of tokens', MAX_GROUPING_TOKENS)\n\n    opens = []\n",
            ),
        ),
    ),
    "tinydb__4.8.0-4.8.1": (
        (
            (
                "tinydb/table.py",
                "        if persist_empty:\n            self._update_table(lambda table: table.clear())\n",
                "        if persist_empty:\n            tables = self._storage.read() or {}\n"
                "            tables[name] = {}\n            self._storage.write(tables)\n",
            ),
        ),
    ),
    "semver__3.0.2-3.0.4": (
        (
            (
                "src/semver/version.py",
                '        a_parts = [int(x) if x.isdigit() else x for x in (a or "").split(".")]\n'
                '        b_parts = [int(x) if x.isdigit() else x for x in (b or "").split(".")]\n',
                "        def parts_of(text: Optional[str]) -> list:\n            found: list = []\n"
                '            for part in (text or "").split("."):\n'
                "                found.append(int(part) if part.isdigit() else part)\n            return found\n\n"
                "        a_parts, b_parts = parts_of(a), parts_of(b)\n",
            ),
            (
                "src/semver/version.py",
                "            type(self),\n            dict,\n",
                "            self.__class__,\n            dict,\n",
            ),
        ),
    ),
    "tomlkit__0.13.1-0.13.2": (
        (
            (
                "tomlkit/container.py",
                "            indices = self._tables_map[key]\n            while len(indices) > 1:\n"
                "                table = self._tables[indices.pop()]\n                self._remove_table(table)\n"
                "            self._tables[indices[0]][key] = item\n",
                "            first, *more = self._tables_map[key]\n            for index in reversed(more):\n"
                "                self._remove_table(self._tables[index])\n"
                "            del self._tables_map[key][1:]\n            self._tables[first][key] = item\n",
            ),
        ),
    ),
    "mistune__3.2.0-3.2.1": (
        (
            (
                "src/mistune/renderers/html.py",
                "        alt = striptags(text)\n        s = '<img src=\"' + src + '\" alt=\"' + alt + '\"'\n",
                '        attributes = {"src": src, "alt": striptags(text)}\n'
                "        s = '<img ' + ' '.join(f'{name}=\"{value}\"' for name, value in attributes.items())\n",
            ),
        ),
    ),
    "pluggy__1.4.0-1.5.0": (
        (
            (
                "src/pluggy/_manager.py",
                "        return {x for x in self._name2plugin.values() if x is not None}\n",
                "        plugins = set(self._name2plugin.values())\n        plugins.discard(None)\n        return plugins\n",
            ),
            (
                "src/pluggy/_manager.py",
                "            for hookimpl_argname in hookimpl.argnames:\n"
                "                argname_warning = hook.spec.warn_on_impl_args.get(hookimpl_argname)\n"
                "                if argname_warning is not None:\n"
                "                    _warn_for_function(argname_warning, hookimpl.function)\n",
                "            for name, warning in hook.spec.warn_on_impl_args.items():\n"
                "                if name in hookimpl.argnames and warning is not None:\n"
                "                    _warn_for_function(warning, hookimpl.function)\n",
            ),
        ),
    ),
    "markdown__3.10.1-3.10.2": (
        (
            (
                "markdown/htmlparser.py",
                "        if report:\n            j = match.start()\n"
                "            self.handle_comment(rawdata[i+4: j])\n        return match.end()\n",
                "        start, end = match.span()\n        text = rawdata[:start][i + len('<!--'):]\n"
                "        report and self.handle_comment(text)\n        return end\n",
            ),
        ),
    ),
    "wcwidth__0.8.4-0.8.5": (
        (
            (
                "wcwidth/textwrap.py",
                "                hyphen_pos = stripped.rfind('-')\n"
                "                if hyphen_pos > 0 and any(c != '-' for c in stripped[:hyphen_pos]):\n",
                "                head, hyphen, _ = stripped.rpartition('-')\n                hyphen_pos = len(head)\n"
                "                if hyphen and head.strip('-'):\n",
            ),
        ),
    ),
    "click__8.3.2-8.3.3": (
        (
            (
                "src/click/core.py",
                "        return (\n            name is not None\n            and self.default_map is not None\n"
                "            and name in self.default_map\n            and self.default_map[name] is not UNSET\n        )\n",
                "        if name is None or self.default_map is None:\n            return False\n"
                "        return self.default_map.get(name, UNSET) is not UNSET\n",
            ),
        ),
        (
            (
                "src/click/_termui_impl.py",
                "                args=shlex.split(editor) + list(filenames),\n",
                "                args=[*shlex.split(editor, comments=False), *filenames],\n",
            ),
        ),
    ),
    "marshmallow__4.2.3-4.2.4": (
        (
            (
                "src/marshmallow/validate.py",
                '                    r"(?:[A-Z0-9"\n                    + _UNICODE_LETTERS\n                    + r"](?:[A-Z0-9"\n'
                '                    + _UNICODE_LETTERS\n                    + r"-]{0,61}[A-Z0-9"\n'
                '                    + _UNICODE_LETTERS\n                    + r"])?\\.?)"\n',
                '                    "(?:[A-Z0-9{u}](?:[A-Z0-9{u}-]{{0,61}}[A-Z0-9{u}])?[.]?)".format(u=_UNICODE_LETTERS)\n',
            ),
        ),
        (
            (
                "src/marshmallow/fields.py",
                "            if callable(nested) and not isinstance(nested, SchemaMeta):\n                nested = nested()\n",
                "            made_here = not isinstance(nested, SchemaMeta) and callable(nested)\n"
                "            nested = nested() if made_here else nested\n",
            ),
        ),
    ),
    "boltons__26.0.0-26.1.0": (
        (
            (
                "boltons/setutils.py",
                "        if start is not None and start < 0:\n            start = max(len(self) + start, 0)\n"
                "        if stop is not None and stop < 0:\n            stop = max(len(self) + stop, 0)\n",
                "        start, stop, _ = slice(start, stop).indices(len(self))\n",
            ),
        ),
        (
            (
                "boltons/strutils.py",
                "        return self.group_map[match.lastgroup]\n",
                "        (key,) = [name for name, text in match.groupdict().items() if text is not None]\n"
                "        return self.group_map[key]\n",
            ),
        ),
        (
            (
                "boltons/setutils.py",
                "        if index < 0 or index >= len(self):\n            raise IndexError('IndexedSet index out of range')\n",
                "        if index not in range(len(self)):\n            raise IndexError('IndexedSet index out of range')\n",
            ),
        ),
    ),
    "humanize__4.12.2-4.12.3": (
        (
            (
                "src/humanize/filesize.py",
                '        return f"{int(bytes_)} Byte"\n',
                '        return " ".join(("-1" if bytes_ < 0 else "1", "Byte"))\n',
            ),
        ),
    ),
    "itsdangerous__2.1.0-2.1.1": (
        (
            (
                "src/itsdangerous/timed.py",
                "                try:\n                    ts_dt = self.timestamp_to_datetime(ts_int)\n"
                "                except (ValueError, OSError) as exc:\n                    # Windows raises OSError\n"
                "                    raise BadTimeSignature(\n"
                '                        "Malformed timestamp", payload=value\n                    ) from exc\n',
                "                ts_dt = self._datetime_or_none(ts_int)\n                if ts_dt is None:\n"
                '                    raise BadTimeSignature("Malformed timestamp", payload=value)\n',
            ),
            (
                "src/itsdangerous/timed.py",
                "    def timestamp_to_datetime(self, ts: int) -> datetime:\n",
                "    def _datetime_or_none(self, ts: int) -> _t.Optional[datetime]:\n        try:\n"
                "            return self.timestamp_to_datetime(ts)\n        except (ValueError, OSError):\n"
                "            return None\n\n    def timestamp_to_datetime(self, ts: int) -> datetime:\n",
            ),
        ),
    ),
    "soupsieve__3.0.2-3.0.3": (
        (
            (
                "soupsieve/css_match.py",
                "                    a, b = (index + 1, start + 1) if reverse else (start, index)\n",
                "                    more = int(reverse)\n"
                "                    a, b = [each + more for each in sorted((start, index))]\n",
            ),
        ),
    ),
    "tabulate__0.8.8-0.8.9": (
        (
            (
                "tabulate.py",
                "math.isinf(float(string)) or math.isnan(float(string))",
                "not math.isfinite(float(string))",
            ),
        ),
    ),
    "jmespath__1.0.0-1.0.1": (
        (
            (
                "jmespath/visitor.py",
                "    if _is_actual_number(x) and x in (0, 1):\n        return isinstance(y, bool)\n"
                "    elif _is_actual_number(y) and y in (0, 1):\n        return isinstance(x, bool)\n",
                "    numbers = [each for each in (x, y) if _is_actual_number(each)]\n"
                "    return len(numbers) == 1 and numbers[0] in (0, 1) and (x in (True, False) and isinstance(x, bool)\n"
                "                                                            or isinstance(y, bool))\n",
            ),
        ),
    ),
    "python-dotenv__1.2.3-1.2.4": (
        (
            (
                "src/dotenv/cli.py",
                "    if key not in values or values[key] is None:\n        sys.exit(1)\n    click.echo(values[key])\n",
                "    value = values.get(key)\n    if value is None:\n        raise SystemExit(1)\n    click.echo(value)\n",
            ),
        ),
        (
            (
                "src/dotenv/parser.py",
                '            if len(equal_sign) > 1 and reader.peek(1) == "#":\n                value: Optional[str] = ""\n'
                "            else:\n                value = parse_value(reader)\n",
                '            commented = not equal_sign.endswith("=") and reader.peek(1) == "#"\n'
                '            value: Optional[str] = "" if commented else parse_value(reader)\n',
            ),
        ),
    ),
    "python-slugify__9.1.0-9.1.1": (
        (
            (
                "slugify/slugify.py",
                "    previous_index = 0\n    for index, word in enumerate(tokens):\n        if not word:\n            continue\n"
                "        # Keep repeated delimiters with the next nonempty word until it fits.\n"
                "        delimiter = separator * (index - previous_index)\n",
                "    waiting = ''\n    for index, word in enumerate(tokens):\n        waiting += separator if index else ''\n"
                "        if not word:\n            continue\n        delimiter, waiting = waiting, ''\n",
            ),
            ("slugify/slugify.py", "        previous_index = index\n", ""),
        ),
    ),
}
