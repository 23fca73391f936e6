"""Records of a LLaVA file, `.json` (one list) or `.jsonl`, as an indexed data set: read when they are drawn."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from mmpack.errors import ConfigError, Reason, SampleError, nearest
from mmpack.indexed.pictures import PictureStore
from mmpack.indexed.record_index import index_records
from mmpack.open_file import OpenFile
from mmpack.sample import IMAGE_MARK, Conversation, Picture
from mmpack.sources import SOURCES, ParsedRecord, RecordParser, detect, parser_for
from mmpack.sources.inline import inline_picture, short_name

MISSING_IMAGE_POLICIES = ("skip", "raise")
_IMG_TAG = re.compile(r'<img src="([^"]+)">')
_EDGE_BYTES = 1 << 16


class LlavaFile:
    """The records of the file at `path`, by number.

    Args:
        path: a JSON list of records, or one record a line.
        pictures: where they lie.
        name: what counters call the data set; None for the file's name without its ending.
        record_format: a name of `mmpack.sources.SOURCES`; "auto" for what each record looks like; "img_tags" for
            LLaVA's records that name their pictures as ``<img src="...">`` within the text, as NeMo reads `.jsonl`.
        missing_image: "skip" leaves out a sample whose picture is not there, and counts it; "raise" stops.

    Raises:
        ConfigError: a file that is neither, or an unknown format or policy.
    """

    def __init__(
        self,
        path: Path,
        *,
        pictures: PictureStore,
        name: str | None = None,
        record_format: str = "llava",
        missing_image: str = "skip",
    ) -> None:
        if missing_image not in MISSING_IMAGE_POLICIES:
            raise ConfigError(f"missing_image={missing_image!r}; {nearest(missing_image, MISSING_IMAGE_POLICIES)}")
        self.path, self.pictures = path, pictures
        self.name = path.stem if name is None else name
        self.record_format, self.missing_image = record_format, missing_image
        self._parse = _parser(record_format)
        self._index = index_records(path)
        self._file = OpenFile(path)

    def __len__(self) -> int:
        return len(self._index)

    def key(self, index: int) -> str:
        """The record's number, since ids need not differ.

        A converted data set has the same keys.
        """
        return f"{index:08d}"

    def sample(self, index: int) -> Conversation:
        """Record number `index` with its pictures, still compressed.

        Raises:
            SampleError: the record is broken, or a picture is missing ("skip").
            ConfigError: a picture is missing ("raise").
        """
        key = self.key(index)
        try:
            parsed = self._parse(self._record(index))
            pictures = tuple(Picture(name=short_name(n), data=self._picture(n)) for n in parsed.image_names)
        except SampleError as error:
            if error.reason is Reason.IMAGE_MISSING and self.missing_image == "raise":
                raise ConfigError(
                    f"{self.path}: record {key}: {error.detail}; put it there, mend image_folder, or leave such "
                    "samples out with missing_image='skip'"
                ) from None
            raise error.with_key(key) from None
        return Conversation(key=key, turns=parsed.turns, pictures=pictures, source=self.name)

    def _record(self, index: int) -> object:
        start, size = self._index.span(index)
        content = self._file.read(start, size).strip(b" \t\r\n")
        try:
            return json.loads(content.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            what = f"column {error.colno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)
            raise SampleError(Reason.BROKEN_JSON, what) from None

    def _picture(self, name: str) -> bytes:
        inline = inline_picture(name)
        return self.pictures.read(name) if inline is None else inline

    def describe(self) -> str:
        """Format, number of records, and a hash of where they lie and of the file's two ends."""
        digest = hashlib.sha256(self._index.starts.tobytes())
        size = int(self._index.starts[-1])
        for start in (0, max(0, size - _EDGE_BYTES)):
            digest.update(self._file.read(start, _EDGE_BYTES))
        return (
            f"{self.record_format} {len(self)} records {digest.hexdigest()[:16]}, pictures: {self.pictures.describe()}"
        )


def _parser(record_format: str) -> RecordParser:
    if record_format == "auto":
        return _parse_any
    if record_format == "img_tags":
        return _parse_img_tags
    if record_format not in SOURCES:
        names = [*SOURCES, "auto", "img_tags"]
        raise ConfigError(f"record_format={record_format!r} is unknown; {nearest(record_format, names)}")
    return parser_for(record_format)


def _parse_any(record: object) -> ParsedRecord:
    return SOURCES.get(detect(record) or "llava")(record)


def _parse_img_tags(record: object) -> ParsedRecord:
    """LLaVA's record; every ``<img src="a/b.jpg">`` in a turn is the picture ``b.jpg``."""
    if isinstance(record, dict) and not record.get("image") and isinstance(record.get("conversations"), list):
        turns, names = [], []
        for turn in record["conversations"]:
            if isinstance(turn, dict) and isinstance(turn.get("value"), str):
                names += [name.rsplit("/", 1)[-1] for name in _IMG_TAG.findall(turn["value"])]
                turn = turn | {"value": _IMG_TAG.sub(IMAGE_MARK, turn["value"])}
            turns.append(turn)
        record = record | {"conversations": turns, "image": names}
    return SOURCES.get("llava")(record)
