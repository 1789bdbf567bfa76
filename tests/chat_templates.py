"""Short chat templates in the form of families whose answers end in other ways than ChatML's."""

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase

GLM = (
    "[gMASK]<sop>{%- for m in messages -%}{%- if m.role == 'assistant' -%}"
    "{{ '<|assistant|>\\n<think>' }}{{ m.reasoning_content if loop.last }}</think>"
    "{%- if m.content -%}{{ '\\n' + m.content }}{%- endif -%}"
    "{%- for call in m.tool_calls or [] -%}{{ '\\n<tool_call>' + call.function.name }}"
    "{%- for key, value in call.function.arguments.items() -%}"
    "{{ '\\n<arg_key>' + key + '</arg_key>\\n<arg_value>' }}"
    "{{ value if value is string else value | tojson }}</arg_value>"
    "{%- endfor -%}{{ '\\n</tool_call>' }}{%- endfor -%}"
    "{%- elif m.role == 'tool' -%}{%- if loop.previtem.role != 'tool' -%}<|observation|>{%- endif -%}"
    "{{ '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
    "{%- else -%}{{ '<|' + m.role + '|>\\n' + m.content }}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)
HARMONY = (
    "{%- set ns = namespace(name='') -%}{%- for m in messages -%}{%- if m.role == 'assistant' -%}"
    "{%- if m.tool_calls -%}{%- if m.content and m.thinking -%}{{ raise_exception('content or thinking') }}"
    "{%- elif m.content or m.thinking -%}"
    "<|start|>assistant<|channel|>analysis<|message|>{{ m.content or m.thinking }}<|end|>{%- endif -%}"
    "{%- set call = m.tool_calls[0].function -%}{%- set ns.name = call.name -%}"
    "<|start|>assistant to=functions.{{ call.name }}<|channel|>commentary json<|message|>"
    "{{ call.arguments | tojson }}<|call|>{%- else -%}"
    "{%- if m.thinking and loop.last -%}"
    "<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{%- endif -%}"
    "<|start|>assistant<|channel|>final<|message|>{{ m.content }}"
    "{%- if loop.last and not add_generation_prompt -%}<|return|>{%- else -%}<|end|>{%- endif -%}"
    "{%- endif -%}{%- elif m.role == 'tool' -%}"
    "<|start|>functions.{{ ns.name }} to=assistant<|channel|>commentary<|message|>"
    "{{ m.content | tojson }}<|end|>"
    "{%- else -%}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}"
)
FAMILIES: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
    "glm": (
        GLM,
        "<|endoftext|>",
        ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        (
            *("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>"),
            *("<arg_value>", "</arg_value>", "<tool_response>", "</tool_response>"),
        ),
    ),
    "harmony": (
        HARMONY,
        "<|return|>",
        ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>"),
        (),
    ),
}
"""Template, end token of the tokenizer, special tokens and other added tokens."""


def with_family(tokenizer: PreTrainedTokenizerBase, family: str) -> None:
    """Give a tokenizer the template and the tokens of a family."""
    template, eos, special, others = FAMILIES[family]
    added = [AddedToken(token, special=True, normalized=False) for token in (eos, *special)]
    tokenizer.add_tokens([*added, *(AddedToken(token, normalized=False) for token in others)])
    tokenizer.eos_token = eos
    tokenizer.chat_template = template
