"""The conversation forms of LLaVA, under the names of its (and NeMo's) conversation table.

Forms and prompts are those that its checkpoints were trained with, odd blanks included. Its MPT forms, which are
ChatML for other base models, put no newline between the turns.
"""

from __future__ import annotations

from dataclasses import replace

from mmpack.templates.style import Style

_ABLE_TO_SEE = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant is able to understand the visual content that the user provides, "
    "and assist the user with a variety of tasks using natural language."
    "The visual content will be provided with the following format: <Image>visual content</Image>."
)
_HELPFUL_TO_USER = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
_HELPFUL_TO_HUMAN = (
    "A chat between a curious human and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the human's questions."
)
_TAGS = ("<Image>", "</Image>")

LLAVA_V0 = Style(
    name="llava_v0",
    stop="###",
    stop_is_text=True,
    default_system=_HELPFUL_TO_HUMAN,
    system=("", "{stop}"),
    question=("Human: ", "{stop}"),
    answer="Assistant: ",
)
LLAVA_V0_MMTAG = replace(LLAVA_V0, name="llava_v0_mmtag", default_system=_ABLE_TO_SEE, picture=_TAGS)

VICUNA_V1 = Style(
    name="vicuna_v1",
    stop="</s>",
    default_system=_HELPFUL_TO_USER,
    system=("", " "),
    question=("USER: ", " "),
    answer="ASSISTANT: ",
)
LLAVA_V1 = replace(VICUNA_V1, name="llava_v1", default_system=_HELPFUL_TO_HUMAN)
LLAVA_V1_MMTAG = replace(VICUNA_V1, name="llava_v1_mmtag", default_system=_ABLE_TO_SEE, picture=_TAGS)

# Pre-training: the picture, its caption, a newline. The question's words are left out.
PLAIN = Style(name="plain", stop="\n", stop_is_text=True, question_words=False)

# Documents with pictures between the texts: everything as it stands, and a stop behind each answer.
RAW = Style(name="raw", stop="</s>")

MPT = Style(
    name="mpt",
    stop="<|im_end|>",
    controls=("<|im_start|>",),
    default_system=(
        "A conversation between a user and an LLM-based AI assistant. The assistant gives helpful and honest answers."
    ),
    system=("<|im_start|>system\n", "{stop}"),
    question=("<|im_start|>user\n", "{stop}"),
    answer="<|im_start|>assistant\n",
)
MPT_TEXT = replace(
    MPT,
    name="mpt_text",
    default_system=(
        "- You are a helpful assistant chatbot trained by MosaicML.\n"
        "- You answer questions.\n"
        "- You are excited to be able to help the user, but will refuse to do anything that could be considered "
        "harmful to the user.\n"
        "- You are more than just an information source, you are also able to write poetry, short stories, "
        "and make jokes."
    ),
)
MISTRAL_ORCA = replace(
    MPT,
    name="mistral_orca",
    default_system=(
        "You are MistralOrca, a large language model trained by Alignment Lab AI. "
        "Write out your reasoning step-by-step to be sure you get the right answers!"
    ),
)
DIRECT = replace(MPT, name="direct", default_system="Answer the questions.")
MISTRAL_ZEPHYR = Style(
    name="mistral_zephyr",
    stop="</s>",
    maybe_controls=("<|system|>", "<|user|>", "<|assistant|>"),
    default_system="You are a helpful AI assistant.",
    system=("<|system|>\n", "{stop}"),
    question=("<|user|>\n", "{stop}"),
    answer="<|assistant|>\n",
)
