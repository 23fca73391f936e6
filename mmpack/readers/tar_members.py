"""The members of a tar archive, one header at a time, past damage where that is possible.

Nothing is ever extracted: a member is its name, its kind, and where its content stands. POSIX ustar and pax headers
and GNU's long names are read (POSIX.1-2001, pax; GNU tar manual, "Basic Tar Format").
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

BLOCK_BYTES = 512
_MAX_NAME_BYTES = 1 << 16
_MAX_PAX_BYTES = 1 << 20
_SEARCH_BYTES = 1 << 16
_KINDS = {
    b"0": "file", b"\0": "file", b"7": "file",
    b"1": "hard link", b"2": "symbolic link", b"3": "device", b"4": "device", b"5": "folder", b"6": "pipe",
    b"S": "sparse file",
}  # fmt: skip
_WITH_CONTENT = ("file", "sparse file", "unknown kind")


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One member. Only a ``file`` has content that can be read."""

    name: str
    kind: str
    start: int  # of its headers
    content: int
    size: int

    @property
    def end(self) -> int:
        """Where the next header stands."""
        return self.content + (
            -(-self.size // BLOCK_BYTES) * BLOCK_BYTES if self.kind in ("file", "sparse file") else 0
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Damage:
    """A stretch of the archive that could not be read."""

    start: int
    what: str
    fatal: bool  # nothing was read behind it


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """Something odd that cost no member."""

    what: str


def scan_members(file: IO[bytes], start: int, end: int) -> Iterator[Member | Damage | Note]:
    """The members whose headers stand from `start` on, up to `end`, which is at most the file's size.

    Behind a damaged header the search goes on at the next block that is a header with the ``ustar`` magic. A member
    that is cut off by `end` is damage. Zero blocks end the archive, unless another archive stands right behind them.
    """
    at = start
    while at < end:
        block = _read(file, at, BLOCK_BYTES)
        if block is None or at + BLOCK_BYTES > end:
            yield Damage(start=at, what="the archive is cut inside a header", fatal=True)
            return
        if not any(block):
            found = _behind_zeros(file, at, end)
            if found is None:
                return
            at, header = found
            if not header:
                yield Note(what=f"other data stands behind the end of the archive, at byte {at}")
                return
            yield Note(what=f"another archive stands behind the end of the first, at byte {at}")
            continue
        member = _member(file, at, block, end)
        if isinstance(member, Member) and _fits(member, end):
            yield member
            at = member.end
            continue
        next_at = _next_header(file, at + BLOCK_BYTES, end)
        if isinstance(member, str):
            what = member
        else:
            how = "the archive is cut inside" if next_at is None else "a wrong size in the header of"
            what = f"{how} member {member.name[:200]!r}"
        yield Damage(start=at, what=what, fatal=next_at is None)
        if next_at is None:
            return
        at = next_at


def looks_like_tar(block: bytes) -> bool:
    """Whether a file that begins with `block` is a tar archive: with a header, or the zeros of an empty one."""
    return len(block) >= BLOCK_BYTES and (not any(block[:BLOCK_BYTES]) or _checksum_is_right(block[:BLOCK_BYTES]))


def _fits(member: Member, end: int) -> bool:
    # The padding of the last member may be missing; its content may not.
    return member.kind not in _WITH_CONTENT or member.content + member.size <= end


def _read(file: IO[bytes], at: int, size: int) -> bytes | None:
    file.seek(at)
    data = file.read(size)
    return data if len(data) == size else None


def _member(file: IO[bytes], start: int, block: bytes, end: int) -> Member | str:
    """The member whose headers begin at `start`, or what is wrong with them."""
    name: str | None = None
    size: int | None = None
    sparse = False
    at = start
    while True:
        if not _checksum_is_right(block):
            return "a damaged header" if at == start else "a damaged header behind a long name"
        header_size = _number(block[124:136])
        if header_size is None:
            return "a header whose size is no number"
        kind = block[156:157]
        at += BLOCK_BYTES
        if kind not in (b"x", b"g", b"L", b"K"):
            break
        limit = _MAX_NAME_BYTES if kind in b"LK" else _MAX_PAX_BYTES
        extra = _read(file, at, header_size) if header_size <= limit else None
        if extra is None:
            return "a long name or pax header that is cut or too large"
        if kind == b"L":
            name = _text(extra.partition(b"\0")[0])
        elif kind == b"x":
            with contextlib.suppress(ValueError):
                fields = _pax_fields(extra)
                name = _text(fields[b"path"]) if b"path" in fields else name
                size = int(fields[b"size"]) if b"size" in fields else size
                sparse = any(field.startswith(b"GNU.sparse.") for field in fields)
        at += -(-header_size // BLOCK_BYTES) * BLOCK_BYTES
        following = _read(file, at, BLOCK_BYTES) if at + BLOCK_BYTES <= end else None
        if following is None:
            return "a long name or pax header without a member behind it"
        block = following
    plain = _name(block)
    name = plain if name is None else name
    kind_name = "sparse file" if sparse else _KINDS.get(kind, "unknown kind")
    if kind == b"\0" and name.endswith("/"):
        kind_name = "folder"
    more: bytes | None = block if kind == b"S" and block[482] else None
    while more is not None:  # GNU's sparse maps go on in further blocks
        more = _read(file, at, BLOCK_BYTES)
        at += BLOCK_BYTES
        more = more if more is not None and more[504] else None
    return Member(
        name=name, kind=kind_name, start=start, content=at, size=header_size if size is None else max(size, 0)
    )


def _checksum_is_right(block: bytes) -> bool:
    """Whether the header's sum of bytes is what it says, counted as unsigned or, by some old programs, signed."""
    said = _number(block[148:156])
    if said is None:
        return False
    unsigned = sum(block[:148]) + 256 + sum(block[156:BLOCK_BYTES])
    if said == unsigned:
        return True
    high = sum(byte > 127 for byte in block[:148] + block[156:])
    return said == unsigned - 256 * high


def _number(field: bytes) -> int | None:
    """Octal digits, or base 256 if the first bit is set."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big") if field[0] == 0x80 else None
    digits = field.split(b"\0", 1)[0].strip()
    try:
        return int(digits, 8) if digits else 0
    except ValueError:
        return None


def _name(block: bytes) -> str:
    name = _text(block[:100].split(b"\0", 1)[0])
    prefix = _text(block[345:500].split(b"\0", 1)[0]) if block[257:263] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def _pax_fields(data: bytes) -> dict[bytes, bytes]:
    """Records of a pax header: ``LENGTH KEY=VALUE`` and a line feed. Raises ValueError if it is none."""
    fields = {}
    at = 0
    while at < len(data) and data[at]:
        length = int(data[at : data.index(b" ", at)])
        if length < 5:
            raise ValueError("a record of no length")
        key, equals, value = data[data.index(b" ", at) + 1 : at + length - 1].partition(b"=")
        if not equals:
            raise ValueError("a record without a value")
        fields[key] = value
        at += length
    return fields


def _behind_zeros(file: IO[bytes], at: int, end: int) -> tuple[int, bool] | None:
    """Where something follows the zero blocks at `at`, and whether that is a header; None if nothing does."""
    while at < end:
        file.seek(at)
        data = file.read(min(_SEARCH_BYTES, end - at))
        if not data:
            return None
        if any(data):
            first = next(i for i in range(0, len(data), BLOCK_BYTES) if any(data[i : i + BLOCK_BYTES]))
            block = _read(file, at + first, BLOCK_BYTES) if at + first + BLOCK_BYTES <= end else None
            return at + first, block is not None and _is_ustar(block)
        at += len(data)
    return None


def _is_ustar(block: bytes) -> bool:
    return block[257:262] == b"ustar" and _checksum_is_right(block)


def _next_header(file: IO[bytes], at: int, end: int) -> int | None:
    """The next block from `at` on that is a header with the ustar magic."""
    while at + BLOCK_BYTES <= end:
        file.seek(at)
        data = file.read(min(_SEARCH_BYTES, end - at))
        if len(data) < BLOCK_BYTES:
            return None
        for i in range(0, len(data) - BLOCK_BYTES + 1, BLOCK_BYTES):
            if data[i + 257 : i + 262] == b"ustar" and _checksum_is_right(data[i : i + BLOCK_BYTES]):
                return at + i
        at += len(data) - len(data) % BLOCK_BYTES
    return None
