"""The engine model's constants: each has a source, and each can be moved to see what it does."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tidegate.simulator.engine_model import CALIBRATIONS, DRAFTS, Calibration, StepTimeModel

CONSTANTS = {constant.name for constant in fields(StepTimeModel)}


@pytest.mark.parametrize("name", CALIBRATIONS)
def test_every_constant_has_a_source(name: str) -> None:
    sources = CALIBRATIONS[name].sources
    assert set(sources) in ({"*"}, CONSTANTS | {"kv_capacity_tokens"})
    assert all(sources.values())


@pytest.mark.parametrize("name", DRAFTS)
def test_every_constant_of_a_draft_has_a_source(name: str) -> None:
    draft = DRAFTS[name]
    assert set(draft.sources) == CONSTANTS | {"acceptance_percent"}
    assert all(0 < percent < 100 for percent in draft.acceptance_percent.values())


def test_a_pass_of_a_draft_is_a_small_part_of_a_step() -> None:
    draft, target = DRAFTS["chat_tp8"].pass_time, CALIBRATIONS["h100_70b_tp8"].step_time
    for tokens in (1, 64, 4096):
        assert draft.seconds(tokens) < target.seconds(tokens) / 15


@pytest.mark.parametrize(
    ("name", "table_ms"),
    [
        ("h100_70b_tp8", {64: 14.0, 256: 20.0, 1024: 52.2, 2048: 97.5, 4096: 178.2}),
        ("h100_70b_tp4", {64: 21.5, 256: 27.0, 1024: 78.2, 2048: 139.8, 4096: 278.7}),
    ],
)
def test_the_line_meets_the_table_it_was_drawn_through(
    name: str, table_ms: dict[int, float]
) -> None:
    """Vidur's profile of 8 and of 4 H100, Llama 70B in bf16."""
    model = CALIBRATIONS[name].step_time
    for tokens, expected in table_ms.items():
        measured = (model.seconds(tokens) - model.overhead_seconds) * 1000
        assert measured == pytest.approx(expected, rel=0.05 if name.endswith("tp8") else 0.08)


def test_variations_move_one_constant_each() -> None:
    calibration = CALIBRATIONS["h100_70b_tp8"]
    seen = set()
    for name, factor, varied in calibration.variations():
        seen.add((name, factor))
        changed = {
            constant
            for constant in CONSTANTS
            if getattr(varied.step_time, constant) != getattr(calibration.step_time, constant)
        }
        if name == "kv_capacity_tokens":
            assert varied.kv_capacity_tokens == pytest.approx(factor * 1_200_000)
            assert not changed
        else:
            assert changed == {name}
            value = getattr(calibration.step_time, name)
            assert getattr(varied.step_time, name) == pytest.approx(factor * value)
    # Every constant that is not 0, and the KV capacity.
    unused = {"per_row_seconds", "prefill_seconds"}
    assert {name for name, _ in seen} == (CONSTANTS - unused) | {"kv_capacity_tokens"}
    assert {factor for _, factor in seen} == {0.8, 1.2}
    with pytest.raises(ValueError, match="positive"):
        calibration.scaled_constant("floor_seconds", 0)


def test_a_measured_calibration_survives_json() -> None:
    for calibration in CALIBRATIONS.values():
        assert Calibration.from_json(calibration.to_json()) == calibration
    with pytest.raises(ValueError, match="must not be negative"):
        Calibration.from_json(
            {**CALIBRATIONS["test"].to_json(), "step_time": dict.fromkeys(CONSTANTS, -1)}
        )
