"""What chapters cite of real engines, and whether it still holds: `python book/engines.py`.

The chapters are the one source: each names, under "Where this lives in real systems", files and
names at a release. `citations` reads them there. The program looks each one up on GitHub, at that
release and at the newest, and writes what it found to book/engines.json, which the page "What
changed in engines since" shows. It needs nothing but Python.

How a chapter cites: a row of a table (or an item of a list) begins with an engine and its release,
`vLLM 0.33.0` or `llama.cpp (commit 0c1e570)`. Its second cell names files and, after each, what to
look for in it, all as code. Both may be left out where the row above has them. Of a file the end of
its path is enough. In a table whose head names engines, each column is one engine's.
"""

import argparse
import datetime
import json
import os
import re
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "book" / "engines.json"
HEADING = "## Where this lives in real systems"


@dataclass(frozen=True)
class Engine:
    """Where a program's source lies on GitHub, and how it names its releases."""

    repository: str
    tag: str = "v{}"  # empty where there are none: the newest is the main branch

    def names_release(self, tag: str) -> bool:
        """Return whether a tag is a release of the engine itself, not of a part of it."""
        pattern = re.escape(self.tag).replace(r"\{\}", r"b?\d[\w.]*")
        return re.fullmatch(pattern, tag) is not None


ENGINES: Mapping[str, Engine] = {
    "AIPerf": Engine("ai-dynamo/aiperf"),
    "FlashAttention": Engine("Dao-AILab/flash-attention"),
    "FlashInfer": Engine("flashinfer-ai/flashinfer"),
    "GenAI-Perf": Engine("triton-inference-server/perf_analyzer", ""),
    "LLaDA": Engine("ML-GSAI/LLaDA", ""),
    "Medusa": Engine("FasterDecoding/Medusa", ""),
    "Megatron-LM": Engine("NVIDIA/Megatron-LM", "core_v{}"),
    "Model Optimizer": Engine("NVIDIA/Model-Optimizer", "{}"),
    "Omniinfer": Engine("omni-ai-npu/omni-infer", ""),
    "PyTorch": Engine("pytorch/pytorch"),
    "SGLang": Engine("sgl-project/sglang"),
    "TensorRT-LLM": Engine("NVIDIA/TensorRT-LLM"),
    "bitsandbytes": Engine("bitsandbytes-foundation/bitsandbytes", "{}"),
    "flash-linear-attention": Engine("fla-org/flash-linear-attention"),
    "gpt-fast": Engine("meta-pytorch/gpt-fast", ""),
    "llama.cpp": Engine("ggml-org/llama.cpp", "{}"),
    "llm-compressor": Engine("vllm-project/llm-compressor", "{}"),
    "torchao": Engine("pytorch/ao"),
    "transformers": Engine("huggingface/transformers"),
    "vLLM": Engine("vllm-project/vllm"),
}


# What the chapters cite.


@dataclass(frozen=True)
class Citation:
    """A file of an engine at a release, and names that a reader is to find in it.

    `release` is a version, a commit of seven digits, or empty where the chapter names none; `path`
    may be the end of a path; `beside` is a file whose folder it may lie in.
    """

    chapter: str
    cell: str
    engine: str
    release: str
    path: str
    names: tuple[str, ...] = ()
    beside: str = ""

    @property
    def ref(self) -> str:
        """What GitHub calls the release; empty where it has no name for it."""
        if not self.release or re.fullmatch("[0-9a-f]{7}", self.release):
            return self.release
        return ENGINES[self.engine].tag.format(self.release)


CODE = re.compile(r"`([^`]+)`")
FILE = re.compile(r"[\w.-]*(/[\w.-]+)+/?|[\w.-]+/|[\w-]+\.(py|cpp|c|h|cu|cuh|md|conf)")
NAME = re.compile(r"\w+((\.|::?)\w+)*")
NAMED = re.compile("|".join(sorted(map(re.escape, ENGINES), key=len, reverse=True)))
COMMITS = re.compile(r"\bcommits? ([0-9a-f]{7}(?:, [0-9a-f]{7})*)")
VERSION = re.compile(r"\bb?\d+(?:\.\w+)*")


def citations(notebook: Mapping, chapter: str) -> list[Citation]:
    """Return what a chapter cites, in the order in which it stands there."""
    found: list[Citation] = []
    first_above: dict[str, Citation] = {}  # of each engine, what its last row cites first
    for cell in section(notebook):
        for system, where in places("".join(cell["source"])):
            last = found[-1].engine if found else ""
            for engine, release, clauses in shared_out(system, where, last):
                above = first_above.get(engine)
                release = release or (above.release if above else "")
                row = in_clauses(Citation(chapter, cell["id"], engine, release, ""), clauses, above)
                first_above |= {engine: row[0]} if row else {}
                found += row
    return found


