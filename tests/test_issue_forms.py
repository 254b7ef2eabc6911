"""The forms for issues are what GitHub reads, and ask for what is needed to act."""

from pathlib import Path

import pytest
import yaml
from engines import ENGINES

from firsttoken import architectures

FOLDER = Path(__file__).parents[1] / ".github" / "ISSUE_TEMPLATE"
FORMS = {p.stem: yaml.safe_load(p.read_text()) for p in FOLDER.glob("*.yml") if p.stem != "config"}
ASKED = {
    "erratum": ["page", "cell", "says", "right", "check"],
    "engine_release": ["engine", "version", "moved", "behaviour"],
    "new_model": ["config", "new", "output"],
}
MAY_STAY_EMPTY = {"cell", "behaviour"}
KINDS = {"input", "textarea", "dropdown"}


def complaints(form: dict) -> list[str]:
    """Return what GitHub would not take: its syntax for forms."""
    said = [f"no {key}" for key in ("name", "description", "body") if not form.get(key)]
    ids = [field.get("id") for field in form["body"] if field["type"] != "markdown"]
    said += [f"id {i}" for i in ids if not i or ids.count(i) > 1]
    for field in form["body"]:
        attributes = field.get("attributes", {})
        needed = {"markdown": "value"}.get(field["type"], "label")
        if field["type"] not in KINDS | {"markdown"}:
            said.append(f"a field of type {field['type']}")
        if not isinstance(attributes.get(needed), str):
            said.append(f"{field.get('id')}: no {needed}")
        options = attributes.get("options", [] if field["type"] == "dropdown" else ["one"])
        if not options or not all(isinstance(option, str) for option in options):
            said.append(f"{field.get('id')}: options {options}")
        if not set(field) <= {"type", "id", "attributes", "validations"}:
            said.append(f"{field.get('id')}: {set(field)}")
        if not isinstance(field.get("validations", {}).get("required", False), bool):
            said.append(f"{field.get('id')}: required is neither true nor false")
    return said


def test_there_is_a_form_for_each_kind():
    assert set(FORMS) == set(ASKED)
    assert len({form["name"] for form in FORMS.values()}) == len(FORMS)
    config = yaml.safe_load((FOLDER / "config.yml").read_text())
    assert isinstance(config["blank_issues_enabled"], bool)
    assert set(config) <= {"blank_issues_enabled", "contact_links"}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_can_be_read_and_asks_for_what_is_needed(name):
    form = FORMS[name]
    assert complaints(form) == []
    fields = {field["id"]: field for field in form["body"] if field["type"] != "markdown"}
    assert list(fields) == ASKED[name]
    required = {i for i, field in fields.items() if field.get("validations", {}).get("required")}
    assert required == set(fields) - MAY_STAY_EMPTY


def test_forms_name_what_there_is():
    (engine,) = [field for field in FORMS["engine_release"]["body"] if field.get("id") == "engine"]
    *engines, other = engine["attributes"]["options"]
    assert set(engines) < set(ENGINES) and other not in ENGINES
    assert callable(architectures.from_hf_config)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda form: form.pop("description"), "no description"),
        (lambda form: form["body"][1].pop("id"), "id None"),
        (lambda form: form["body"][2].update(id="page"), "id page"),
        (lambda form: form["body"][1].update(type="text"), "a field of type text"),
        (lambda form: form["body"][1]["attributes"].pop("label"), "page: no label"),
        (lambda form: form["body"][1].update(required=True), "page: {"),
        (lambda form: form["body"][1].update(type="dropdown"), "page: options []"),
    ],
)
def test_a_broken_form_is_noticed(spoil, complaint):
    form = yaml.safe_load((FOLDER / "erratum.yml").read_text())
    spoil(form)
    assert any(said.startswith(complaint) for said in complaints(form)), complaints(form)
