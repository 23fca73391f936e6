"""The commands and their options. What they do is in the modules beside this one, imported when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Exactly filled, balanced, resumable THD batches of image-text data. Any command takes --debug.",
)

Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace a value, such as data.num_workers=4; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]
ConfigFile = Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file, such as configs/demo.yaml.")]
Engine = Annotated[
    str | None,
    typer.Option(help="local, or ray: a Ray cluster whose machines see the same folders. [default: local]"),
]
Address = Annotated[
    str | None,
    typer.Option(help="Of the Ray cluster. [default: RAY_ADDRESS, or one is started here]"),
]
Html = Annotated[Path | None, typer.Option("--html", help="Write the picture as one HTML file.")]
Png = Annotated[Path | None, typer.Option("--png", help="Write the picture as PNG (needs matplotlib).")]


def _version(wanted: bool) -> None:
    if wanted:
        from mmpack import __version__

        print(f"mmpack {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass


@app.command(epilog="Example: mmpack demo --out build/demo --steps 60")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for everything that it makes.")] = Path("build/demo"),
    steps: Annotated[int, typer.Option(help="Training steps.")] = 60,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Convert, plan, train and report on the bundled real data."""
    from mmpack.cli.demo import run

    run(out, steps, set_ or [], as_json=json_)


@app.command(
    epilog="Example: mmpack convert data/llava.json data/energon --image-root data/images --split train=0.9,val=0.1"
)
def convert(
    src: Annotated[
        Path,
        typer.Argument(
            metavar="SRC",
            help="JSON, JSONL (also .gz), parquet, tar, a folder of these or of pictures, a saved Hugging Face set; "
            "or, alone, a YAML file with a section convert.",
        ),
    ],
    dst: Annotated[
        Path | None, typer.Argument(metavar="DST", help="Folder (or msc:// URL) of the new dataset; must not exist.")
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="Record format: llava, sharegpt, openai, vqa, multi_choice, captioning, ocr, interleaved, text or "
            "prompt_response. [default: auto, each record by its fields; a picture with a text is a caption]",
        ),
    ] = None,
    image_root: Annotated[
        Path | None, typer.Option(help="Folder of the pictures. [default: the folder of SRC]")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Shares of the splits. [default: train=0.9,val=0.1]")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes. [default: 2]")] = None,
    on_error: Annotated[
        str | None, typer.Option(help="skip counts a bad sample, raise stops at it. [default: skip]")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the choice of splits. [default: 0]")] = None,
    max_samples_per_shard: Annotated[
        int | None, typer.Option(help="Most samples in a tar file. [default: 1000]")
    ] = None,
    max_bytes_per_shard: Annotated[
        int | None, typer.Option(help="A tar file is cut at this size. [default: 1000000000]")
    ] = None,
    max_bad: Annotated[
        float | None, typer.Option(help="Largest share of bad records, 0 to 1; above it nothing is written.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace DST.")] = False,
    staging: Annotated[
        Path | None, typer.Option(help="Where a dataset for msc:// is made. [default: the folder of temporary files]")
    ] = None,
    length_index: Annotated[
        Path | None, typer.Option(help="Measure all lengths for this YAML file's data.order=global_plan.")
    ] = None,
    engine: Engine = None,
    address: Address = None,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Records with pictures -> Energon dataset with a report; whole or nothing, never asks."""
    from mmpack.cli.convert import build_config, run

    options = {
        "image_root": image_root,
        "format": format_.replace("-", "_") if format_ else None,
        "split": split,
        "workers": workers,
        "on_error": on_error,
        "seed": seed,
        "max_samples_per_shard": max_samples_per_shard,
        "max_bytes_per_shard": max_bytes_per_shard,
        "max_bad_share": max_bad,
        "overwrite": overwrite or None,
        "staging": staging,
        "engine": engine,
        "address": address,
    }
    given = {name: value for name, value in options.items() if value is not None}
    run(build_config(src, dst, given, set_ or []), as_json=json_, length_index=length_index)


@app.command(epilog="Example: mmpack plan configs/demo.yaml --global-batch-size 128 --data-parallel-size 8")
def plan(
    config: ConfigFile,
    split: Annotated[str, typer.Option(help="Which split to read.")] = "train",
    samples: Annotated[int | None, typer.Option(help="Read about so many samples; all by default.")] = None,
    global_batch_size: Annotated[int, typer.Option(help="Samples per step of your recipe without packing.")] = 128,
    data_parallel_size: Annotated[int, typer.Option(help="Data-parallel ranks.")] = 1,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Lengths, fill, samples per pack (n), the global batch size to set, memory."""
    from mmpack.cli.plan import run

    run(config, set_ or [], split, samples, global_batch_size, data_parallel_size, as_json=json_)


@app.command(epilog="Example: mmpack inspect configs/demo.yaml --pack 3 --html pack.html")
def inspect(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG|DATASET",
            help="A YAML file, or a dataset's folder, which is packed with the demo's settings then.",
        ),
    ],
    pack: Annotated[int, typer.Option(help="Which pack, counted from 0.")] = 0,
    split: Annotated[str, typer.Option(help="Of which split.")] = "train",
    html: Html = None,
    png: Png = None,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """One pack as a picture: segments, image tokens, trained tokens, seams, the pictures themselves."""
    from mmpack.cli.inspect import run

    run(config, set_ or [], pack, split, html, png, as_json=json_)


