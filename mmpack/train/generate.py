"""Uses a fine-tuned model: prompts are written as its training records were, by the template that it stores."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmpack.errors import ConfigError, SampleError, StateError
from mmpack.model.causal import CausalModel
from mmpack.offline.records import FIELD_PAIRS, parse_template
from mmpack.train.assets import ASSETS_NAME, Assets
from mmpack.train.checkpoint import BEST_NAME, load_checkpoint, newest_checkpoint
from mmpack.train.contract import TrainConfig

_OWN_FORMATS = ("prompt_response", "nemo_chat")  # the others are conversations, written by a template
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")
_DUMMY = "x"  # an answer in the place of the one to come


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FineTuned:
    """A model ready to answer, with what it was trained with."""

    hf: Any  # of transformers, attention sdpa
    assets: Assets


def checkpoint_of(path: Path) -> Path:
    """The file or folder to load: itself, or of a run's folder the best, else the newest checkpoint.

    Raises:
        StateError: nothing there.
    """
    if path.is_file() or (path / ASSETS_NAME).is_file():
        return path
    best, newest = path / BEST_NAME, newest_checkpoint(path) if path.is_dir() else None
    found = best if best.is_file() else newest
    if found is None:
        raise ConfigError(f"{path} is no checkpoint, and no folder of a run with one; give what mmpack train wrote")
    return found


def load_fine_tuned(path: str | Path, *, device: str = "auto") -> FineTuned:
    """Model, tokenizer and template of a checkpoint, a run's folder, or its ``final``.

    Raises:
        StateError: no such checkpoint, or one that is not of a fine-tuned language model.
        ConfigError: the model that adapters belong to is not where it was.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    where = checkpoint_of(Path(path))
    if where.is_dir():
        assets = Assets.read(where)
        if (where / "config.json").is_file():
            if not any(path for ending in _WEIGHTS for path in where.glob(ending)):
                raise StateError(
                    f"{where} holds a model's settings and tokenizer, but no weights (model.safetensors): it was "
                    "copied without them, or not written to its end; give the run's folder, whose checkpoints have them"
                )
            try:
                hf = AutoModelForCausalLM.from_pretrained(where, attn_implementation="sdpa")
            except Exception as error:  # safetensors and transformers have errors of many classes for a damaged file
                text = " ".join(str(error).split())[:200]
                raise StateError(f"{where}: its model cannot be loaded: {text}; give the run's folder") from None
            return _ready(hf, assets, device)
        if not (where / "adapter_config.json").is_file():
            raise StateError(
                f"{where} holds neither a config.json, with a model, nor an adapter_config.json; give the run's folder"
            )
        raise StateError(f"{where} holds adapters only; give the run's folder, or open it with peft on its base model")
    saved = load_checkpoint(where)
    if "assets" not in saved:
        raise StateError(f"{where} is not of a fine-tuned language model: it stores no prompt template")
    assets = Assets.from_plain(saved["assets"])
    if assets.spec is not None and assets.spec.lora is not None:
        model = assets.spec.build(assets.tokenizer)
    else:
        values = dict(assets.hf_config)
        config = AutoConfig.for_model(values.pop("model_type"), **values)
        model = CausalModel(AutoModelForCausalLM.from_config(config))
    model.load_trained_state(saved["model"])
    return _ready(model.hf, assets, device)


def _ready(hf: Any, assets: Assets, device: str) -> FineTuned:
    hf.set_attn_implementation("sdpa")
    hf.to(TrainConfig(output_dir=Path("-"), device=device).torch_device).eval()
    return FineTuned(hf=hf, assets=assets)


def check_template(assets: Assets, *, template: str | None = None, prompt_template: str | None = None) -> None:
    """Raises ConfigError if another template is asked for than the model was trained with."""
    form = assets.form
    conversation = assets.record_format not in _OWN_FORMATS
    stored = form.template or "hf or chatml, as the tokenizer brings one"
    if not conversation:
        stored = f"none: its records are {assets.record_format}"
    if template is not None and (not conversation or template != form.template):
        raise ConfigError(f"template={template!r} was asked for, the model was trained with {stored}; leave it out")
    if prompt_template is not None and (
        assets.record_format != "prompt_response" or prompt_template != form.prompt.prompt_template
    ):
        trained = form.prompt.prompt_template if assets.record_format == "prompt_response" else assets.record_format
        raise ConfigError(
            f"prompt_template={prompt_template!r} was asked for, the model was trained with {trained!r}; leave it out"
        )


