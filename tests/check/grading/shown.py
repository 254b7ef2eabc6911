"""Notebooks and pictures that feedback is made of."""

import base64
import io

import numpy as np
from feedback import closed
from marking import is_test, mark, prepared, release
from pictures import pictures
from PIL import Image

import tiny_assignment
from tiny_assignment import named, replaced


def seen(explain: str = "Because.", code: str = "", attachments: dict | None = None, outputs=()):
    """Return the closed notebook of someone who wrote these, with pictures taken as they are."""
    given = {"explain": explain} | ({"double": code} if code else {})
    submitted = replaced(release(tiny_assignment.source()), given)
    taken = pictures({"source": explain, "attachments": attachments or {}})
    named(submitted, "explain")["attachments"] = taken
    notebook, *_ = prepared(tiny_assignment.source(), submitted)
    for cell in notebook.cells:
        if is_test(cell):
            points = mark(cell)["points"]
            cell.metadata["parts"] = [
                {"name": "small numbers", "points": points, "earned": points, "said": ""}
            ]
    named(notebook, "double").outputs = list(outputs)
    return closed(notebook, tiny_assignment.source())


def encoded(image: Image.Image, kind: str = "PNG", **options) -> str:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return base64.b64encode(file.getvalue()).decode()


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8))


PNG = encoded(noise(20, 10))