@app.command(epilog="Example: mmpack profile configs/demo.yaml --set data.decode=fast")
def profile(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG|DATASET",
            help="A YAML file, or a dataset's folder, which is packed with the demo's settings then.",
        ),
    ],
    samples: Annotated[int, typer.Option(help="Samples to time.")] = 1000,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Which stage bounds the loader on this machine and data, and what to change."""
    from mmpack.cli.profile import run

    run(config, set_ or [], samples, as_json=json_)


@app.command(epilog="Example: mmpack train configs/demo.yaml --set train.max_steps=200")
def train(config: ConfigFile, set_: Set = None, json_: Json = False) -> None:
    """A small real training run; goes on from the newest checkpoint in train.output_dir."""
    from mmpack.cli.train import run

    run(config, set_ or [], as_json=json_)


@app.command(epilog="Example: mmpack report build/demo/run/train.jsonl --html run.html --png run.png")
def report(
    records: Annotated[
        Path,
        typer.Argument(metavar="RECORDS", help="Of a run, or printed by bench or profile --json."),
    ],
    html: Html = None,
    png: Png = None,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """A training run, or measurements, as a picture, drawn from its records. --set title=... names it."""
    from mmpack.cli.report import run

    run(records, html, png, set_ or [], as_json=json_)


@app.command(epilog="Example: mmpack bench configs/bench/packers.yaml --set windows=[50]")
def bench(config: ConfigFile, set_: Set = None, json_: Json = False) -> None:
    """Measure packing: fill, speed, waits. --json prints one record a line."""
    from mmpack.cli.bench import run

    run(config, set_ or [], as_json=json_)


@app.command(
    epilog="Example: mmpack pack chats.jsonl build/packed --packed-sequence-size 2048 --tokenizer models/llama"
)
def pack(
    src: Annotated[
        Path, typer.Argument(metavar="INPUT", help="JSONL of prompts and responses or of chats; may be .gz.")
    ],
    dst: Annotated[Path, typer.Argument(metavar="OUT", help="Folder of the packed store.")],
    packed_sequence_size: Annotated[int, typer.Option(help="Tokens of a pack.")],
    tokenizer: Annotated[Path, typer.Option(help="Folder of a fast tokenizer.")],
    format_: Annotated[
        str | None, typer.Option("--format", help="Record format. [default: the first record decides]")
    ] = None,
    seq_length: Annotated[int | None, typer.Option(help="Most tokens of one record. [default: a pack]")] = None,
    oversize: Annotated[str | None, typer.Option(help="drop, truncate or raise. [default: drop]")] = None,
    algorithm: Annotated[str | None, typer.Option(help="How packs are chosen. [default: exact_fill]")] = None,
    template: Annotated[str | None, typer.Option(help="Template of chats; hf is the tokenizer's own.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that tokenize. [default: 1]")] = None,
    npy: Annotated[Path | None, typer.Option(help="Write NeMo's .npy rows as well.")] = None,
    global_batch_size: Annotated[int | None, typer.Option(help="Of your recipe without packing.")] = None,
    data_parallel_size: Annotated[int, typer.Option(help="Data-parallel ranks.")] = 1,
    micro_batch_size: Annotated[int, typer.Option(help="Of the packed run; only 1.")] = 1,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT.")] = False,
    engine: Engine = None,
    address: Address = None,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Pack text for fine-tuning once, ahead of training: prints n, fill and the global batch size to set."""
    from mmpack.cli.pack import build_config, run
    from mmpack.cli.settings import named_values

    given = {
        "record_format": format_.replace("-", "_") if format_ else None,
        "seq_length": seq_length,
        "oversize": oversize,
        "algorithm": algorithm,
        "template": template,
        "workers": workers,
        "overwrite": overwrite or None,
        "engine": engine,
        "address": address,
        **named_values(set_ or []),
    }
    run(
        build_config(src, dst, packed_sequence_size, given),
        tokenizer,
        npy=npy,
        global_batch_size=global_batch_size,
        data_parallel_size=data_parallel_size,
        micro_batch_size=micro_batch_size,
        as_json=json_,
    )


