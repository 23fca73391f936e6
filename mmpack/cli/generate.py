"""``mmpack generate``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmpack.cli.show import print_json, say
from mmpack.errors import ConfigError
from mmpack.train.generate import check_template, checkpoint_of, generate, load_fine_tuned


def run(
    checkpoint: Path,
    prompt: str,
    *,
    system: str | None = None,
    fields: Sequence[str] = (),
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    seed: int = 0,
    template: str | None = None,
    prompt_template: str | None = None,
    device: str = "auto",
    as_json: bool = False,
) -> None:
    """Answers a prompt with a fine-tuned model.

    Args:
        checkpoint: a checkpoint, the folder of a run (its best, else its newest), or its ``final``.
        fields: further fields of the prompt template, each ``name=text``.
        template, prompt_template: what the caller believes the model was trained with; another one is refused.
    """
    named: dict[str, str] = {}
    for field in fields:
        name, equals, text = field.partition("=")
        if not equals or not name:
            raise ConfigError(f"--field {field!r}; write it as name=text")
        named[name] = text
    model = load_fine_tuned(checkpoint, device=device)
    check_template(model.assets, template=template, prompt_template=prompt_template)
    answer = generate(
        model,
        prompt,
        system=system,
        fields=named,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
    )
    if as_json:
        where = str(checkpoint_of(checkpoint))
        print_json({"checkpoint": where, "prompt": prompt, "system": system, "answer": answer})
    else:
        say(answer)
