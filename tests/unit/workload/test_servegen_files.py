"""ServeGen's files, and what damaged ones are told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.workload import TraceError
from tidegate.workload.traces.servegen import (
    ClientLengths,
    RateWindow,
    client_numbers,
    read_lengths,
    read_rates,
)

RATES = "0,4,1.5,Gamma,1,1\n600,0,0,,0,0\n1200,2.5,3,Weibull,1,1\n"
LENGTHS = {
    "0": {"input_tokens": "{}", "output_tokens": "{}"},
    "21600": {"input_tokens": "{100: 0.5, 300: 0.5}", "output_tokens": "{7: 1}"},
}


def written(folder: Path, rates: str = RATES, lengths: object = LENGTHS) -> Path:
    text = lengths if isinstance(lengths, str) else json.dumps(lengths)
    (folder / "chunk-7-trace.csv").write_text(rates)
    (folder / "chunk-7-dataset.json").write_text(text)
    return folder


def test_rates_are_read_from_a_second_on(tmp_path: Path) -> None:
    folder = written(tmp_path)
    assert client_numbers(folder) == [7]
    assert read_rates(folder, 7, 0)[0] == RateWindow(4.0, 1.5, weibull=False)
    assert read_rates(folder, 7, 600) == [
        RateWindow(0.0, 0.0, weibull=False),
        RateWindow(2.5, 3.0, weibull=True),
    ]


def test_lengths_are_those_of_their_six_hours_or_there_are_none(tmp_path: Path) -> None:
    folder = written(tmp_path)
    assert read_lengths(folder, 7, 30_000) == ClientLengths({100: 0.5, 300: 0.5}, {7: 1})
    assert read_lengths(folder, 7, 0) is None  # silent
    assert read_lengths(folder, 7, 90_000) is None  # not in the file
    assert read_lengths(folder, 8, 0) is None  # no file


def rates(text: str) -> Callable[[Path], object]:
    return lambda folder: read_rates(written(folder, rates=text), 7, 1_200)


def lengths(text: object) -> Callable[[Path], object]:
    return lambda folder: read_lengths(written(folder, lengths=text), 7, 21_600)


def histograms(prompt: object, output: object = "{7: 1}") -> Callable[[Path], object]:
    return lengths({"21600": {"input_tokens": prompt, "output_tokens": output}})


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (rates(""), "trace.csv:1: ends after 0 s; there is nothing from 1200 s on"),
        (rates(RATES[:30]), "trace.csv:2: ends after 1200 s; there is nothing from 1200 s on"),
        (rates(RATES[:-8]), "trace.csv:3: expected 6 fields, got 4"),
        (rates(RATES.replace("2.5", "2.5.1")), ":3: the rate must be a number of at least 0"),
        (rates(RATES.replace("2.5", "-1")), ":3: the rate must be a number of at least 0"),
        (rates(RATES.replace("2.5", "nan")), ":3: the rate must be a number of at least 0"),
        (rates(RATES.replace("1.5", "inf")), ":1: the variation must be a number of at least 0"),
        (rates(RATES.replace("Weibull", "Wei")), ":3: the distribution must be Gamma or Weibull"),
        (rates(RATES.replace("600,0,0,,0,0\n", "")), ":2: expected second 600, got 1200"),
        (rates('"0'), ":1: not CSV"),
        (lengths(json.dumps(LENGTHS)[:60]), "dataset.json:1: not JSON"),
        (lengths("[1]"), ":1: not an object of histograms by second"),
        (lengths("[" * 100_000), ":1: not JSON that can be read"),
        (lengths({"21600": "{}"}), ":1: 21600 must be an object with input_tokens and output_to"),
        (lengths({"21600": {"input_tokens": "{1: 1}"}}), ":1: 21600.output_tokens must be a hist"),
        (histograms("{100: 0.5, 30"), ":1: 21600.input_tokens must be a histogram"),
        (histograms("__import__('os')"), ":1: 21600.input_tokens must be a histogram"),
        (histograms("{[1]: 1}"), ":1: 21600.input_tokens must be a histogram"),
        (histograms("[100]"), ":1: 21600.input_tokens must be a histogram"),
        (histograms("{1.5: 1}"), "21600.input_tokens: a length must be an integer"),
        (histograms("{-1: 1}"), "21600.input_tokens: a length must be an integer from 0"),
        (histograms("{100: -1}"), "21600.input_tokens: a share must be at least 0, got -1"),
        (histograms("{100: 1e999}"), "21600.input_tokens: a share must be at least 0, got inf"),
        (histograms("{100: 0}"), "21600.input_tokens: all shares are 0"),
        (histograms("{100: 1}", "{}"), "21600.output_tokens is empty and input_tokens is not"),
    ],
)
def test_a_damaged_file_is_told_file_and_line(
    read: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(TraceError) as raised:
        read(tmp_path)
    assert message in str(raised.value)
    assert str(raised.value).startswith(str(tmp_path / "chunk-7-"))


def test_a_file_of_no_number_is_named(tmp_path: Path) -> None:
    (tmp_path / "chunk-seven-trace.csv").write_text(RATES)
    with pytest.raises(TraceError, match=r"chunk-seven-trace\.csv: expected chunk-NUMBER"):
        client_numbers(tmp_path)


def test_a_missing_file_of_rates_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"chunk-7-trace\.csv: No such file"):
        read_rates(tmp_path, 7, 0)