def section(notebook: Mapping) -> Iterator[Mapping]:
    """Yield the text cells of the section on real systems."""
    inside = False
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            heading = re.match("## .*", "".join(cell["source"]))
            inside = heading[0].strip() == HEADING if heading else inside
            if inside:
                yield cell


def places(text: str) -> Iterator[tuple[str, str]]:
    """Yield (what names the engine, what names the files) of each row and item."""
    head: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        item = re.match(r"- ([^`:]+): (.*)", line)
        if item:
            yield item[1], item[2]
        elif not line.startswith("|"):
            head = []
        elif not head:
            head = cells
        elif head[0] == "System":
            yield cells[0], cells[1]
        else:
            for name, cell in zip(head, cells, strict=True):
                if name in ENGINES:
                    release = re.search(rf"{re.escape(name)} {VERSION.pattern}", text)
                    yield release[0] if release else name, cell


def shared_out(system: str, where: str, above: str) -> list[tuple[str, str, list[str]]]:
    """Return (engine, release, clauses) for each release that a row names.

    Where it names as many releases as there are clauses, each clause is about its own.
    """
    clauses = where.split(";")
    names, named = list(NAMED.finditer(system)), []
    for name, after in zip_longest(names, names[1:]):
        engine, rest = name[0], system[name.end() : after.start() if after else None]
        commits = COMMITS.search(rest) or COMMITS.search(where)
        version = VERSION.search(rest)
        releases = commits[1].split(", ") if commits else [version[0] if version else ""]
        named += [(engine, release) for release in releases]
    if system.startswith("the same") and above:
        named = [(above, "")]
    if len(named) == len(clauses):
        return [(*who, [clause]) for who, clause in zip(named, clauses, strict=True)]
    return [(*named[0], clauses)] if named else []


def in_clauses(start: Citation, clauses: Sequence[str], above: Citation | None) -> list[Citation]:
    """Return what a row cites of one engine.

    Names that stand before any file belong to the first file of the row above. Names of a clause
    without a file, behind one that has a file, say something else and are not cited.
    """
    row: list[Citation] = []
    for clause in clauses:
        files_before = len(row)
        for code in CODE.findall(clause):
            if FILE.fullmatch(code):
                row.append(replace(start, path=code, beside=row[-1].path if row else ""))
            elif not NAME.fullmatch(code):
                above = None  # a command, a flag
            else:
                if above and not row:
                    row.append(replace(start, path=above.path))
                if len(row) > files_before:
                    row[-1] = replace(row[-1], names=(*row[-1].names, code))
    return row


# Whether it holds.


class Unknown(Exception):
    """A place could not be looked up; the message says why."""


def version(tag: str) -> list[int]:
    """Return the numbers in a tag, by which releases are ordered.

    >>> max(["v0.9.2", "v0.33.0"], key=version)
    'v0.33.0'
    """
    return [int(number) for number in re.findall(r"\d+", tag)]


class GitHub:
    """Sources as GitHub serves them; `fetch` returns what an address holds.

    `fetch` raises what urllib raises. A refusal, as at the limit of requests an hour, is asked for
    once and then remembered.
    """

    name = "GitHub"
    whole = True  # what is not found here is not there

    def __init__(self, fetch: Callable[[str], bytes]) -> None:
        self.fetch = fetch
        self.cache: dict[str, bytes | None] = {}
        self.refused = ""

    def newest(self, engine: Engine) -> str:
        """Return the newest release of an engine, betas included."""
        releases = self._api(f"repos/{engine.repository}/releases?per_page=50")
        tags = [release["tag_name"] for release in releases]
        return next(filter(engine.names_release, tags), "HEAD")

    def commit(self, repository: str, ref: str) -> str:
        """Return the full name of the commit that a tag, a branch or a short name means."""
        return self._api(f"repos/{repository}/commits/{ref}")["sha"]

    def paths(self, repository: str, commit: str) -> list[str]:
        """Return the path of every file at a commit."""
        tree = self._api(f"repos/{repository}/git/trees/{commit}?recursive=1")
        if tree.get("truncated"):
            raise Unknown(f"GitHub lists {repository} in part only")
        return [entry["path"] for entry in tree["tree"] if entry["type"] == "blob"]

    def text(self, repository: str, commit: str, path: str) -> str:
        """Return a file at a commit."""
        address = f"https://raw.githubusercontent.com/{repository}/{commit}/{path}"
        return self._get(address).decode("utf-8", "replace")

    def _api(self, path: str) -> Any:
        return json.loads(self._get(f"https://api.github.com/{path}"))

    def _get(self, address: str) -> bytes:
        if address not in self.cache:
            if self.refused:
                raise Unknown(self.refused)
            try:
                self.cache[address] = self.fetch(address)
            except urllib.error.HTTPError as error:
                if error.code in (403, 429):
                    self.refused = "GitHub answers no more requests for now"
                    raise Unknown(self.refused) from error
                if error.code not in (404, 422):
                    raise Unknown(f"GitHub answers {error.code}") from error
                self.cache[address] = None
            except OSError as error:
                self.refused = "no way to GitHub from here"
                raise Unknown(self.refused) from error
        content = self.cache[address]
        if content is None:
            raise Unknown(f"GitHub has no {address}")
        return content


