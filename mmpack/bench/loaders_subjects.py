"""One subject of the bench of loaders in a process of its own: ``python -m mmpack.bench.loaders_subjects NAME JSON``.

Each subject gives packs for ever, as the number of samples in each. What the peers share is here: the text in one call
of the tokenizer, our pictures, and for those that know no packing the window in the trainer's process.
"""

from __future__ import annotations

import io
import itertools
import json
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader, Dataset

from mmpack.bench.loaders_config import TILE_PX, TILE_TOKENS
from mmpack.bench.loaders_data import import_streaming, records
from mmpack.images import decode_image, image_size
from mmpack.tiling import TileSpec, make_tiling
from mmpack.window import stream_packs

Packs = Iterator[int]
PACKAGE = Path(__file__).parents[1]
SPEC = TileSpec(tile_size_px=TILE_PX, embeddings_per_tile=TILE_TOKENS, decode="fast")
TILING: Any = make_tiling("single", SPEC)
PROMPT = (  # what the template v1 writes, so that all have the same text
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions. USER: "
)
BATCH = 8  # samples that a peer's worker sends at once


def our_tile(data: bytes) -> torch.Tensor:
    """(3, S, S) uint8 by our decoder, reduced where that loses nothing."""
    width_px, height_px = image_size(data)
    grid = TILING.grid(width_px, height_px)
    rgb = decode_image(data, reduction=TILING.reduction(grid, width_px, height_px))
    return torch.from_numpy(TILING.cut(rgb, grid)[0])


def pillow_tile(data: bytes) -> torch.Tensor:
    """(3, S, S) float32 as training scripts make it: padded to a square, resized, scaled, normalised."""
    from PIL import Image, ImageOps

    picture = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    side = max(picture.size)
    square = Image.new("RGB", (side, side), SPEC.mean_color)
    square.paste(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
    pixels = np.asarray(square.resize((TILE_PX, TILE_PX), Image.Resampling.BICUBIC), dtype=np.float32) / 255.0
    normalised = (pixels - np.asarray(SPEC.mean, np.float32)) / np.asarray(SPEC.std, np.float32)
    return torch.from_numpy(normalised.transpose(2, 0, 1).copy())


class Text:
    """Token ids and labels of a record, in one call of the tokenizer."""

    def __init__(self, folder: str | None) -> None:
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder or PACKAGE / "demo_data" / "tokenizer")
        self._backend = self.tokenizer.backend_tokenizer

    def __call__(self, record: bytes) -> tuple[torch.Tensor, torch.Tensor]:
        talk = json.loads(record)["conversations"]
        before, _, question = talk[0]["value"].partition("<image>")
        texts = [PROMPT + before, f"{question} ASSISTANT: ", talk[1]["value"] + "</s>"]
        first, second, answer = (e.ids for e in self._backend.encode_batch_fast(texts, add_special_tokens=False))
        tokens = torch.tensor([1, *first, -200, *second, *answer])
        labels = torch.full_like(tokens, -100)
        labels[-len(answer) - 1 : -1] = tokens[-len(answer) :]
        return tokens, labels


def encoder(options: dict[str, Any], tile: Callable[[bytes], torch.Tensor] = our_tile) -> Callable[..., dict[str, Any]]:
    """(record, picture) -> tensors."""
    text = Text(options["tokenizer"])

    def encode(record: bytes, picture: bytes) -> dict[str, Any]:
        tokens, labels = text(record)
        return {"tokens": tokens, "labels": labels, "tile": tile(picture)}

    return encode


