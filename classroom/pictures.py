"""Pictures in explanations: which of those that a student pasted are safe to show.

A picture is made anew from the parts of the submitted one that draw it. So nothing that hides in it
reaches a page: no second file behind the picture, no comments, no profile that unpacks to
gigabytes, no place where a photo was taken.
"""

import base64
import binascii
import hashlib
import re
import struct
import zlib
from urllib.parse import unquote

MAX_PICTURES = 4  # in one cell
MAX_BYTES = 3 * 2**20  # of one picture
MAX_PIXELS = 16_000_000  # a phone's photo has 12 million
MAX_SIDE = 10_000
MAX_SCANS = 100  # of a progressive JPEG: each goes over the whole picture
# The alternative text and the target of ![…](…), as JupyterLab, VS Code and Colab write it. No part
# of it may match a second `![`, or a text of many would take quadratic time.
IMAGE = re.compile(
    r"!\[(?P<alt>[^][\n]{0,300})\]\("
    r'(?:<?attachment:(?P<name>[^][()<>"\n]{1,300}?)>?'
    r"|data:image/(?:png|jpe?g);base64,(?P<data>[A-Za-z0-9+/=]*))"
    r'(?:[ \t]+"[^"\n()]{0,300}")?\)'
)
PNG = b"\x89PNG\r\n\x1a\n"
DRAWN = {b"IHDR", b"PLTE", b"tRNS", b"gAMA", b"sRGB", b"pHYs", b"IDAT", b"IEND"}
FRAMES = {0xC0, 0xC1, 0xC2}  # baseline, extended and progressive: what browsers draw
OTHER_FRAMES = {0xC3, *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)}
# Within the data of a scan: a marker that is no stuffed byte, no restart and no filling.
MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")


class Unfit(Exception):
    """The bytes are no picture that may be shown."""


def fits(width: int, height: int) -> None:
    """Raise for a size that takes a browser too much memory."""
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE and width * height <= MAX_PIXELS):
        raise Unfit(f"it has {width} × {height} pixels")


def png(data: bytes) -> bytes:
    """Return a PNG of the parts that draw it."""
    kept, place, seen = [PNG], len(PNG), set()
    while b"IEND" not in seen:
        if place + 12 > len(data):
            raise Unfit("it is cut off")
        length, kind = struct.unpack_from(">I4s", data, place)
        end = place + 12 + length
        if end > len(data) or (
            zlib.crc32(data[place + 4 : end - 4]) != int.from_bytes(data[end - 4 : end])
        ):
            raise Unfit("it is cut off or damaged")
        if not seen and (kind != b"IHDR" or length != 13):
            raise Unfit("it does not begin with its size")
        if kind == b"IHDR":
            if seen:
                raise Unfit("it has two sizes")
            fits(*struct.unpack_from(">II", data, place + 8))
        if kind in DRAWN:
            kept.append(data[place:end])
        elif kind[:1].isupper():
            raise Unfit("it has a part that is unknown and needed")
        seen.add(kind)
        place = end
    if b"IDAT" not in seen:
        raise Unfit("it is empty")
    return b"".join(kept)


