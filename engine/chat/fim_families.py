"""Families of models trained to fill gaps: markers, order and context format of each."""

from typing import Final, Literal

import msgspec

from engine.core.types import ModelFacts

Order = Literal["prefix first", "suffix first"]
ContextStyle = Literal["repository", "separated", "headed", "commented"]


class FimFamily(msgspec.Struct, frozen=True, kw_only=True):
    """Training format of one family of fill-in-the-middle models.

    `context` is the format of other files: "repository": a repository marker and a marker before each file;
    "separated": path and text with a marker after each file; "headed": a plain line before each file (`heading`
    with {path}); "commented": as comments above the prefix, for models trained on single files.
    `source`: where the format is documented.
    """

    name: str
    source: str
    prefix: str = ""
    suffix: str = ""
    middle: str = ""
    order: Order = "prefix first"
    context: ContextStyle = "commented"
    repository: str = ""
    file: str = ""
    heading: str = ""
    stops: tuple[str, ...] = ()


QWEN: Final = FimFamily(
    name="qwen",
    source="Qwen2.5-Coder technical report, arXiv 2409.12186, figure 2",
    context="repository",
    repository="<|repo_name|>",
    file="<|file_sep|>",
    stops=("<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|im_start|>", "<|im_end|>"),
)
STARCODER2: Final = FimFamily(
    name="starcoder2",
    source="StarCoder 2 and The Stack v2, arXiv 2402.19173, section 5.3",
    context="repository",
    repository="<repo_name>",
    file="<file_sep>",
    stops=("<|endoftext|>", "<file_sep>", "<repo_name>", "<fim_pad>"),
)
STARCODER: Final = FimFamily(
    name="starcoder",
    source="StarCoder, arXiv 2305.06161, section 5.2; Granite Code, Stable Code and Refact use the same marks",
    stops=("<|endoftext|>", "<file_sep>", "<filename>", "<reponame>", "<fim_pad>"),
)
MELLUM: Final = FimFamily(
    name="mellum",
    source="JetBrains Mellum-4b model card: suffix before prefix, files headed by <filename>",
    order="suffix first",
    context="repository",
    file="<filename>",
    stops=("<|endoftext|>", "<filename>", "<fim_pad>"),
)
CODEGEMMA: Final = FimFamily(
    name="codegemma",
    source="CodeGemma model card and arXiv 2406.11409: <|file_separator|> between files",
    context="separated",
    file="<|file_separator|>",
    stops=("<|file_separator|>", "<end_of_turn>", "<eos>"),
)
DEEPSEEK: Final = FimFamily(
    name="deepseek-coder",
    source="DeepSeek-Coder, arXiv 2401.14196: repository files concatenated, each after a line '#path'",
    context="headed",
    heading="#{path}\n",
    stops=("<｜end▁of▁sentence｜>", "<|EOT|>"),
)
CODELLAMA: Final = FimFamily(
    name="codellama",
    source="Code Llama, arXiv 2308.12950, section 2.3; its tokenizer adds the space after <PRE>",
    stops=("<EOT>", "▁<EOT>", "</s>"),
)
CODESTRAL: Final = FimFamily(
    name="codestral",
    source="mistral-common, FIM request encoding: [SUFFIX] suffix [PREFIX] prefix, no middle mark",
    prefix="[PREFIX]",
    suffix="[SUFFIX]",
    order="suffix first",
    context="headed",
    heading="+++++ {path}\n",
    stops=("</s>", "[PREFIX]", "[SUFFIX]"),
)
SEED: Final = FimFamily(
    name="seed-coder",
    source="Seed-Coder-8B-Base model card: suffix, prefix, middle",
    order="suffix first",
    stops=("<[end▁of▁sentence]>", "<[begin▁of▁sentence]>"),
)
PLAIN: Final = FimFamily(
    name="plain",
    source="any model whose file names its fill-in-the-middle tokens; prefix first, as most were trained",
    stops=("<|endoftext|>", "<|im_end|>"),
)


# Families recognized by the text of their prefix marker alone.
_BY_MARK: Final = {
    "[PREFIX]": CODESTRAL,
    "<PRE>": CODELLAMA,
    "<｜fim▁begin｜>": DEEPSEEK,
    "<[fim-prefix]>": SEED,
}


def family_of(facts: ModelFacts) -> FimFamily | None:
    """The family by the file's tokens, architecture and name; None if the model is not trained to fill gaps."""
    marks, name = facts.fim, f"{facts.metadata.get('general.name', '')} {facts.description}".lower()
    prefix = marks.get("pre", "").strip(" ▁")
    if "codestral" in name:
        return CODESTRAL
    if prefix in _BY_MARK:
        return _BY_MARK[prefix]
    if not (prefix and marks.get("suf") and marks.get("mid")):
        return None
    if prefix == "<fim_prefix>":
        by_name = MELLUM if "mellum" in name else STARCODER
        return STARCODER2 if facts.architecture == "starcoder2" else by_name
    if prefix == "<|fim_prefix|>" and facts.architecture.startswith("gemma"):
        return CODEGEMMA
    return QWEN if marks.get("rep") == QWEN.repository and marks.get("sep") == QWEN.file else PLAIN
