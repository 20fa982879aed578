"""The page itself: put together from the package's files, with the headers that keep anything else from running in it."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import NamedTuple

_STYLE = "page.css"
# In this order, in one script.
_SCRIPTS = ("dom.js", "node.js", "history.js", "services.js", "page.js")


class Document(NamedTuple):
    """The page as it is sent, and its headers."""

    body: bytes
    headers: tuple[tuple[str, str], ...]


# For everything that is answered on the page's address. Nothing may be kept, framed or read by pages of others.
COMMON_HEADERS = (
    ("Cache-Control", "no-store"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("X-Frame-Options", "DENY"),
)


def read_document() -> Document:
    """Reads the files and puts them together: to be done once, at start."""
    folder = files(__package__) / "files"
    style = (folder / _STYLE).read_text(encoding="utf-8")
    script = "\n".join((folder / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    frame = (folder / "page.html").read_text(encoding="utf-8")
    body = frame.replace("/* style */", style, 1).replace("/* script */", script, 1)
    policy = "; ".join(
        (
            "default-src 'none'",
            f"style-src {_hash(_within(body, 'style'))}",
            f"script-src {_hash(_within(body, 'script'))}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            # No text can become markup: browsers that know this refuse innerHTML and its like.
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )
    headers = (*COMMON_HEADERS, ("Content-Security-Policy", policy), ("Cross-Origin-Opener-Policy", "same-origin"))
    return Document(body.encode(), headers)


def _within(page: str, tag: str) -> str:
    """The text of the only element of a kind, exactly as a browser hashes it."""
    _, _, rest = page.partition(f"<{tag}>")
    return rest.partition(f"</{tag}>")[0]


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