def turned(exif: bytes) -> bytes:
    """Return an Exif segment that says only how to turn the photo; empty where that is unknown."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[6:10])
    try:
        (start,) = struct.unpack_from(f"{order}I", exif, 10)
        (count,) = struct.unpack_from(f"{order}H", exif, 6 + start)
        for k in range(min(count, 100)):
            tag, kind, n, turn = struct.unpack_from(f"{order}HHIH", exif, 8 + start + 12 * k)
            if (tag, kind, n) == (0x112, 3, 1) and 1 <= turn <= 8:
                said = struct.pack(">HHHIHHI", 1, 0x112, 3, 1, turn, 0, 0)
                body = b"Exif\0\0MM\0*\0\0\0\x08" + said
                return b"\xff\xe1" + struct.pack(">H", 2 + len(body)) + body
    except struct.error:
        pass
    return b""


def jpeg(data: bytes) -> bytes:
    """Return a JPEG of the parts that draw it."""
    kept, place, sized, scans = [b"\xff\xd8"], 2, False, 0
    while True:
        while data[place : place + 2] == b"\xff\xff":  # filling
            place += 1
        if place + 4 > len(data) and data[place : place + 2] != b"\xff\xd9":
            raise Unfit("it is cut off")
        if data[place] != 0xFF:
            raise Unfit("it is damaged")
        marker = data[place + 1]
        if marker == 0xD9:
            if not scans:
                raise Unfit("it is empty")
            return b"".join([*kept, b"\xff\xd9"])
        end = place + 2 + int.from_bytes(data[place + 2 : place + 4])
        if end > len(data) or end < place + 4:
            raise Unfit("it is cut off or damaged")
        body = data[place + 4 : end]
        if marker in OTHER_FRAMES or (marker in FRAMES and (sized or len(body) < 6)):
            raise Unfit("it is a kind of JPEG that browsers do not draw")
        if marker in FRAMES:
            sized = True
            height, width = struct.unpack_from(">HH", body, 1)
            fits(width, height)
        if marker == 0xDA:
            scans += 1
            if not sized or scans > MAX_SCANS:
                raise Unfit("it has no size, or is drawn too many times")
            found = MARKER.search(data, end)
            if not found:
                raise Unfit("it is cut off")
            end = found.start()
        drawn = marker in FRAMES | {0xC4, 0xDA, 0xDB, 0xDD}  # tables, scans, restarts
        drawn |= marker == 0xE0 and body.startswith(b"JFIF\0") and len(body) == 14
        drawn |= marker == 0xEE and body.startswith(b"Adobe") and len(body) == 12  # its colours
        if drawn:
            kept.append(data[place:end])
        elif marker == 0xE1 and body.startswith(b"Exif\0\0"):
            kept.append(turned(body))
        place = end


def picture(text: object) -> dict[str, str]:
    """Return {type: base64} of a PNG or JPEG that may be shown; empty for all else.

    What counts is what the bytes are, not what was said of them.
    """
    if not isinstance(text, str) or len(text) > MAX_BYTES * 3 // 2:
        return {}
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
        if len(data) > MAX_BYTES:
            return {}
        if data.startswith(PNG):
            return {"image/png": base64.b64encode(png(data)).decode()}
        if data.startswith(b"\xff\xd8\xff"):
            return {"image/jpeg": base64.b64encode(jpeg(data)).decode()}
    except (binascii.Error, ValueError, Unfit):
        pass
    return {}


def pasted(data: str) -> str:
    """Return the name for a picture that stands in the text itself."""
    return f"pasted-{hashlib.sha256(data.encode()).hexdigest()[:16]}"


def pictures(cell: dict) -> dict[str, dict[str, str]]:
    """Return the safe attachments of a submitted markdown cell: those that its text shows.

    A picture that stands in the text as data:image/…;base64,… becomes one, too; `as_text` of
    feedback.py then finds it by the same name. `cell` is as JSON gave it: anything may stand there.
    """
    source = cell.get("source")
    text = "".join(map(str, source)) if isinstance(source, list) else str(source)
    attached = cell.get("attachments")
    attached = attached if isinstance(attached, dict) else {}
    found: dict[str, dict[str, str]] = {}
    for match in IMAGE.finditer(text):
        if len(found) == MAX_PICTURES:
            break
        if match["data"] is not None:
            name, sent = pasted(match["data"]), [match["data"]]
        else:
            name = match["name"] if match["name"] in attached else unquote(match["name"])
            kinds = attached.get(name)
            sent = list(kinds.values())[:MAX_PICTURES] if isinstance(kinds, dict) else []
        safe = next(filter(None, map(picture, sent)), None)
        if safe:
            found[name] = safe
    return found
