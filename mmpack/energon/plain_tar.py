"""The plainest of tar headers, read without the tarfile module: what `mmpack convert` and most tools write.

Everything unusual (long names, links, sparse files, sizes in binary, a checksum that is off) is left to tarfile.
"""

from __future__ import annotations

_BLOCK = 512
_FILE = (b"0", b"\0")


def plain_members(data: bytes) -> list[tuple[str, int, int]] | None:
    """(name, start, size) of each file in a stretch of a tar archive; None if tarfile should read it instead.

    The layout is that of POSIX.1-1988 (ustar); GNU tar writes the same for names of up to 99 ASCII characters.
    """
    members: list[tuple[str, int, int]] = []
    at, end = 0, len(data)
    while at < end:
        header = data[at : at + _BLOCK]
        if len(header) < _BLOCK or header[156:157] not in _FILE or header[257:262] != b"ustar" or any(header[345:500]):
            return None
        name = header[:100].partition(b"\0")[0]
        size_text, sum_text = header[124:136].strip(b"\0 "), header[148:156].strip(b"\0 ")
        if not (name.isascii() and size_text.isdigit() and sum_text.isdigit()) or name.endswith(b"/"):
            return None
        try:
            size, checksum = int(size_text, 8), int(sum_text, 8)
        except ValueError:
            return None
        if checksum != sum(header) - sum(header[148:156]) + 8 * 32:  # the sum's own place counts as blanks
            return None
        start = at + _BLOCK
        at = start + -(-size // _BLOCK) * _BLOCK
        if at > end:
            return None
        members.append((name.decode("ascii"), start, size))
    return members
