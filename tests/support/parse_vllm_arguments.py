"""Lists of `vllm serve` arguments on standard input through vLLM's own parser, as JSON.

Run with vLLM's Python; this file imports nothing of ours. What the parser refuses ends the process
with its message.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    parsed = []
    for arguments in json.load(sys.stdin):
        namespace = parser.parse_args(arguments)
        validate_parsed_serve_args(namespace)
        plain = {
            name: value
            for name, value in vars(namespace).items()
            if isinstance(value, str | int | float | list | dict | None)
        }
        parsed.append(plain)
    json.dump(parsed, sys.stdout)


if __name__ == "__main__":
    main()