def prompt_record(
    assets: Assets, prompt: str, system: str | None, fields: Mapping[str, str], answer: str = _DUMMY
) -> dict[str, Any]:
    """A record of the form that was trained on, whose last answer is `answer`.

    Raises:
        ConfigError: a template with several fields of which some are not given, or fields or a system prompt that the
            form does not have.
    """
    if assets.record_format == "prompt_response":
        template = assets.form.prompt.prompt_template
        names = list(FIELD_PAIRS[0])
        if template is not None:
            names = list(dict.fromkeys(name for _, name in parse_template(template) if name is not None))
        if system is not None:
            raise ConfigError("system: prompt-response records have no system prompt; put it into the prompt")
        given = dict(fields)
        open_names = [name for name in names[:-1] if name not in given]
        if len(open_names) == 1:
            given[open_names[0]] = prompt
        elif open_names or prompt:
            raise ConfigError(
                f"the model's prompt has the fields {', '.join(names[:-1])}; give all but one of them by name, and the "
                "last as the prompt"
            )
        unknown = [name for name in given if name not in names]
        if unknown:
            raise ConfigError(f"the model's prompt has no field {unknown[0]!r}, it has: {', '.join(names[:-1])}")
        return given | {names[-1]: answer}
    if fields:
        raise ConfigError("fields are for prompt-response records; this model was trained on chats")
    if assets.record_format == "nemo_chat":
        turns = [{"from": "User", "value": prompt}, {"from": "Assistant", "value": answer}]
        return {"system": system or "", "mask": "User", "conversations": turns}
    turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    return {"messages": ([] if system is None else [{"role": "system", "content": system}]) + turns}


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A prompt as token ids, and the token ids that ended answers in training and were learnt."""

    token_ids: list[int]
    stop_ids: list[int]


def encode_prompt(
    assets: Assets, prompt: str, *, system: str | None = None, fields: Mapping[str, str] | None = None
) -> Prompt:
    """The tokens before the answer, exactly as a training record has them.

    Raises:
        ConfigError: as `prompt_record`, or a prompt that its form refuses.
    """
    own_format = assets.record_format in _OWN_FORMATS
    encoder = assets.form.encoder(assets.record_format if own_format else "openai", assets.tokenizer)
    try:
        rows = [encoder.encode(prompt_record(assets, prompt, system, fields or {}, word)) for word in (_DUMMY, "y")]
    except SampleError as error:
        raise ConfigError(f"this prompt cannot be written in the model's form: {error.detail}") from None
    ids, other = (row.token_ids_n.tolist() for row in rows)
    start = min(row.answer_start for row in rows)
    same = 0  # tokens at the end of both, whatever the answer
    while same < min(len(ids), len(other)) - start and ids[-1 - same] == other[-1 - same]:
        same += 1
    learnt = int(np.flatnonzero(rows[0].trained_n)[-1]) + 1  # what a template writes behind that is not waited for
    return Prompt(token_ids=ids[:start], stop_ids=ids[len(ids) - same : learnt])


def generate(
    model: FineTuned,
    prompt: str,
    *,
    system: str | None = None,
    fields: Mapping[str, str] | None = None,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    seed: int = 0,
) -> str:
    """The model's answer to a prompt.

    Args:
        system: system prompt, for chats.
        fields: other fields of a prompt template, by name.
        max_new_tokens: most tokens of the answer.
        temperature: 0 takes the likeliest token each time; above it tokens are drawn, by `seed`.

    Raises:
        ConfigError: a prompt that does not go with the model's form or is longer than its positions, or a number that
            cannot work.

    Warns of a prompt and an answer longer than what was trained on, and of an answer that must end at the positions.
    """
    if max_new_tokens < 1 or temperature < 0:
        raise ConfigError(f"max_new_tokens={max_new_tokens}, temperature={temperature}; at least 1, and not below 0")
    encoded = encode_prompt(model.assets, prompt, system=system, fields=fields)
    max_new_tokens = _room(model, len(encoded.token_ids), max_new_tokens)
    tokenizer = model.assets.tokenizer
    ids = torch.tensor([encoded.token_ids], device=model.hf.device)
    ends = set() if tokenizer.eos_token_id is None else {int(tokenizer.eos_token_id)}
    stop_text = ""
    if len(encoded.stop_ids) == 1:
        ends.add(encoded.stop_ids[0])
    elif encoded.stop_ids:  # its tokens may have grown together with the answer's last one
        stop_text = str(tokenizer.decode(encoded.stop_ids))
    criteria = [_EndsWith(tokenizer, ids.shape[1], stop_text)] if stop_text else []
    settings = copy.deepcopy(model.hf.generation_config)
    settings.update(
        max_new_tokens=max_new_tokens,
        max_length=None,
        do_sample=temperature > 0,
        temperature=temperature or None,
        top_k=None,
        top_p=None,
        eos_token_id=sorted(ends) or None,
        pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(ends, default=0),
    )
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        out = model.hf.generate(
            ids, attention_mask=torch.ones_like(ids), generation_config=settings, stopping_criteria=criteria
        )
    answer: list[int] = out[0, ids.shape[1] :].tolist()
    if answer and answer[-1] in ends:
        answer.pop()
    text: str = tokenizer.decode(answer)
    return text.removesuffix(stop_text)


def _room(model: FineTuned, num_prompt: int, max_new_tokens: int) -> int:
    """Tokens that the answer may have; see `generate` for what is refused and warned of."""
    positions = getattr(model.hf.config, "max_position_embeddings", None)
    if positions is not None and num_prompt >= positions:
        raise ConfigError(
            f"the prompt has {num_prompt} tokens, the model {positions} positions, the answer's included; shorten it"
        )
    if positions is not None and num_prompt + max_new_tokens > positions:
        warnings.warn(
            f"the prompt has {num_prompt} tokens, the model {positions} positions: the answer ends after "
            f"{positions - num_prompt} tokens at the latest, not {max_new_tokens}",
            stacklevel=3,
        )
        max_new_tokens = positions - num_prompt
    if num_prompt >= model.assets.seq_length:
        warnings.warn(
            f"the prompt has {num_prompt} tokens; the model was trained on at most {model.assets.seq_length} "
            "(seq_length), answer included, so what it says may be poor",
            stacklevel=3,
        )
    return max_new_tokens


class _EndsWith:
    """Stops where the text that was generated ends with `stop_text`."""

    def __init__(self, tokenizer: Any, num_prompt: int, stop_text: str) -> None:
        self._tokenizer, self._num_prompt, self._stop_text = tokenizer, num_prompt, stop_text

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        done = [self._tokenizer.decode(row[self._num_prompt :]).endswith(self._stop_text) for row in input_ids]
        return torch.tensor(done, device=input_ids.device)
