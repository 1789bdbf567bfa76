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
NEMOTRON_NANO = (  # version 2: its newest answer begins in a thought, of which a message has no field
    "<SPECIAL_10>System\n\n{%- for m in messages -%}{%- if m.role == 'assistant' -%}"
    "{%- set words = m.content or '' -%}{%- set end = '\n<SPECIAL_12>\n\n' -%}"
    "{%- if not loop.last and '</think>' in words -%}{%- set words = words.split('</think>')[1].strip() -%}"
    "{%- endif -%}{%- if words or not loop.last -%}{{ '<SPECIAL_11>Assistant\n' }}"
    "{{- '<think>\n\n' if loop.last }}{{- words -}}{{ end if loop.last }}{%- endif -%}"
    "{%- if m.tool_calls -%}{{ '<SPECIAL_11>Assistant\n' if loop.last else ('\n\n' if words) }}"
    "{{- '<TOOLCALL>[' -}}{%- for call in m.tool_calls -%}"
    '{{ \'{"name": "\' + call.function.name + \'", "arguments": \' }}{{ call.function.arguments }}}'
    "{{- ', ' if not loop.last }}{%- endfor -%}]</TOOLCALL>{{ end if loop.last }}{%- endif -%}"
    "{{- end if not loop.last }}"
    "{%- elif m.role == 'tool' -%}"
    "{{- '<SPECIAL_11>User\n<TOOL_RESPONSE>[' if loop.previtem.role != 'tool' }}{{- m.content }}"
    "{{- ', ' if loop.nextitem and loop.nextitem.role == 'tool' else ']</TOOL_RESPONSE>\n\n' }}"
    "{%- else -%}{{ '<SPECIAL_11>User\n' + m.content + '\n' }}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<SPECIAL_11>Assistant\n<think>\n\n' }}{%- endif -%}"
)
NEMOTRON_3 = (  # the prompt opens a thought, an answer without one has it empty, earlier ones are dropped
    "{%- for m in messages -%}{%- if m.role == 'assistant' -%}"
    "{{ '<|im_start|>assistant\n<think>' }}"
    "{%- if m.reasoning_content and loop.last -%}{{ '\n' + m.reasoning_content + '\n' }}{%- endif -%}</think>"
    "{{- '\n' if m.reasoning_content and loop.last }}{{- m.content -}}"
    "{%- for call in m.tool_calls or [] -%}{{ '\n<tool_call>\n<function=' + call.function.name + '>\n' }}"
    "{%- for key, value in call.function.arguments.items() -%}{{ '<parameter=' + key + '>\n' }}"
    "{{- value if value is string else value | tojson }}{{ '\n</parameter>\n' }}{%- endfor -%}"
    "{{ '</function>\n</tool_call>\n' }}{%- endfor -%}{{ '<|im_end|>\n' }}"
    "{%- elif m.role == 'tool' -%}{{ '<|im_start|>user\n' if loop.previtem.role != 'tool' }}"
    "{{ '<tool_response>\n' + m.content + '\n</tool_response>\n' }}"
    "{%- if not (loop.nextitem and loop.nextitem.role == 'tool') -%}{{ '<|im_end|>\n' }}{%- endif -%}"
    "{%- else -%}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n<think>\n' }}{%- endif -%}"
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
    "nemotron-nano": (
        NEMOTRON_NANO,
        "<SPECIAL_12>",
        ("<SPECIAL_10>", "<SPECIAL_11>"),
        ("<TOOLCALL>", "</TOOLCALL>", "<TOOL_RESPONSE>", "</TOOL_RESPONSE>"),
    ),
    "nemotron-3": (
        NEMOTRON_3,
        "<|im_end|>",
        ("<|im_start|>",),
        ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
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
