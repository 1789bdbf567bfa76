"""Writes a report as one HTML file. Its other pages are texts in it, which its script shows by the part of
the address after `#`."""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

from markupsafe import escape

from orchard.page.folder import STATIC, Folder, WrittenReport

_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
_MAIN = re.compile(r"<main [^>]*>(.*)</main>", re.DOTALL)
_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
_SHEET = re.compile(r'<link rel="stylesheet"[^>]*>')
_SCRIPT = re.compile(r"<script src=[^>]*></script>")
_TYPES = {".svg": "svg+xml", ".png": "png", ".jpeg": "jpeg", ".webp": "webp", ".gif": "gif"}
"""Subtypes of pictures by the ending of their files."""


class OneFile(Folder):
    """Keeps the files of a folder, and writes one of them all at the end."""

    def begin(self, rollouts: Sequence[str]) -> None:
        self._kept: dict[str, bytes] = {}
        super().begin(rollouts)

    def finish(self) -> WrittenReport:
        """Writes the file and returns the report's counts. Raises OSError."""
        made = super().finish()
        self._write(self._out, self._whole().encode())
        return replace(made, files=1, bytes=self._bytes)

    def _put(self, name: str, body: bytes) -> None:
        self._kept[name] = body

    def _link(self, file: str, mark: str) -> str:
        kind = _TYPES.get(PurePath(file).suffix)
        if kind:
            return f"data:image/{kind};base64,{base64.b64encode(self._kept[file]).decode()}"
        return f"#{file}" + (f"!{mark[1:]}" if mark else "")

    def _whole(self) -> str:
        style, script = (self._kept[name].decode() for name in STATIC[:2])
        front = self._kept["index.html"].decode()
        sources = f"script-src {_hashed(script)}; style-src {_hashed(style)}; img-src data:"
        policy = f"default-src 'none'; base-uri 'none'; form-action 'none'; {sources}"
        front = _POLICY.sub(f'<meta http-equiv="Content-Security-Policy" content="{policy}">', front)
        front = _SHEET.sub(lambda _: f"<style>{style}</style>", front)
        front = _SCRIPT.sub("", front)
        told = escape(self._kept["secrets.txt"].decode())
        pages = [_page("secrets.txt", "Masked keys", f'<pre class="output">{told}</pre>')]
        for name, kept in self._kept.items():
            if name.endswith(".html"):
                html = kept.decode()
                title, main = _TITLE.search(html), _MAIN.search(html)
                assert title and main, "every page has the same frame"
                pages.append(_page(name, title[1], main[1]))
        body, _, end = front.rpartition("</body>")
        return "\n".join([body, *pages, f"<script>{script}</script>", "</body>" + end])


def _page(name: str, title: str, main: str) -> str:
    """A page as a text that browsers neither run nor show. Only the page's own script ends `</script>`:
    texts of others are escaped."""
    return f'<script type="text/plain" data-page="{escape(name)}" data-title="{title}">{main}</script>'


def _hashed(text: str) -> str:
    """Source expression that allows an inline script or style by its hash."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
