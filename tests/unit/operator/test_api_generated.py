"""The generated files are those that the models generate; the schemas hold to the house rules."""

from pathlib import Path

import pytest
import yaml
from tidegate_operator.api import fields, generate, schema
from tidegate_operator.api.conditions import Reason
from tidegate_operator.api.crd import KINDS, Kind, object_schema

ROOT = Path(__file__).resolve().parents[3]
FILES = generate.generated_files()
WITHOUT_BOUND = ["apiVersion", "kind"]  # the API server's own, of every kind


@pytest.mark.parametrize("name", FILES)
def test_generated_file_is_up_to_date(name: str) -> None:
    path = ROOT / name
    assert path.is_file(), "run scripts/generate"
    assert path.read_text() == FILES[name], "run scripts/generate"


def test_no_other_crd_lies_beside_them() -> None:
    generated = {Path(name).name for name in FILES if name.startswith("crds/")}
    assert {path.name for path in (ROOT / "crds").iterdir()} == generated


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_everything_is_bounded(kind: Kind) -> None:
    assert schema.unbounded(object_schema(kind)) == WITHOUT_BOUND


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_everything_is_described_and_optional_fields_say_what_unset_means(kind: Kind) -> None:
    spec = object_schema(kind)["properties"]["spec"]
    for path, node in schema.walk(spec, "spec"):
        for name, child in node.get("properties", {}).items():
            where = f"{path}.{name}"
            assert child.get("description"), where
            if name not in node.get("required", ()) and "default" not in child:
                assert "Unset: " in child["description"], where
            if child.get("minimum") == 0:
                assert "Zero: " in child["description"], where


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_replicas_is_the_only_default_in_a_spec(kind: Kind) -> None:
    spec = object_schema(kind)["properties"]["spec"]
    defaults = {path: node["default"] for path, node in schema.walk(spec) if "default" in node}
    assert defaults == ({"replicas": 1} if kind.name == "ServingPool" else {})


@pytest.mark.parametrize("name", [n for n in FILES if n.startswith("crds/t")])
def test_crd_yaml_has_no_trace_of_json_schema(name: str) -> None:
    (version,) = yaml.safe_load(FILES[name])["spec"]["versions"]
    for path, node in schema.walk(version["schema"]["openAPIV3Schema"]):
        assert not node.keys() & {"$ref", "title", "const", "$defs"}, path
        assert node.get("x-kubernetes-int-or-string") or "anyOf" not in node, path
        assert node.get("default", ...) is not None, path


class Untranslatable(fields.ApiModel):
    """Has a constraint that structural schemas lack."""

    count: int = fields.described("A count.", multiple_of=3)


class SeveralTypes(fields.ApiModel):
    """Could be two things."""

    value: int | str = fields.described("A value.")


@pytest.mark.parametrize(
    ("model", "said"),
    [(Untranslatable, "count: multipleOf"), (SeveralTypes, "value: only int-or-string")],
)
def test_what_cannot_be_translated_is_refused_by_name(
    model: type[fields.ApiModel], said: str
) -> None:
    with pytest.raises(schema.SchemaError, match=said):
        schema.structural(model)


def test_unbounded_names_each_kind_of_size() -> None:
    class Loose(fields.ApiModel):
        """Nothing is bounded."""

        text: str = fields.described("Text.")
        items: list[int] = fields.described("Items.", max_length=3)
        labels: dict[str, str] = fields.described("Labels.")
        switch: bool = fields.described("A switch.")

    assert schema.unbounded(schema.structural(Loose)) == [
        "text",
        "items",
        "items[]",
        "labels",
        "labels.*",
    ]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_docs_name_every_field_and_every_reason(kind: Kind) -> None:
    page = FILES["docs/api.md"]
    for root in ("spec", "status"):
        for path, _ in schema.walk(object_schema(kind)["properties"][root], root):
            if path != root and not path.endswith(("[]", ".*")):
                assert f"| `{path}`" in page, path
    assert all(f"| `{reason}` | {reason.text} |" in page for reason in Reason)
