"""What chapters cite of engines is read from them, and looked up, whatever GitHub answers."""

import json
import re
import urllib.error
from email.message import Message

import engine_page
import engines
import pytest
from docutils import nodes
from engines import ENGINES, Citation, Folder, GitHub, Verdict, at_its_release, at_the_newest

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
        (
            "| llama.cpp (read at commit 0c1e570) | `src/a.cpp`, `a::b` | |\n"
            "| llama.cpp, mixes | `src/b.cpp`: `bench -n 1` | |\n| the same, decode | `c` | |",
            [f"llama.cpp@0c1e570 src/{end}" for end in ("a.cpp a::b", "b.cpp", "b.cpp c")],
        ),
        (
            "| llama.cpp, server | `tools/a.cpp` (commit 001d906), the `b` of it | |",
            ["llama.cpp@001d906 tools/a.cpp b"],
        ),
        ("| llama.cpp b11312 | `src/` , `C` | |", ["llama.cpp@b11312 src/ C"]),
        (
            "| TensorRT-LLM (commits 77d7fe1, 89fd9b7) | `t/a.py`, `A`; server `t/b.py` | |",
            ["TensorRT-LLM@77d7fe1 t/a.py A", "TensorRT-LLM@89fd9b7 t/b.py"],
        ),
        (
            "| AIPerf 0.13.0, torchao 0.18.0 | `a/b.py`; `c/d.py` | |",
            ["AIPerf@v0.13.0 a/b.py", "torchao@v0.18.0 c/d.py"],
        ),
        ("| Megatron-LM core 0.19.0 | `e/prune.py` | |", ["Megatron-LM@core_v0.19.0 e/prune.py"]),
        ("| Nsight | `ncu/x.py` | |", []),
        ("| vLLM 1.2.0, tools | `vllm bench latency`, `serve` | `v/a.py` |", []),
        (
            "| SGLang 0.5.23 | `a/b.py`, `A` | |\n| SGLang, load | the same file, `B` | |",
            ["SGLang@v0.5.23 a/b.py A", "SGLang@v0.5.23 a/b.py B"],
        ),
    ],
)
def test_a_row_is_read(rows, expected):
    assert cited(HEAD + rows) == expected


def test_items_and_columns_are_read():
    text = (
        "Paths of vLLM 1.2.0 begin with `vllm/`.\n\n"
        "| What | Here | vLLM | SGLang |\n|---|---|---|---|\n"
        "| Blocks | `ours.py` | `v1/a.py` (`A`) | `b/c.py` |\n\n"
        "- vLLM 1.3.0: `v/d.py`, `D`, which is new. `--flag`\n- FlashAttention's `window`: one.\n"
    )
    assert cited(text) == [
        *("vLLM@v1.2.0 v1/a.py A", "SGLang@ b/c.py"),
        "vLLM@v1.3.0 v/d.py D",
    ]


def test_a_cell_after_the_heading_belongs_to_the_section():
    further = "- vLLM 1.0: `vllm/b.py`"
    found = engines.citations(chapter(engines.HEADING, further), "99_small")
    assert [(c.cell, c.path) for c in found] == [("c2", "vllm/b.py")]


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


# What GitHub answers.


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
            {"vllm/v1/pool.py": "class Pool: ...", "old/pool.py": POOL},
            Verdict("moved", "old/pool.py"),
        ),
        (
            {"vllm/v1/pool.py": "class Pool:\n    def touched(self): ..."},
            Verdict("name gone", "vllm/v1/pool.py", ("Pool.touch",)),
        ),
        ({"vllm/v2/pool.py": "class Other: ..."}, Verdict("file gone")),
        ({"vllm/v1/pools.py": POOL}, Verdict("file gone")),
    ],
)
def test_what_became_of_a_file_is_seen(new, expected):
    assert verdicts(new) == (THERE, expected)


def test_a_citation_that_never_held_is_seen():
    wrong = engines.replace(CITED, names=("Pool.touch", "Pool.free"))
    missing = Verdict("name gone", "vllm/v1/pool.py", ("Pool.free",))
    assert verdicts(OLD, wrong) == (missing, missing)
    assert at_its_release(
        engines.replace(CITED, path="vllm/v9/pool.py"), GitHub(Web({"v1.0.0": OLD}))
    ) == (Verdict("file gone"))