@app.command(epilog="Example: mmpack prepare-dolly --input databricks-dolly-15k.jsonl")
def prepare_dolly(
    input_: Annotated[Path, typer.Option("--input", help="Dolly's JSONL.")],
    output: Annotated[Path | None, typer.Option(help="[default: <stem>-output.jsonl beside it]")] = None,
    seed: Annotated[int, typer.Option(help="Of the order of instruction and context.")] = 0,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Dolly's instruction, context and response -> input and output."""
    from mmpack.cli.prepare import run_dolly
    from mmpack.cli.settings import with_values

    run_dolly(**with_values({"input_path": input_, "output_path": output, "seed": seed}, set_ or []), as_json=json_)


@app.command(epilog="Example: mmpack prepare-oasst --input oasst_trees.jsonl.gz --out data/oasst")
def prepare_oasst(
    input_: Annotated[Path, typer.Option("--input", help="OpenAssistant's message trees, JSONL or JSONL.gz.")],
    out: Annotated[Path, typer.Option(help="Folder for train.jsonl and val.jsonl.")],
    val_share: Annotated[float, typer.Option(help="Share of the trees for validation.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Of the choice of trees.")] = 0,
    language: Annotated[str | None, typer.Option(help="Keep this language only, such as en.")] = None,
    system: Annotated[str, typer.Option(help="System prompt of every chat.")] = "",
    set_: Set = None,
    json_: Json = False,
) -> None:
    """OpenAssistant's message trees -> chat JSONL with train and val."""
    from mmpack.cli.prepare import run_oasst
    from mmpack.cli.settings import with_values

    options = {"input_path": input_, "output_directory": out, "val_share": val_share, "seed": seed}
    options |= {"language": language, "system": system}
    run_oasst(**with_values(options, set_ or []), as_json=json_)


@app.command(epilog="Example: mmpack check build/demo/energon --deep --html check.html")
def check(
    path: Annotated[Path, typer.Argument(metavar="DATASET|FILE", help="An Energon dataset, or LLaVA JSON or JSONL.")],
    config: Annotated[str | None, typer.Option(help="Take tokenizer, template and tiling from this YAML file.")] = None,
    split: Annotated[str | None, typer.Option(help="One split only. [default: all]")] = None,
    image_root: Annotated[Path | None, typer.Option(help="Folder of the pictures of a file.")] = None,
    format_: Annotated[str, typer.Option("--format", help="Record format of a file; auto: by its fields.")] = "auto",
    deep: Annotated[bool, typer.Option("--deep", help="Decode every picture, not its header alone.")] = False,
    quarantine: Annotated[bool, typer.Option("--quarantine", help="Leave bad samples out from now on.")] = False,
    max_bad: Annotated[float, typer.Option(help="Share of bad samples that is still exit code 0.")] = 0.0,
    workers: Annotated[int, typer.Option(help="Processes.")] = 2,
    length_index: Annotated[
        bool, typer.Option("--length-index", help="Measure all lengths for --config's data.order=global_plan.")
    ] = False,
    engine: Engine = None,
    address: Address = None,
    html: Html = None,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Faults by reason, lengths, tiles and the expected fill; exit code 1 if more is bad than --max-bad."""
    from mmpack.cli.check import run

    code = run(
        path,
        config=config,
        overrides=set_ or [],
        split=split,
        image_root=image_root,
        record_format=format_.replace("-", "_"),
        deep=deep,
        leave_out=quarantine,
        max_bad=max_bad,
        workers=workers,
        html=html,
        as_json=json_,
        length_index=length_index,
        engine=engine or "local",
        address=address,
    )
    raise typer.Exit(code)


@app.command(epilog='Example: mmpack generate build/sft/run --prompt "What is a pack?"')
def generate(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A checkpoint of mmpack train, or its run.")],
    prompt: Annotated[str, typer.Option(help="What the user says.")],
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens of the answer.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the draws with a temperature.")] = 0,
    template: Annotated[str | None, typer.Option(help="Refuse a checkpoint that was trained with another.")] = None,
    prompt_template: Annotated[str | None, typer.Option(help="The same for prompt-response records.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Answer a prompt with a fine-tuned model and the template that it was trained with."""
    from mmpack.cli.generate import run
    from mmpack.cli.settings import with_values

    options = {"system": system, "max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    options |= {"template": template, "prompt_template": prompt_template, "device": device}
    run(checkpoint, prompt, **with_values(options, set_ or []), as_json=json_)
