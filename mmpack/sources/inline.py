"""URLs where the name of a picture would stand: ``data:image/png;base64,...`` holds it, ``file:///...`` is a path."""

from __future__ import annotations

import base64
import binascii
import urllib.parse

from mmpack.errors import Reason, SampleError


def inline_picture(name: str) -> bytes | None:
    """The bytes in a ``data:`` URL (RFC 2397); None if `name` is not one.

    Raises:
        SampleError: it is one, and what follows is not base64.

    >>> inline_picture("data:image/gif;base64,R0lGODlh"), inline_picture("a/b.gif")
    (b'GIF89a', None)
    """
    if name[:5].lower() != "data:":
        return None
    head, comma, content = name.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise SampleError(Reason.NOT_AN_IMAGE, "a data: URL without base64 content")
    try:
        return base64.b64decode("".join(urllib.parse.unquote(content).split()), validate=True)
    except (binascii.Error, ValueError):
        raise SampleError(Reason.NOT_AN_IMAGE, "a data: URL whose content is not base64") from None


def path_of(name: str) -> str:
    """`name` as a path; that of a ``file:`` URL (RFC 8089).

    Raises:
        SampleError: another URL. Nothing is fetched.

    >>> path_of("a/b%20c.png"), path_of("file:///a/b%20c.png")
    ('a/b%20c.png', '/a/b c.png')
    """
    scheme, separator, rest = name.partition("://")
    if not separator or not scheme.isalnum():
        return name
    if scheme.lower() == "file":
        return urllib.parse.unquote(rest.removeprefix("localhost"))
    detail = f"{name[:200]!r} is a URL, and nothing is fetched; store the picture and name its file"
    raise SampleError(Reason.IMAGE_MISSING, detail)


def short_name(name: str) -> str:
    """`name` for messages: a data: URL without its content."""
    return name.partition(",")[0] if name[:5].lower() == "data:" else name