@pytest.mark.parametrize(
    ("path", "beside", "names", "expected"),
    [
        ("v1/pool.py", "", ("Pool",), "vllm/v1/pool.py"),
        ("utils.py", "", (), "vllm/utils.py"),
        ("utils.py", "", ("stop",), "vllm/v1/utils.py"),
        ("utils.py", "vllm/v1/pool.py", (), "vllm/v1/utils.py"),
        ("v1/", "", ("Pool", "stop"), "vllm/v1"),
    ],
)
def test_the_end_of_a_path_is_enough(path, beside, names, expected):
    short = engines.replace(CITED, path=path, beside=beside, names=names)
    assert verdicts(OLD, short) == (Verdict("there", expected), Verdict("there", expected))


def test_a_file_without_names_has_moved_only_where_its_name_is_its_own():
    plain = engines.replace(CITED, names=())
    assert verdicts({"b/pool.py": ""}, plain)[1] == Verdict("moved", "b/pool.py")
    assert verdicts({"b/pool.py": "", "c/pool.py": ""}, plain)[1] == Verdict("file gone")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (urllib.error.URLError("no route"), "no way to GitHub from here"),
        (TimeoutError(), "no way to GitHub from here"),
        (http_error(403), "GitHub answers no more requests for now"),
        (http_error(429), "GitHub answers no more requests for now"),
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


def test_a_release_that_is_not_there_is_no_verdict():
    source = GitHub(Web({"v2.0.0": OLD}))
    assert at_its_release(CITED, source).status == "unknown"
    assert at_its_release(engines.replace(CITED, release=""), source).status == "unknown"


# What is stored.


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


def test_a_folder_of_some_files_knows_only_what_it_has(tmp_path):
    pool = tmp_path / "vllm-project" / "vllm" / "v1.0.0" / "vllm" / "v1" / "pool.py"
    pool.parent.mkdir(parents=True)
    pool.write_text(POOL)
    source = Folder(tmp_path)
    assert at_its_release(CITED, source) == THERE
    assert source.newest(ENGINES["vLLM"]) == "v1.0.0"
    other = engines.replace(CITED, path="vllm/other.py")
    assert at_its_release(other, source).status == "unknown"
    assert at_its_release(engines.replace(CITED, release="0.9"), source).status == "unknown"


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


# The page.


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        ("there", "there", "At v2.0.0: as cited."),
        ("name gone", "name gone", "Not as cited: no `A` in `a.py`. At v2.0.0: no `A` in `a.py`."),
        ("unknown", "moved", "At v2.0.0: moved to `a.py`."),
        ("there", "file gone", "At v2.0.0: no such file."),
        ("unknown", "unknown", "Not looked up."),
    ],
)
def test_a_row_says_what_became_of_it(then, now, said):
    def verdict(status):
        return {"status": status, "release": "v2.0.0", "path": "a.py", "missing": ["A"]}

    assert engine_page.since({"then": verdict(then), "now": verdict(now)}) == said


def test_the_page_says_how_many_hold_and_when_that_was_seen():
    good = GitHub(Web({"v1.0.0": OLD}))
    wrong = engines.replace(CITED, names=("Pool.free",))
    entries = engines.looked_up([CITED, wrong], good, {}, "2026-11-01")["citations"]
    assert engine_page.summary([*entries, None]) == (
        "Of 3 places, as cited at the release that the chapter names: 1; not as cited: 1; not "
        "looked up: 1. Last looked up on 2026-11-01, in GitHub."
    )
    assert engine_page.summary([None]).endswith("not looked up: 1.")


def test_a_file_that_was_found_is_a_link_to_its_release():
    entry = engines.looked_up([CITED], GitHub(Web({"v1.0.0": OLD})), {}, "2026-11-01")["citations"][
        0
    ]
    (link,) = engine_page.row(CITED, entry).findall(nodes.reference)
    assert link["refuri"] == "https://github.com/vllm-project/vllm/blob/v1.0.0/vllm/v1/pool.py"
    assert link.astext() == "vllm/v1/pool.py"
    assert list(engine_page.row(CITED, None).findall(nodes.reference)) == []