def together(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """A worker's message: few tensors, since each of them costs a file in shared memory."""
    return {
        "tiles": torch.stack([sample["tile"] for sample in samples]),
        "tokens": torch.cat([sample["tokens"] for sample in samples]),
        "labels": torch.cat([sample["labels"] for sample in samples]),
        "lengths": torch.tensor([len(sample["tokens"]) for sample in samples]),
    }


def packed(messages: Iterator[dict[str, Any]], options: dict[str, Any]) -> Packs:
    """Packs samples in the trainer's process, through the window that ours has."""
    held: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def lengths() -> Iterator[int]:
        number = itertools.count()
        for message in messages:
            sizes = message["lengths"].tolist()
            parts = zip(message["tokens"].split(sizes), message["labels"].split(sizes), message["tiles"], strict=True)
            for part, size in zip(parts, sizes, strict=True):
                held[next(number)] = part
                yield size - 1 + TILE_TOKENS

    for pack in stream_packs(lengths(), options["capacity"], window=options["window"]):
        samples = [held.pop(i) for i in pack]
        columns = [torch.cat([sample[k] for sample in samples]) for k in (0, 1)]
        columns.append(torch.stack([sample[2] for sample in samples]))
        yield len(pack)


def our_loader(options: dict[str, Any], **settings: Any) -> Any:
    """The training loader of the data module."""
    from mmpack.datamodules import EnergonMultiModalDataModule, MultiModalTaskEncoder

    task_encoder = MultiModalTaskEncoder(
        tokenizer=Text(options["tokenizer"]).tokenizer,
        image_processor=SPEC,
        packed_sequence_size=options["capacity"],
        num_image_embeddings_per_tile=TILE_TOKENS,
    )
    module = EnergonMultiModalDataModule(
        Path(options["data"]) / "energon",
        seq_length=options["capacity"],
        num_workers=options["num_workers"],
        packing_buffer_size=options["window"],
        task_encoder=task_encoder,
        **settings,
    )
    return module.train_dataloader()


def ours(options: dict[str, Any], **settings: Any) -> Packs:
    return _endless(our_loader(options, **settings))


def _endless(loader: Any) -> Packs:
    while True:  # a global plan is one epoch at a time
        for batch in loader:
            yield batch.num_samples


def mmpack(options: dict[str, Any]) -> Packs:
    return ours(options, num_streams=options["num_workers"])


def mmpack_plan(options: dict[str, Any]) -> Packs:
    return ours(options, order="global_plan")


def energon(options: dict[str, Any], tile: Callable[[bytes], torch.Tensor] = our_tile) -> Packs:
    from mmpack.energon.peer import energon_packs

    return energon_packs(
        Path(options["data"]) / "crude",
        encoder(options, tile),
        capacity=options["capacity"],
        buffer_size=options["window"],
        picture_tokens=TILE_TOKENS,
        num_workers=options["num_workers"],
    )


def energon_pillow(options: dict[str, Any]) -> Packs:
    return energon(options, pillow_tile)


class Files(Dataset[dict[str, Any]]):
    """Records and picture files, drawn for ever in a seeded order."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.folder = Path(options["data"]) / "images"
        self.records = [(json.dumps(record).encode(), record["image"]) for record in records(Path(options["data"]))]
        self.encode = encoder(options)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, Any]:
        record, name = self.records[random.Random(index).randrange(len(self.records))]
        return self.encode(record, (self.folder / name).read_bytes())


def _torch_loader(dataset: Any, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    while True:
        yield from DataLoader(
            dataset, batch_size=BATCH, num_workers=options["num_workers"], collate_fn=together, persistent_workers=True
        )


def torch_dataloader(options: dict[str, Any]) -> Packs:
    return packed(_torch_loader(Files(options), options), options)


def webdataset(options: dict[str, Any]) -> Packs:
    import webdataset as wds

    encode = encoder(options)
    shards = sorted(map(str, (Path(options["data"]) / "crude").rglob("*.tar")))
    dataset = wds.WebDataset(shards, resampled=True).shuffle(20).map(lambda s: encode(s["json"], s["0.jpg"]))
    return packed(_torch_loader(dataset, options), options)


def streaming(options: dict[str, Any]) -> Packs:
    module = import_streaming()
    encode = encoder(options)

    class Encoded(module.StreamingDataset):  # type: ignore[misc, name-defined]
        def __getitem__(self, at: int) -> Any:
            item = super().__getitem__(at)
            return encode(item["record"], item["picture"])

    dataset = Encoded(local=str(Path(options["data"]) / "mds"), shuffle=True, batch_size=BATCH)
    return packed(_torch_loader(dataset, options), options)


def litdata(options: dict[str, Any]) -> Packs:
    import litdata as lit

    encode = encoder(options)

    class Encoded(lit.StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            item = super().__getitem__(index)
            return encode(item["record"], item["picture"])

    dataset = Encoded(str(Path(options["data"]) / "lit"), shuffle=True)

    def messages() -> Iterator[dict[str, Any]]:
        loader = lit.StreamingDataLoader(
            dataset, batch_size=BATCH, num_workers=options["num_workers"], collate_fn=together
        )
        while True:
            yield from loader

    return packed(messages(), options)


def spdl(options: dict[str, Any]) -> Packs:
    from spdl.pipeline import PipelineBuilder

    files = Files(options)
    threads = options["num_workers"]
    builder = PipelineBuilder().add_source(itertools.count()).pipe(files.__getitem__, concurrency=threads)
    pipeline = builder.aggregate(BATCH).pipe(together).add_sink(4).build(num_threads=threads)

    def messages() -> Iterator[dict[str, Any]]:
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    return packed(messages(), options)


NAMES: dict[str, Callable[[dict[str, Any]], Packs]] = {
    "mmpack": mmpack,
    "mmpack_plan": mmpack_plan,
    "energon": energon,
    "energon_pillow": energon_pillow,
    "torch": torch_dataloader,
    "webdataset": webdataset,
    "streaming": streaming,
    "litdata": litdata,
    "spdl": spdl,
}


def tree() -> list[psutil.Process]:
    """This process and all below it."""
    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def tree_cpu_s() -> float:
    """CPU seconds of the tree so far, and of those processes of it that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime + sum(sum(process.cpu_times()[:2]) for process in tree())


def measure(packs: Packs, options: dict[str, Any]) -> dict[str, float]:
    """First pack, then CPU and time of `num_samples` behind the warm-up, and the memory of the tree."""
    begun = time.perf_counter()
    warmed = next(packs)
    first_s = time.perf_counter() - begun
    while warmed < options["warmup_samples"]:
        warmed += next(packs)
    cpu, started, count, num_packs = tree_cpu_s(), time.perf_counter(), 0, 0
    while count < options["num_samples"]:
        count += next(packs)
        num_packs += 1
    seconds, used = time.perf_counter() - started, tree_cpu_s() - cpu
    return {
        "cpu_ms_per_sample": 1000 * used / count,
        "samples_per_s": count / seconds,
        "first_pack_s": first_s,
        "memory_mb": sum(process.memory_full_info().pss for process in tree()) / 2**20,
        "samples_per_pack": count / num_packs,
    }


def stages(options: dict[str, Any]) -> dict[str, float]:
    """CPU of the single stages on the same samples, one process, nothing between them: their sum is the limit."""
    data = Path(options["data"])
    found = records(data)[:600]
    texts = [json.dumps(record).encode() for record in found]
    pictures = [(data / "images" / record["image"]).read_bytes() for record in found]
    text = Text(options["tokenizer"])
    sizes = [image_size(picture) for picture in pictures]
    grids = [TILING.grid(*size) for size in sizes]
    parts = [TILING.reduction(grid, *size) for grid, size in zip(grids, sizes, strict=True)]
    decoded: list[Any] = []

    def per_sample(work: Callable[[int], Any]) -> float:
        begun = time.process_time()
        for i in range(len(found)):
            work(i)
        return 1000 * (time.process_time() - begun) / len(found)

    timed = {"header_ms": per_sample(lambda i: image_size(pictures[i]))}
    timed["decode_ms"] = per_sample(lambda i: decoded.append(decode_image(pictures[i], reduction=parts[i])))
    timed["resize_ms"] = per_sample(lambda i: TILING.cut(decoded[i], grids[i]))
    timed["text_ms"] = per_sample(lambda i: text(texts[i]))
    return {"cpu_ms_per_sample": sum(timed.values()), **timed}


def main(name: str, text: str) -> None:
    """Prints the metrics of one subject."""
    options = json.loads(text)
    torch.set_num_threads(1)
    print(json.dumps(stages(options) if name == "limit" else measure(NAMES[name](options), options)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
