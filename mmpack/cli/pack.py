"""``mmpack pack``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from mmpack.cli.show import print_json, print_table, progress, say
from mmpack.errors import ConfigError, nearest
from mmpack.offline import PackConfig, PackedStore, PackReport, check_micro_batch_size, pack_dataset
from mmpack.offline.chat import ChatTokens
from mmpack.offline.nemo_rows import write_nemo_rows
from mmpack.offline.records import PromptResponse
from mmpack.plan import packed_global_batch_size

# of prompt-response records; add_bos is a field of PackConfig as well, for conversations, and goes to both
FORM_OPTIONS = tuple(field.name for field in fields(PromptResponse) if field.name != "add_bos")


def build_config(src: Path, dst: Path, packed_sequence_size: int, given: Mapping[str, Any]) -> PackConfig:
    """The configuration, from the options that were given on the command line (None: not given)."""
    options = {name: value for name, value in given.items() if value is not None}
    form = {name: options.pop(name) for name in FORM_OPTIONS if name in options}
    allowed = [field.name for field in fields(PackConfig) if field.name not in ("input_path", "output_path", "form")]
    for name in options:
        if name not in allowed:
            raise ConfigError(f"no option {name!r}; {nearest(name, [*allowed, *FORM_OPTIONS])}")
    if "chat_tokens" in options:
        options["chat_tokens"] = ChatTokens.of(options["chat_tokens"])
    if "add_bos" in options:
        form["add_bos"] = options["add_bos"]
    return PackConfig(
        input_path=src,
        output_path=dst,
        packed_sequence_size=packed_sequence_size,
        form=PromptResponse(**form),
        **options,
    )


def load_tokenizer(folder: Path) -> Any:
    """A tokenizer of transformers from a local folder. Raises ConfigError if there is none."""
    from transformers import AutoTokenizer

    if not folder.is_dir():
        raise ConfigError(f"--tokenizer {folder} is not a folder; give one with a tokenizer.json")
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers raises many kinds for a folder without a usable tokenizer
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"--tokenizer {folder} cannot be loaded: {first}") from None


def run(
    config: PackConfig,
    tokenizer: Path,
    *,
    npy: Path | None = None,
    global_batch_size: int | None = None,
    data_parallel_size: int = 1,
    micro_batch_size: int = 1,
    as_json: bool = False,
) -> PackReport:
    """Packs with progress and shows what came out."""
    check_micro_batch_size(micro_batch_size, config.packed_sequence_size, global_batch_size)
    for name, value in (("global-batch-size", global_batch_size), ("data-parallel-size", data_parallel_size)):
        if value is not None and value < 1:
            raise ConfigError(f"--{name} {value}; at least 1")
    with progress("tokenizing") as advance:
        report = pack_dataset(config, load_tokenizer(tokenizer), lambda done, total: advance(done, total or done, ""))
    if npy is not None and report.record_format == "preference":
        raise ConfigError(f"--npy {npy}: NeMo's rows know no pairs, and it would learn rejected answers; leave it out")
    if npy is not None:
        write_nemo_rows(npy, PackedStore.open(config.output_path))
    adjusted = None
    if global_batch_size is not None:
        adjusted = packed_global_batch_size(
            global_batch_size, report.sequences_per_pack, data_parallel_size=data_parallel_size
        )
    if as_json:
        print_json({**report.to_json(), "global_batch_size": adjusted, "npy": None if npy is None else str(npy)})
        return report
    print_table(f"Packed {config.input_path}", rows(report, global_batch_size, adjusted))
    say(f"Store: {report.path}" + ("" if npy is None else f"   NeMo's rows: {npy}"))
    return report


def rows(report: PackReport, global_batch_size: int | None, adjusted: int | None) -> list[tuple[str, str]]:
    """The table for people."""
    table = [
        ("records", f"{report.num_records:,} ({report.record_format})"),
        ("sequences", f"{report.num_sequences:,} with {report.num_tokens:,} tokens, {report.num_targets:,} learned"),
    ]
    pairs = report.record_format == "preference"  # never cut
    for reason, count in report.skipped.items():
        hint = "; --oversize truncate cuts them instead" if reason == "oversize" and not pairs else ""
        table.append((f"left out: {reason}", f"{count:,} (first: {report.examples[reason][0]}){hint}"))
    if report.truncated:
        table.append(("cut to the limit", f"{report.truncated:,} (first: {report.examples['truncated'][0]})"))
    table += [
        ("packs", f"{report.num_packs:,} of {report.packed_sequence_size:,} tokens"),
        ("fill", f"{report.fill_percent:.2f} %"),
        ("n = sequences / packs", f"{report.sequences_per_pack:.2f}"),
    ]
    if adjusted is not None:
        table.append(("global batch size to set", f"{adjusted} packs for {global_batch_size} sequences"))
    done = "nothing to do: the same data and settings were packed before" if report.cached else f"{report.seconds:.1f}"
    return [*table, ("seconds", done)]
