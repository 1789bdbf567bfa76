"""Trains tokenizers, for where none can be downloaded: byte-level BPE with a compact chat template. The
template resembles Qwen's, `<|im_start|>role ... <|im_end|>`, with tool calls as JSON between
`<tool_call>` tags. It never rewrites earlier turns: what was sampled stays as it was sampled."""

import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from orchard.pipelines.datasets.lines import OURS
from orchard.pipelines.datasets.tools import harness_tools
from orchard.pipelines.models.picture_tokens import PICTURE_TOKENS
from orchard.schemas.values import MEASURED_CAMPAIGN

END_OF_TEXT = "<|endoftext|>"
START = "<|im_start|>"
END = "<|im_end|>"
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Tokens that are part of an assistant's text, so decoding keeps them."""
CONTROL = (END_OF_TEXT, START, END, *MARKS)
"""All tokens that are not text."""

_SCHEMA = "{{ (tool.function if tool.function is defined else tool) | tojson }}"
_NAME = "{{ (tool.function if tool.function is defined else tool).name }}"


def chat_template(*, schemas: bool = True) -> str:
    """The Jinja text of the template. Without `schemas` it gives a model the names of its tools alone."""
    text = (
        files("orchard.pipelines.datasets")
        .joinpath("chat_template.jinja")
        .read_text(encoding="utf-8")
        .rstrip("\n")
    )
    return text if schemas else text.replace(_SCHEMA, _NAME)


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    out_dir: Path,
    *,
    pictures: bool = False,
    schemas: bool = True,
) -> PreTrainedTokenizerFast:
    """Train on `texts` and save a directory that `transformers.AutoTokenizer` loads.

    Equal texts give an equal tokenizer. `vocab_size` includes the 256 bytes and the special tokens;
    small texts give fewer. With `pictures` it has the tokens that stand for them, too. Without
    `schemas` the template leaves out tools' schemas, which can be longer than all else that a tiny
    model reads.
    """
    special = [END_OF_TEXT, START, END, *(PICTURE_TOKENS if pictures else ())]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(OURS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(MARKS),
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        chat_template=chat_template(schemas=schemas),
    )
    out_dir.mkdir(parents=True, exist_ok=True)
    wrapped.save_pretrained(str(out_dir))
    return wrapped


_QUERY = f"""
select m.role, m.content, m.reasoning, m.tool_calls, case when m.parent is null then r.harness end,
       r.harness_version
from tables.messages_all m
left join tables.rollouts_all r on r.rollout_id = m.rollout_id and r.attempt = m.attempt
where case when len($campaigns) = 0 then m.campaign <> '{MEASURED_CAMPAIGN}'
           else list_contains($campaigns, m.campaign) end
and m.inherited_from is null
order by m.sequence limit $limit
"""
_BATCH = 1000
_CONTROL = re.compile("|".join(map(re.escape, CONTROL)))


def log_texts(tables: duckdb.DuckDBPyConnection, campaigns: Sequence[str], limit: int) -> Iterator[str]:
    """The first `limit` messages of the campaigns, of all but `measured` where none is named."""
    cursor = tables.execute(_QUERY, {"campaigns": list(campaigns), "limit": limit})
    template = chat_template()
    while rows := cursor.fetchmany(_BATCH):
        for role, content, reasoning, calls, harness, version in rows:
            message: dict[str, Any] = {
                "role": role,
                "content": content,
                "reasoning_content": reasoning,
                "tool_calls": [{"function": call} for call in calls or []],
            }
            tools: list[Any] = list(harness_tools(harness, version)) if harness else []
            texts: Any = render_jinja_template([[message]], tools=tools, chat_template=template)[0]
            yield from filter(None, _CONTROL.split(texts[0]))
