"""Feedback: what students may see, pictures among it. Whole pages are made in proof/classroom."""

import base64
import copy
import io
import json
import re
import struct
import zlib
from collections import Counter
from functools import cache

import feedback
import nbformat
import numpy as np
import pytest
from bs4 import BeautifulSoup
from feedback import CUT, LEFT_OUT, as_text, closed, exporter
from marking import is_test, key, release
from nbconvert.exporters import HTMLExporter
from nbformat.v4 import new_output
from nbgrader.server_extensions.formgrader import handlers
from pictures import MAX_BYTES, MAX_PICTURES, picture, pictures
from PIL import Image
from traitlets.config import Config

import tiny_assignment
from check.grading.shown import PNG, encoded, noise, seen
from tiny_assignment import TOPIC, TOPICS, assignment, named

pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")


@cache
def maker(template: str) -> HTMLExporter:
    """Return what makes pages, as feedback or as Formgrader sets it up."""
    if template == "feedback":
        return exporter()
    config = Config()
    config.HTMLExporter.sanitize_html = True
    config.HTMLExporter.template_name = template
    config.HTMLExporter.extra_template_basedirs = [handlers.template_path]
    return HTMLExporter(config=config)


def shown(notebook, template: str = "feedback") -> str:
    if template == "feedback":
        said = {"student": "ada", "score": 0, "max_score": 0, "late_penalty": 0, "cells": {}}
        return feedback.made(maker(template), notebook, TOPIC, said)
    resources = {"base_url": "", "student": "ada", "notebook_id": TOPIC, "index": 0, "total": 1}
    return maker(template).from_notebook_node(notebook, resources)[0]


@pytest.mark.parametrize("topic", TOPICS)
def test_no_hidden_line_is_on_a_page(topic):
    source = assignment(topic).source
    given = "\n".join(cell.source for cell in release(source).cells)
    notebook = key(source)
    lines = {line.strip() for cell in notebook.cells for line in cell.source.splitlines()}
    hidden = {line for line in lines if line not in given}
    for cell in filter(is_test, notebook.cells):
        cell.outputs = [new_output("stream", text=cell.source)]  # nothing of this may stay
        cell.metadata["parts"] = [{"name": "", "points": 5, "earned": 0, "said": "E: no"}]
    text = nbformat.writes(closed(notebook, source))
    assert len(hidden) > 10 or topic == "start"
    assert [line for line in hidden if len(line) > 10 and json.dumps(line)[1:-1] in text] == []


def test_a_test_cell_says_what_became_of_each_part():
    notebook = key(tiny_assignment.source())
    named(notebook, "double_tests").metadata["parts"] = [
        {"name": "small numbers", "points": 10, "earned": 10, "said": ""},
        {"name": "large ones", "points": 25, "earned": 0, "said": "Error: 3 \x1b[31mis\n5"},
        {"name": "texts", "points": 5, "earned": None, "said": "it took too long"},
    ]
    named(notebook, "scale_tests").metadata["parts"] = [
        {"name": "", "points": 45, "earned": 22.5, "said": "x" * 10**6}
    ]
    done = closed(notebook, tiny_assignment.source())
    cell = named(done, "double_tests")
    assert cell.outputs[0].text == (
        "small numbers: 10 of 10 points\n"
        "large ones: 0 of 25 points\n    Error: 3 is\n5\n"
        "texts: not graded, of 5 points. Your teacher will look at it.\n    it took too long\n"
    )
    assert "parts" not in cell.metadata
    assert named(done, "scale_tests").outputs[0].text.startswith("22.5 of 45 points\n")
    assert len(named(done, "scale_tests").outputs[0].text) < 2000


@pytest.mark.parametrize(
    "text",
    [
        "[a](javascript:alert(1))",
        "![a](http://example.org/a.png)",
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "</textarea><svg/onload=alert(1)>",
        '```mermaid\ngraph LR; A-->B; click A href "javascript:alert(1)"\n```',
        "![a](data:image/svg+xml;base64,PHN2Zy8+)",
        '![a" onerror="alert(1)](attachment:a.png)',
        "$\\href{javascript:alert(1)}{a}$ <iframe src=//example.org>",
    ],
)
def test_a_text_runs_nothing(text):
    notebook = seen(text, attachments={"a.png": {"image/png": PNG}})
    for template in ("feedback", "formgrade"):
        assert risky(shown(copy.deepcopy(notebook), template)) == usual(template)


@cache
def usual(template: str) -> Counter:
    return risky(shown(seen(), template))


