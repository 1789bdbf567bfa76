"""`transformers serve` with a tiny Llama of random weights, made here, in the environment `transformers`.

Its arguments are a directory for the model, and a port.
"""

import os
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = """\
{% for message in messages %}<s>{{ message.role }}
{{ message.content }}</s>{% endfor %}{% if add_generation_prompt %}<s>assistant
{% endif %}"""
"""It has no place for tools."""

directory, port = Path(sys.argv[1]), sys.argv[2]
words = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
fast = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>"
)
fast.chat_template = TEMPLATE
fast.save_pretrained(directory)
config = LlamaConfig(
    vocab_size=len(words),
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=4096,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=1,
)
LlamaForCausalLM(config).save_pretrained(directory)
serve = Path(sys.executable).with_name("transformers")
os.environ["HF_HUB_OFFLINE"] = "1"
os.execv(serve, [serve, "serve", str(directory), "--host", "127.0.0.1", "--port", port])
