"""What chapters cite of engines is read from them, and looked up, whatever GitHub answers."""

import json
import re
import urllib.error
from email.message import Message

import engines
import pytest
from engines import ENGINES, Citation, GitHub, Verdict, at_its_release, at_the_newest

# How chapters cite.


def chapter(*texts: str) -> dict:
    """Return a notebook whose section on real systems has these cells."""
    texts = ("## Build\n\n| System | Where |\n|---|---|\n| vLLM 1.0 | `vllm/no.py` |", *texts)
    texts += ("## Decide\n\nSee `vllm/neither.py`.",)
    cells = [{"id": f"c{i}", "cell_type": "markdown", "source": t} for i, t in enumerate(texts)]
    return {"cells": [*cells, {"id": "code", "cell_type": "code", "source": "## no text"}]}


def cited(text: str) -> list[str]:
    """Return what a section cites, a line for each."""
    found = engines.citations(chapter(f"{engines.HEADING}\n\n{text}"), "99_small")
    return [f"{c.engine}@{c.ref} {c.path} {' '.join(c.names)}".strip() for c in found]


HEAD = "| System | Where | What |\n|---|---|---|\n"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("| vLLM 1.2.0 | `vllm/a.py`, `A.run` | `x/y.py` |", ["vLLM@v1.2.0 vllm/a.py A.run"]),
        (
            "| vLLM 1.2.0 | `v/a.py`, `A` and `B`; then `b.py`, `C`; it ends in `D` | |",
            ["vLLM@v1.2.0 v/a.py A B", "vLLM@v1.2.0 b.py C"],
        ),
        ("| llama.cpp b11312 | `src/` , `C` | |", ["llama.cpp@b11312 src/ C"]),
        ("| Megatron-LM core 0.19.0 | `e/prune.py` | |", ["Megatron-LM@core_v0.19.0 e/prune.py"]),
        ("| Nsight | `ncu/x.py` | |", []),
        (
            "| SGLang 0.5.23 | `a/b.py`, `A` | |\n| SGLang, load | the same file, `B` | |",
            ["SGLang@v0.5.23 a/b.py A", "SGLang@v0.5.23 a/b.py B"],
        ),
    ],
)
def test_a_row_is_read(rows, expected):
    assert cited(HEAD + rows) == expected