def risky(page: str) -> Counter:
    """Return the parts of a page that could run or fetch something."""
    found = Counter()
    for tag in BeautifulSoup(page, "html.parser").find_all():
        if tag.name not in ("p", "pre", "code", "ul", "li", "blockquote", "img", "em", "div", "a"):
            found[tag.name] += 1
        found.update("mermaid" for name in tag.get("class", []) if "mermaid" in name.lower())
        for name, value in tag.attrs.items():
            if name.startswith("on") or (
                # A plain address in a text becomes a link; nothing is fetched from it.
                (name == "href" and not value.startswith("http"))
                or (name == "src" and not value.startswith("data:image/png;base64,iVBORw"))
            ):
                found[name, value] += 1
    return found


def test_text_is_shown_as_it_reads_and_steers_nothing():
    odd = "a\x1b[31mred\x1b[0m\x1b]0;title\x07 \u202eright\u2066 \x00\x9b nul\r\nnew\rline "
    odd += "\ufeff\ud800"
    done = seen(odd, "x = 1  # \x1b[31m\u202e\r\n", outputs=[new_output("stream", text=odd)])
    assert named(done, "explain").source == "ared right  nul\nnew\nline "
    assert named(done, "double").source == "x = 1  # \n"
    assert named(done, "double").outputs[0].text == "ared right  nul\nnew\nline "
    fine = "é ü 你好 שלום 👩‍💻 e\u0301 $x < y$ a\u00a0b\n\n```python\nx\n```\n\n`y` **b**"
    assert as_text(fine) == fine
    outputs = [new_output("stream", text="o" * 10**6)]
    long = seen("long " * 10**5, "x = 1\n" * 10**5, outputs=outputs)
    for name, most in (("explain", 20_000), ("double", 50_000)):
        assert named(long, name).source.endswith(CUT)
        assert len(named(long, name).source) <= most + 100
    assert len(named(long, "double").outputs[0].text) <= 200_100


def test_an_output_is_text_or_a_picture():
    data = {"text/html": "<b>", "text/plain": "bold", "application/javascript": "alert(1)"}
    many = [new_output("display_data", data={"image/png": PNG, "text/plain": "figure"})]
    many += [new_output("display_data", data=data)]
    many += [new_output("display_data", data={"image/png": "PHN2Zz4="})]
    many += [new_output("error", ename="E", evalue="no", traceback=["\x1b[31mE\x1b[0m: no"])]
    outputs = named(seen(outputs=many), "double").outputs
    assert [output.output_type for output in outputs] == ["display_data"] + ["stream"] * 3
    assert set(outputs[0].data) == {"image/png"}
    assert [output.text for output in outputs[1:]] == ["bold", "", "E: no"]


# ── Pictures ──────────────────────────────────────────────────────────────────────────────────────


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def changed(text: str, change) -> str:
    return base64.b64encode(change(base64.b64decode(text))).decode()


def sized(width: int, height: int) -> str:
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return changed(PNG, lambda data: data[:8] + chunk(b"IHDR", head) + data[33:])