class Folder:
    """Copies of sources in a folder, OWNER/NAME/RELEASE/…, maybe of some files only."""

    name = "copies of the releases"
    whole = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def newest(self, engine: Engine) -> str:
        """Return the newest release of which a copy is at hand."""
        tags = [path.name for path in (self.folder / engine.repository).glob("*")]
        found = sorted(filter(engine.names_release, tags), key=version)
        if not found:
            raise Unknown("no copy of a release is at hand")
        return found[-1]

    def commit(self, repository: str, ref: str) -> str:
        if not (self.folder / repository / ref).is_dir():
            raise Unknown(f"no copy of {repository} at {ref} is at hand")
        return ref

    def paths(self, repository: str, commit: str) -> list[str]:
        top = self.folder / repository / commit
        return [path.relative_to(top).as_posix() for path in top.rglob("*") if path.is_file()]

    def text(self, repository: str, commit: str, path: str) -> str:
        return (self.folder / repository / commit / path).read_text("utf-8", "replace")


@dataclass(frozen=True)
class Verdict:
    """What became of a citation at a release.

    `status` is "there", "moved" (`path` says where to), "name gone" (`missing`), "file gone", or
    "unknown", for a `reason`.
    """

    status: str
    path: str = ""
    missing: tuple[str, ...] = ()
    reason: str = ""


def at_its_release(citation: Citation, source: GitHub | Folder) -> Verdict:
    """Return whether a citation holds at the release that it names."""
    if not citation.ref:
        return Verdict("unknown", reason="no release that GitHub has a tag of is named")
    try:
        paths = source.paths(*where(citation, citation.ref, source))
        wanted = citation.path.rstrip("/")
        files = [path for path in paths if f"/{path}".endswith(f"/{wanted}")]
        folders = {
            path[: path.index(f"{wanted}/") + len(wanted)]: None
            for path in paths
            if f"/{wanted}/" in f"/{path}"
        }
        near = PurePosixPath(citation.beside).parent
        found = sorted(files or folders, key=lambda path: (not_in(path, near), len(path), path))
        return best(citation, found[:MAX_PLACES], citation.ref, source)
    except Unknown as unknown:
        return Verdict("unknown", reason=str(unknown))


def at_the_newest(citation: Citation, path: str, ref: str, source: GitHub | Folder) -> Verdict:
    """Return what became of a citation, once at `path`, in the newest release."""
    try:
        paths = source.paths(*where(citation, ref, source))
        here = [path] if any(f"{p}/".startswith(f"{path}/") for p in paths) else []
        before = best(citation, here, ref, source)
        if before.status == "there":
            return before
        name = PurePosixPath(path).name
        others = [p for p in paths if PurePosixPath(p).name == name and p != path]
        others.sort(key=lambda p: -len(os.path.commonpath([p, path])))
        # A file without names to find in it is another one if its name is a common one.
        if citation.names or len(others) == 1:
            after = best(citation, others[:MAX_PLACES], ref, source)
            if after.status == "there":
                return replace(after, status="moved")
        return before
    except Unknown as unknown:
        return Verdict("unknown", reason=str(unknown))


MAX_PLACES = 8  # that a short path is looked up in


def where(citation: Citation, ref: str, source: GitHub | Folder) -> tuple[str, str]:
    """Return the repository of a citation and the commit of a release there."""
    repository = ENGINES[citation.engine].repository
    return repository, source.commit(repository, ref)


def not_in(path: str, folder: PurePosixPath) -> bool:
    return not f"/{PurePosixPath(path).parent}".endswith(f"/{folder}")


def best(citation: Citation, places: Sequence[str], ref: str, source: GitHub | Folder) -> Verdict:
    """Return the place, a file or a folder, that has most of what a citation names."""
    repository, commit = where(citation, ref, source)
    paths = source.paths(repository, commit)
    found = []
    for place in places:
        files = [path for path in paths if f"{path}/".startswith(f"{place}/")]
        text = "\n".join(source.text(repository, commit, file) for file in files if citation.names)
        missing = tuple(name for name in citation.names if not has(text, name))
        found.append(Verdict("name gone" if missing else "there", place, missing))
        if not missing:
            break
    if not found:
        if source.whole:
            return Verdict("file gone")
        return Verdict("unknown", reason="the file is not among the copies at hand")
    return min(found, key=lambda verdict: len(verdict.missing))