def test_no_file_of_a_chapter_is_missed():
    """Each file that a table names in its second column, behind an engine, is a citation."""
    read = {(c.chapter, c.path) for c in engines.all_citations()}
    assert len(read) > 100
    for path in sorted((engines.ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        for cell in engines.section(json.loads(path.read_text("utf-8"))):
            for line in "".join(cell["source"]).splitlines():
                system, where = [*line.strip("|").split("|"), ""][:2]
                if line.startswith("|") and engines.NAMED.search(system):
                    files = filter(engines.FILE.fullmatch, engines.CODE.findall(where))
                    assert {(path.stem, file) for file in files} <= read, line


class Web:
    """GitHub with one repository: {ref: {path: text}}, and what goes wrong at some addresses."""

    def __init__(self, releases: dict[str, dict[str, str]], **trouble: Exception):
        self.releases, self.trouble, self.asked = releases, trouble, []

    def __call__(self, address: str) -> bytes:
        self.asked.append(address)
        for part, error in self.trouble.items():
            if part in address:
                raise error
        api = re.fullmatch(r"https://api.github.com/repos/vllm-project/vllm/(\w+)/?(.*)", address)
        raw = re.fullmatch(
            r"https://raw.githubusercontent.com/vllm-project/vllm/sha-([^/]+)/(.+)", address
        )
        if raw and raw[2] in self.releases.get(raw[1], {}):
            return self.releases[raw[1]][raw[2]].encode()
        if api and api[1] == "releases":
            tags = ["gateway-v9.0", *reversed(self.releases)]
            return json.dumps([{"tag_name": tag} for tag in tags]).encode()
        if api and api[1] == "commits" and api[2] in self.releases:
            return json.dumps({"sha": f"sha-{api[2]}"}).encode()
        if api and api[1] == "git":
            ref = re.fullmatch(r"trees/sha-(.+)\?recursive=1", api[2])[1]
            blobs = [{"path": path, "type": "blob"} for path in self.releases[ref]]
            folders = [{"path": "vllm", "type": "tree"}]
            return json.dumps({"tree": folders + blobs, "truncated": False}).encode()
        raise http_error(404)


def http_error(code: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("address", code, "", Message(), None)


POOL = "class Pool:\n    def touch(self): ..."
OLD = {"vllm/v1/pool.py": POOL, "vllm/utils.py": "", "vllm/v1/utils.py": "def stop(): ..."}
CITED = Citation("99_small", "systems", "vLLM", "1.0.0", "vllm/v1/pool.py", ("Pool.touch",))


def verdicts(new: dict[str, str], citation: Citation = CITED, **trouble) -> tuple[Verdict, Verdict]:
    source = GitHub(Web({"v1.0.0": OLD, "v2.0.0": new}, **trouble))
    then = at_its_release(citation, source)
    newest = source.newest(ENGINES["vLLM"])
    assert newest == "v2.0.0"
    return then, at_the_newest(citation, then.path or citation.path, newest, source)


THERE = Verdict("there", "vllm/v1/pool.py")


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (OLD, THERE),
        ({"vllm/v2/pool.py": POOL}, Verdict("moved", "vllm/v2/pool.py")),
        (
            {"vllm/v1/pool.py": "class Pool:\n    def touched(self): ..."},
            Verdict("name gone", "vllm/v1/pool.py", ("Pool.touch",)),
        ),
        ({"vllm/v1/pools.py": POOL}, Verdict("file gone")),
    ],
)
def test_what_became_of_a_file_is_seen(new, expected):
    assert verdicts(new) == (THERE, expected)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (urllib.error.URLError("no route"), "no way to GitHub from here"),
        (http_error(403), "GitHub answers no more requests for now"),
        (http_error(500), "GitHub answers 500"),
    ],
)
def test_no_answer_is_no_verdict(error, reason):
    """And where GitHub refuses, it is not asked again for every file."""
    web = Web({"v1.0.0": OLD}, raw=error)
    source = GitHub(web)
    assert at_its_release(CITED, source) == Verdict("unknown", reason=reason)
    again = at_its_release(engines.replace(CITED, path="vllm/v1/utils.py", names=("stop",)), source)
    assert again == Verdict("unknown", reason=reason)
    refused = reason != "GitHub answers 500"
    assert sum("raw" in address for address in web.asked) == (1 if refused else 2)


def test_what_was_found_stays_while_nothing_can_be_looked_up():
    good = GitHub(Web({"v1.0.0": OLD, "v2.0.0": {}}))
    stored = engines.looked_up([CITED], good, {}, "2026-11-01")
    then, now = (stored["citations"][0][when] for when in ("then", "now"))
    assert (then["date"], then["status"], now["status"]) == ("2026-11-01", "there", "file gone")
    down = GitHub(Web({}, http=urllib.error.URLError("down")))
    later = engines.looked_up([CITED], down, stored, "2026-11-08")
    assert later["citations"] == stored["citations"]
    fresh = engines.looked_up([CITED], down, {}, "2026-11-08")["citations"][0]
    assert fresh["then"]["status"] == fresh["now"]["status"] == "unknown"
    assert engines.report({"citations": [fresh]}) == ""
    assert "Chapter 99_small: vLLM, `vllm/v1/pool.py` at v2.0.0: no such file" in engines.report(
        later
    )


def test_the_program_writes_its_record_and_does_not_fail_without_a_network(
    tmp_path, monkeypatch, capsys
):
    stored, report = tmp_path / "engines.json", tmp_path / "report.md"
    monkeypatch.setattr(engines, "STORED", stored)
    monkeypatch.setattr(engines, "fetch", Web({}, http=urllib.error.URLError("down")))
    assert engines.main(["--report", str(report)]) == 0
    assert report.read_text() == ""
    record = json.loads(stored.read_text())
    assert len(record["citations"]) == len(engines.all_citations())
    assert "no way to GitHub from here" in capsys.readouterr().out
