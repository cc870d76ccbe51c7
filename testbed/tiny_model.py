"""A language model small enough for tests: made on the spot, the same each time.

A random Llama (2 layers, hidden size 128) with a byte-level tokenizer of 512 tokens, trained here,
and a chat template. It talks nonsense at hundreds of tokens a second on a CPU. Since the tokenizer
is byte-level, any text can be a prompt, and a generation only ends early if the model happens to
sample `<|end|>`: tests that need an exact length send `ignore_eos`.

Run with the Python that `scripts/install-vllm` prints, which has torch and transformers:
`PYTHON testbed/tiny_model.py FOLDER`. This file imports nothing of ours.
"""

from __future__ import annotations

import sys
from pathlib import Path

SEED = 20260101
VOCABULARY_TOKENS = 512
MAX_CONTEXT_TOKENS = 8192

BEGIN, END, TURN, PAD = "<|begin|>", "<|end|>", "<|turn|>", "<|pad|>"

CHAT_TEMPLATE = (
    f"{{{{ '{BEGIN}' }}}}"
    "{% for message in messages %}"
    f"{{{{ '{TURN}' + message['role'] + '\\n' + message['content'] + '{END}\\n' }}}}"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{{{{ '{TURN}assistant\\n' }}}}{{% endif %}}"
)

# What the tokenizer's merges are learnt from; any few hundred words of English will do.
CORPUS = [
    "The scheduler keeps one queue for each tenant and serves them in turn, by weight.",
    "A request waits in its queue until the engine can start it; then its tokens stream back.",
    "When the memory for keys and values runs short, the engine preempts what came last.",
    "Prefill reads the whole prompt at once, while decoding writes one token after another.",
    "Latency is promised to a tier; what is left of the machine goes to those who wait.",
    "system user assistant: please say what the weather is like, and write a story of ten lines.",
    "Every morning the harbour opens its gates when the water outside stands as high as within.",
    "Small boats go through together; a large vessel has to wait until there is room for it.",
    "Nobody may hold the narrow channel for longer than the notice on the wall allows.",
    "Because winter storms come without warning, fishermen keep listening to each other's radio.",
]


def make_tokenizer() -> object:
    """The byte-level tokenizer, as transformers' fast class with the chat template in it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_TOKENS,
        special_tokens=[BEGIN, END, TURN, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if tokenizer.get_vocab_size() != VOCABULARY_TOKENS:
        raise RuntimeError(f"the corpus gave {tokenizer.get_vocab_size()} tokens")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        model_max_length=MAX_CONTEXT_TOKENS,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(folder: Path) -> None:
    """Writes weights, configuration and tokenizer into `folder`, which may exist."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=VOCABULARY_TOKENS,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_CONTEXT_TOKENS,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=3,
        dtype="bfloat16",
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)  # type: ignore[attr-defined]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {Path(sys.argv[0]).name} FOLDER")
    make_model(Path(sys.argv[1]))