def has(text: str, name: str) -> bool:
    """Return whether each part of a name, as `Class.method`, stands in a text as a word.

    >>> has("class Pool: def touch(self)", "Pool.touch"), has("touched = 1", "touch")
    (True, False)
    """
    parts = re.split(r"\.|::", name)
    return all(re.search(rf"(?<!\w){re.escape(part)}(?!\w)", text) for part in parts)


# What is stored, and what is said of it.


def looked_up(
    cited: Sequence[Citation], source: GitHub | Folder, stored: Mapping, date: str
) -> dict:
    """Return the record of all citations; what could not be looked up stays as it was stored."""
    newest: dict[str, str] = {}
    records = []
    known = {identity(cited): cited for cited in stored.get("citations", [])}
    for citation in cited:
        engine = ENGINES[citation.engine]
        then = at_its_release(citation, source)
        try:
            if citation.engine not in newest:
                newest[citation.engine] = source.newest(engine) if engine.tag else "HEAD"
            tag = newest[citation.engine]
            now = at_the_newest(citation, then.path or citation.path, tag, source)
        except Unknown as unknown:
            tag, now = "", Verdict("unknown", reason=str(unknown))
        record = {name: value for name, value in asdict(citation).items() if name != "beside"}
        before = known.get(identity(record), {})
        for when, verdict, release in (("then", then, citation.ref), ("now", now, tag)):
            said = {name: value for name, value in asdict(verdict).items() if value}
            fresh = {"date": date, "source": source.name, "release": release, **said}
            record[when] = before.get(when, fresh) if verdict.status == "unknown" else fresh
        records.append(record)
    return json.loads(json.dumps({"citations": records}))  # as it is when it is read again


def identity(cited: Mapping) -> tuple:
    """Return what makes a stored citation the same as one of a chapter."""
    return (*(cited[name] for name in ("chapter", "engine", "release", "path")), *cited["names"])


def report(record: Mapping) -> str:
    """Return, as Markdown, what no longer holds; empty where all does."""
    lines = []
    for cited in record["citations"]:
        for when in ("then", "now"):
            verdict = cited[when]
            if verdict["status"] not in ("there", "unknown"):
                what = f"{cited['engine']}, `{cited['path']}` at {verdict['release']}"
                lines.append(f"- Chapter {cited['chapter']}: {what}: {in_words(verdict)}")
    return "\n".join(lines)


def in_words(verdict: Mapping) -> str:
    """Return a stored verdict as a reader is told it."""
    names = ", ".join(f"`{name}`" for name in verdict.get("missing", ()))
    return {
        "there": "as cited",
        "moved": f"moved to `{verdict.get('path')}`",
        "name gone": f"no {names} in `{verdict.get('path')}`",
        "file gone": "no such file",
        "unknown": "not looked up",
    }[verdict["status"]]


def all_citations(notebooks: Path = ROOT / "notebooks") -> list[Citation]:
    """Return what the chapters cite, chapter by chapter."""
    return [
        citation
        for path in sorted(notebooks.glob("[0-9][0-9]_*.ipynb"))
        for citation in citations(json.loads(path.read_text("utf-8")), path.stem)
    ]


def fetch(address: str) -> bytes:
    """Return what an address holds; a token in GITHUB_TOKEN allows more requests an hour."""
    request = urllib.request.Request(address, headers={"User-Agent": "first-token"})
    token = os.environ.get("GITHUB_TOKEN")
    if token and address.startswith("https://api.github.com/"):
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="copies of sources, in place of GitHub")
    parser.add_argument("--report", type=Path, help="write here what no longer holds")
    given = parser.parse_args(arguments)
    source = Folder(given.folder) if given.folder else GitHub(fetch)
    stored = json.loads(STORED.read_text("utf-8")) if STORED.exists() else {}
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    record = looked_up(all_citations(), source, stored, date)
    STORED.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
    said = report(record)
    if given.report:
        given.report.write_text(said, "utf-8")
    for when, what in (("then", "at the release they name"), ("now", "at the newest")):
        counts = Counter(cited[when]["status"] for cited in record["citations"])
        print(f"{what}:", ", ".join(f"{n} {status}" for status, n in counts.most_common()))
    verdicts = [cited[when] for cited in record["citations"] for when in ("then", "now")]
    reasons = {verdict["reason"] for verdict in verdicts if "reason" in verdict}
    print(*sorted(f"not looked up: {reason}" for reason in reasons), said, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
