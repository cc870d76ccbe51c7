"""Exact counts of text by the model's own tokenizer, off the event loop.

A count costs about a microsecond a token and the library lets go of the interpreter meanwhile, so
it runs on a pool of few threads. It is asked for only where an estimate does not decide
(:meth:`.estimate.Estimator.is_between`), and never waited for in line: with the pool and its short
queue full the estimate has to do. The chat template's own tokens are not in it.

The library ``tokenizers`` is optional: it is loaded where a file is named, and the start fails
without either; or where the model's folder is named, which a pool does without knowing what lies
there, and what is lacking leaves all to estimates. Both at the start: loading a large vocabulary
holds up the interpreter for about a second.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tidegate_sidecar.flags import SettingsError

log = logging.getLogger("tidegate.sidecar")

TOKENIZER_FILE = "tokenizer.json"
_THREADS = 2
_MOST_WAITING = 32
_MOST_CHARACTERS = 1 << 20
"""About a second of a thread; the estimate of a longer text errs least."""


def token_counter(file: Path | None, model_folder: Path | None) -> TokenCounter | None:
    """By the tokenizer that is named (:class:`SettingsError` where it is not to be had), else by
    that of the model's folder; None: by none."""
    if file is not None:
        return TokenCounter(file)
    if model_folder is None:
        return None
    try:
        return TokenCounter(model_folder / TOKENIZER_FILE)
    except SettingsError as error:
        log.info("prompts are estimated, never counted: %s", error)
        return None


class TokenCounter:
    """Counts with one ``tokenizer.json``."""

    def __init__(self, path: Path) -> None:
        """:class:`SettingsError` where library or file are not to be had."""
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the pool here is the bound
        try:
            library: Any = importlib.import_module("tokenizers")
        except ImportError:
            raise SettingsError("tokenizer: the library 'tokenizers' is not installed") from None
        try:
            self._tokenizer = library.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises no narrower one
            raise SettingsError(f"tokenizer: {path} cannot be read: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tokens")
        self._waiting = 0

    async def count(self, texts: Sequence[str]) -> int | None:
        """Tokens of all of them; None: too busy, too much, or there is no counting such text."""
        if self._waiting >= _MOST_WAITING or sum(map(len, texts)) > _MOST_CHARACTERS:
            return None
        loop = asyncio.get_running_loop()
        self._waiting += 1
        counting = self._pool.submit(self._count, texts)
        # also of a request whose client left meanwhile: a thread is busy as long as it counts
        counting.add_done_callback(lambda _: loop.call_soon_threadsafe(self._ended))
        return await asyncio.wrap_future(counting)

    def close(self) -> None:
        """Let the threads end."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _ended(self) -> None:
        self._waiting -= 1

    def _count(self, texts: Sequence[str]) -> int | None:
        try:
            # the one call of the library that lets go of the interpreter
            counted = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except (TypeError, UnicodeError):  # a lone surrogate
            return None
        return sum(map(len, counted))