JPEG = encoded(noise(20, 10), "JPEG")
SECRET = b"<script>alert(1)</script>"
PACKED = zlib.compress(SECRET + bytes(10**7))
GOOD = {
    "palette": encoded(noise(20, 10).quantize(8), transparency=0),
    "jpeg": JPEG,
    "progressive": encoded(noise(200, 100), "JPEG", progressive=True),
    "CMYK": encoded(noise(20, 10).convert("CMYK"), "JPEG"),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_real_picture_is_the_same_when_it_is_made_anew(name):
    ((kind, text),) = picture(GOOD[name]).items()
    before = Image.open(io.BytesIO(base64.b64decode(GOOD[name])))
    after = Image.open(io.BytesIO(base64.b64decode(text)))
    assert kind == f"image/{before.format.lower()}"
    assert (before.format, before.mode, before.size) == (after.format, after.mode, after.size)
    np.testing.assert_array_equal(np.asarray(before), np.asarray(after))
    assert picture(text) == {kind: text}


@pytest.mark.parametrize(
    "text",
    {
        "comment in a PNG": changed(
            PNG, lambda data: data[:33] + chunk(b"tEXt", b"a\0" + SECRET) + data[33:]
        ),
        "profile that unpacks": changed(
            PNG, lambda data: data[:33] + chunk(b"iCCP", b"a\0\0" + PACKED) + data[33:]
        ),
        "comment in a JPEG": encoded(noise(9, 9), "JPEG", comment=SECRET),
        "text in Exif": encoded(noise(9, 9), "JPEG", exif=b"Exif\0\0" + SECRET),
    }.values(),
    ids=range(4),
)
def test_nothing_hides_in_a_picture(text):
    ((_, kept),) = picture(text).items()
    data = base64.b64decode(kept)
    assert SECRET not in data and PACKED[:6] not in data
    Image.open(io.BytesIO(data)).load()


def test_a_photo_keeps_its_turn_and_loses_its_place():
    exif = Image.Exif()
    exif[0x112], exif[0x10F] = 6, "a maker"
    exif.get_ifd(0x8825)[1] = "N"  # where it was taken
    ((_, kept),) = picture(encoded(noise(20, 10), "JPEG", exif=exif)).items()
    left = Image.open(io.BytesIO(base64.b64decode(kept))).getexif()
    assert dict(left) == {0x112: 6} and not left.get_ifd(0x8825)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "no base64!",
        base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg'/>").decode(),
        base64.b64encode(b"\xff\xd8" + b"\xff" * 10**6).decode(),
        changed(PNG, lambda data: data[: len(data) // 2]),
        changed(PNG, lambda data: data[:33] + chunk(b"NEED", b"") + data[33:]),
        changed(JPEG, lambda data: data.replace(b"\xff\xc0", b"\xff\xc3")),
        sized(0, 10),
        sized(5000, 5000),
        "A" * (MAX_BYTES * 4 // 3 + 4),
        changed(PNG, lambda data: data[:33] + chunk(b"PLTE", bytes(MAX_BYTES)) + data[33:]),
    ],
)
def test_what_is_no_whole_picture_of_a_usual_size_is_refused(text):
    assert picture(text) == {}


def test_a_jpeg_is_not_drawn_a_thousand_times():
    data = base64.b64decode(encoded(noise(20, 10), "JPEG", progressive=True))
    start = data.rindex(b"\xff\xda")
    many = data[:start] + data[start:-2] * 1000 + data[-2:]
    assert picture(base64.b64encode(many).decode()) == {}


def bytes_on(page: str) -> list[str]:
    return re.findall(r'<img [^>]*src="data:image/[a-z]+;base64,([^"]*)"', page)


@pytest.mark.parametrize("template", ["feedback", "formgrade"])
def test_a_pasted_picture_is_on_the_page(template):
    """As JupyterLab, VS Code and others write it; each has a text for who does not see it."""
    text = (
        "My drawing: ![image.png](attachment:image.png), my *proof* "
        '![a steep line](attachment:my%20photo.jpg "title") ![](<attachment:my photo.jpg>)\n\n'
        f"![alt text](data:image/png;base64,{PNG}) <b>and so on."
    )
    attachments = {"image.png": {"image/png": PNG}, "my photo.jpg": {"image/jpeg": JPEG}}
    page = shown(seen(text, attachments=attachments), template)
    sources = [picture(text) for text in (PNG, JPEG, JPEG, PNG)]
    assert bytes_on(page) == [text for kinds in sources for text in kinds.values()]
    alts = re.findall(r'<img [^>]*?alt="([^"]*)"', page)
    unnamed = "Picture in the answer"
    assert alts == [unnamed, "a steep line", unnamed, unnamed]
    assert "My drawing" in page and "<em>proof</em>" in page and "&lt;b&gt;and so on" in page


@pytest.mark.parametrize(
    "attachments", [{"a.png": {"image/svg+xml": "PHN2Zy8+"}}, {"b.png": {"image/png": PNG}}]
)
def test_a_picture_that_is_not_shown_is_named(attachments):
    done = seen("See ![a](attachment:a.png) here", attachments=attachments)
    assert named(done, "explain").source == f"See {LEFT_OUT} here"
    assert "attachments" not in named(done, "explain")


def test_a_few_pictures_are_shown_of_many_or_large_ones():
    many = [(f"{k}.png", encoded(noise(20 + k, 10))) for k in range(9)]
    large = [(f"{k}.png", encoded(noise(1000 - k, 900))) for k in range(4)]
    for given, n_shown in ((many, MAX_PICTURES), (large, 3)):
        text = "\n".join(f"![](attachment:{name})" for name, _ in given)
        done = seen(text, attachments={name: {"image/png": data} for name, data in given})
        assert len(named(done, "explain").attachments) == n_shown
        assert named(done, "explain").source.count(LEFT_OUT) == len(given) - n_shown
    same = {"a.png": {"image/png": PNG}}
    assert len(pictures({"source": "![](attachment:a.png)" * 10**5, "attachments": same})) == 1
    for text in ("![](data:image/png;base64,", "![", "![](attachment:"):
        assert pictures({"source": text * 10**5}) == {}
