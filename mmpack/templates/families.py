"""The prompt formats that model families document themselves: Llama, Mistral, Qwen (ChatML), Gemma, NVIDIA's GPTs."""

from __future__ import annotations

from dataclasses import replace

from mmpack.templates.style import Style

_SEES = (
    "You are a helpful language and vision assistant. "
    "You are able to understand the visual content that the user provides, "
    "and assist the user with a variety of tasks using natural language."
)

# [INST] is plain text to Llama 2 and to Mistral's first vocabularies, a control token to the later ones.
LLAMA_2 = Style(
    name="llama_2",
    stop="</s>",
    controls=("<s>",),
    maybe_controls=("[INST]", "[/INST]"),
    begin="<s>",
    default_system=(
        "You are a helpful, respectful and honest assistant. Always answer as helpfully as possible, while being "
        "safe.  Your answers should not include any harmful, unethical, racist, sexist, toxic, dangerous, or illegal "
        "content. Please ensure that your responses are socially unbiased and positive in nature.\n\nIf a question "
        "does not make any sense, or is not factually coherent, explain why instead of answering something not "
        "correct. If you don't know the answer to a question, please don't share false information."
    ),
    system=("<<SYS>>\n", "\n<</SYS>>\n\n"),
    system_in_question=True,
    question=("[INST] ", " [/INST]"),
    again="<s>",
    answer=" ",
    answer_end=" {stop}",
)
LLAVA_LLAMA_2 = replace(LLAMA_2, name="llava_llama_2", default_system=_SEES)
LLAVA_LLAMA_2_SIMPLE = replace(
    LLAMA_2,
    name="llava_llama_2_simple",
    default_system="Answer the questions about the visual content that the user provides.",
)
LLAVA_LLAMA_2_MMTAG = replace(
    LLAMA_2,
    name="llava_llama_2_mmtag",
    default_system=(
        "Answer the questions about the visual content that the user provides."
        "The visual content will be provided with the following format: <Image>visual content</Image>."
    ),
    picture=("<Image>", "</Image>"),
)

LLAMA_3 = Style(
    name="llama_3",
    stop="<|eot_id|>",
    controls=("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    begin="<|begin_of_text|>",
    system=("<|start_header_id|>system<|end_header_id|>\n\n", "{stop}"),
    question=("<|start_header_id|>user<|end_header_id|>\n\n", "{stop}"),
    answer="<|start_header_id|>assistant<|end_header_id|>\n\n",
)
LLAVA_LLAMA_3 = replace(LLAMA_3, name="llava_llama_3", default_system=_SEES)

# VILA's form, with nothing before an answer and a newline behind the system prompt.
MISTRAL = Style(
    name="mistral",
    stop="</s>",
    controls=("<s>",),
    maybe_controls=("[INST]", "[/INST]"),
    begin="<s>",
    system=("", "\n"),
    system_in_question=True,
    question=("[INST] ", " [/INST]"),
)
# Mistral's own: one begin for the whole conversation (Llama 2 has one a question).
MISTRAL_INSTRUCT = replace(MISTRAL, name="mistral_instruct", system=("", "\n\n"), answer=" ")

CHATML = Style(
    name="chatml",
    stop="<|im_end|>",
    controls=("<|im_start|>",),
    system=("<|im_start|>system\n", "{stop}\n"),
    question=("<|im_start|>user\n", "{stop}\n"),
    answer="<|im_start|>assistant\n",
    after_answer="\n",
)
QWEN_1_5 = replace(CHATML, name="qwen_1_5", default_system="You are a helpful assistant.")
QWEN_2_5 = replace(
    CHATML,
    name="qwen_2_5",
    default_system="You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
)
QWEN_2_VL = replace(
    QWEN_1_5,
    name="qwen_2_vl",
    controls=("<|im_start|>", "<|vision_start|>", "<|vision_end|>"),
    picture=("<|vision_start|>", "<|vision_end|>"),
)

# Gemma has no role for the system: the prompt opens the first question.
GEMMA_INSTRUCT = Style(
    name="gemma_instruct",
    stop="<end_of_turn>",
    controls=("<bos>", "<start_of_turn>"),
    begin="<bos>",
    system=("", "\n\n"),
    system_in_question=True,
    question=("<start_of_turn>user\n", "{stop}\n"),
    answer="<start_of_turn>model\n",
    after_answer="\n",
)

# One token both ends a turn and opens the next, so an answer's stop is the newline and that token.
NVGPT = Style(
    name="nvgpt",
    stop="<extra_id_1>",
    controls=("<extra_id_0>",),
    default_system=(
        "A chat between a curious user and an artificial intelligence assistant. "
        "The assistant gives helpful, detailed, and polite answers to the user's questions.\n"
    ),
    system=("<extra_id_0>System\n", "\n{stop}"),
    system_always=True,
    question=("User\n", "\n{stop}"),
    answer="Assistant\n",
    answer_end="\n{stop}",
)
# SteerLM conditions an answer on the qualities asked for; these values are those of NeMo's recipe.
NV_STEERLM = replace(
    NVGPT,
    name="nv_steerlm",
    controls=("<extra_id_0>", "<extra_id_2>"),
    answer=(
        "Assistant\n<extra_id_2>quality:4,toxicity:0,humor:0,creativity:0,helpfulness:4,correctness:4,coherence:4,"
        "complexity:4,verbosity:4\n"
    ),
)
NV_DPO = replace(NVGPT, name="nv_dpo", default_system="")
