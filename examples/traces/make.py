"""Makes synthetic-chat.jsonl: conversations whose turns share their beginning.

    python examples/traces/make.py > examples/traces/synthetic-chat.jsonl

The format is Mooncake's (timestamp in ms, lengths in tokens, one hash id per 512-token block). All
of it is drawn from a fixed seed: no one's data. 40 conversations begin over 60 s; each has 1 to 5
turns, begins with one of 4 system prompts of 2 blocks, and every turn repeats the turns before it.
"""

from __future__ import annotations

import json
import random
import sys

SEED = 20_240_501
BLOCK_TOKENS = 512
SYSTEM_PROMPTS = 4
SYSTEM_BLOCKS = 2
CONVERSATIONS = 40
SECONDS = 60


def conversations(draw: random.Random) -> list[dict[str, object]]:
    """All turns, by time."""
    rows = []
    next_block = SYSTEM_PROMPTS * SYSTEM_BLOCKS
    for _ in range(CONVERSATIONS):
        system = draw.randrange(SYSTEM_PROMPTS)
        blocks = [system * SYSTEM_BLOCKS + block for block in range(SYSTEM_BLOCKS)]
        at_ms = draw.uniform(0, SECONDS * 1000)
        length = SYSTEM_BLOCKS * BLOCK_TOKENS
        for _ in range(draw.randint(1, 5)):
            length += max(8, round(draw.lognormvariate(4.5, 0.8)))
            while len(blocks) * BLOCK_TOKENS < length:
                blocks.append(next_block)
                next_block += 1
            output = max(1, round(draw.lognormvariate(4.0, 0.7)))
            rows.append(
                {
                    "timestamp": round(at_ms),
                    "input_length": length,
                    "output_length": output,
                    "hash_ids": list(blocks),
                }
            )
            length += output
            at_ms += 1000 * (2 + draw.expovariate(1 / 5))
    return sorted(
        (row for row in rows if row["timestamp"] < SECONDS * 1000), key=lambda row: row["timestamp"]
    )


def main() -> None:
    """Write the trace to standard output."""
    for row in conversations(random.Random(SEED)):
        sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
