"""make similarity: copies are found however they are dressed, honest answers are not."""

import ast
import re
from pathlib import Path

import nbformat
import pytest
import similarity
from marking import is_solution, mark, release
from nbformat.v4 import new_code_cell
from similarity import ADDED, LIBRARY, MIN_ALIKE, Answer, alike, write_similarity

from test_assignments import TOPICS, assignment

# Four honest ways to the kv_cache task: a class with append, keys, values, length and truncate.
HONEST = {
    "arrays": """
class MyCache:
    def __init__(self, arch, batch, capacity):
        shape = (arch.n_layers, batch, arch.n_kv_heads, capacity, arch.head_dim)
        self.k = np.zeros(shape, np.float32)
        self.v = np.zeros(shape, np.float32)
        self.n = [0] * arch.n_layers
        self.capacity = capacity

    @property
    def length(self):
        return min(self.n)

    def append(self, layer, k, v):
        old, new = self.n[layer], self.n[layer] + k.shape[2]
        if new > self.capacity:
            raise ValueError(f"{new} tokens, room for {self.capacity}")
        self.k[layer, :, :, old:new] = k
        self.v[layer, :, :, old:new] = v
        self.n[layer] = new

    def keys(self, layer):
        return self.k[layer, :, :, : self.n[layer]]

    def values(self, layer):
        return self.v[layer, :, :, : self.n[layer]]

    def truncate(self, length):
        if length < 0 or length > self.length:
            raise ValueError(f"length is {length}")
        for layer in range(len(self.n)):
            self.n[layer] = length
""",
    "one array": """
class MyCache:
    def __init__(self, arch, batch, capacity):
        self.store = np.empty(
            (2, arch.n_layers, capacity, batch, arch.n_kv_heads, arch.head_dim), dtype="float32"
        )
        self.used = np.zeros(arch.n_layers, dtype=int)

    length = property(lambda self: int(self.used.min()))

    def append(self, layer, *kv):
        n = kv[0].shape[2]
        place = slice(self.used[layer], self.used[layer] + n)
        if place.stop > self.store.shape[2]:
            raise ValueError("no room left in the cache")
        for half, new in enumerate(kv):
            self.store[half, layer, place] = new.transpose(2, 0, 1, 3)
        self.used[layer] += n

    def _read(self, half, layer):
        return self.store[half, layer, : self.used[layer]].transpose(1, 2, 0, 3)

    def keys(self, layer):
        return self._read(0, layer)

    def values(self, layer):
        return self._read(1, layer)

    def truncate(self, length):
        assert_in = 0 <= length <= self.length
        if not assert_in:
            raise ValueError("cannot grow by truncating")
        np.minimum(self.used, length, out=self.used)
""",
    "layers": """
class Layer:
    def __init__(self, batch, heads, capacity, dim):
        self.keys, self.values = (np.zeros((batch, heads, capacity, dim), "f4") for _ in "kv")
        self.end = 0

    def add(self, k, v):
        count = k.shape[-2]
        if self.end + count > self.keys.shape[-2]:
            raise ValueError
        np.copyto(self.keys[..., self.end : self.end + count, :], k)
        np.copyto(self.values[..., self.end : self.end + count, :], v)
        self.end += count

class MyCache:
    def __init__(self, arch, batch, capacity):
        self.layers = []
        while len(self.layers) < arch.n_layers:
            self.layers.append(Layer(batch, arch.n_kv_heads, capacity, arch.head_dim))

    @property
    def length(self):
        ends = {layer.end for layer in self.layers}
        return sorted(ends)[0]

    def append(self, number, k, v):
        self.layers[number].add(k, v)

    def keys(self, number):
        return self.layers[number].keys[..., : self.layers[number].end, :]

    def values(self, number):
        layer = self.layers[number]
        return layer.values[..., : layer.end, :]

    def truncate(self, length):
        if length not in range(self.length + 1):
            raise ValueError(length)
        for layer in self.layers:
            layer.end = length
""",
    "dictionary": """
class MyCache(dict):
    def __init__(self, arch, batch, capacity):
        super().__init__()
        self.capacity = capacity
        self.size = {layer: 0 for layer in range(arch.n_layers)}
        for name in ("k", "v"):
            for layer in self.size:
                self[name, layer] = np.zeros([batch, arch.n_kv_heads, capacity, arch.head_dim])

    def append(self, layer, k, v):
        start = self.size[layer]
        stop = start + np.size(k, 2)
        if stop <= self.capacity:
            self["k", layer][:, :, start:stop, :] = k
            self["v", layer][:, :, start:stop, :] = v
            self.size[layer] = stop
        else:
            raise ValueError(f"capacity {self.capacity} is too small for {stop}")

    def get_one(self, name, layer):
        full = self[name, layer]
        return full[:, :, range(self.size[layer]), :]

    def keys(self, layer):
        return self.get_one("k", layer)

    def values(self, layer):
        return self.get_one("v", layer)

    @property
    def length(self):
        shortest = self.capacity
        for n in self.size.values():
            if n < shortest:
                shortest = n
        return shortest

    def truncate(self, length):
        if length > self.length or length < 0:
            raise ValueError(f"between 0 and {self.length}, not {length}")
        self.size = dict.fromkeys(self.size, length)
""",
}


class Renamed(ast.NodeTransformer):
    """Give every name that a class or function binds another one."""

    def new(self, name: str) -> str:
        return name if name in ("self", "np", "range", "len", "ValueError") else f"my_{name[::-1]}"

    def visit_Name(self, node):
        node.id = self.new(node.id)
        return node

    def visit_arg(self, node):
        node.arg = self.new(node.arg)
        return node

    def visit_Attribute(self, node):
        self.generic_visit(node)
        node.attr = self.new(node.attr)
        return node


def turned(code: str) -> str:
    """Return the same code with its methods in the reverse order."""
    tree = ast.parse(code)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            node.body.reverse()
    return ast.unparse(tree)


DRESSES = {
    "as it is": lambda code: code,
    "renamed": lambda code: ast.unparse(Renamed().visit(ast.parse(code))),
    "reordered": turned,
    "comments": lambda code: re.sub(r"\n( *)def ", r"\n\n\n\1# mine, of course\n\1def ", code),
    "laid out": lambda code: code.replace(", ", ",\n" + " " * 20),
    "all of it": lambda code: ast.unparse(Renamed().visit(ast.parse(turned(code)))),
    "with more": lambda code: HONEST["layers"] + code + "\nprint(MyCache)",
}


@pytest.mark.parametrize("dress", DRESSES)
@pytest.mark.parametrize("name", HONEST)
def test_a_copy_is_found_however_it_is_dressed(name, dress):
    if (name, dress) == ("layers", "with more"):
        pytest.skip("it would hold its own code twice")
    copied = DRESSES[dress](HONEST[name])
    for task in ("my_cache", ADDED):
        pairs = alike(
            [Answer("ada", "my_cache", HONEST[name]), Answer("bob", task, copied)], given=[]
        )
        assert [(pair.one.author, pair.other.author) for pair in pairs] == [("ada", "bob")]
        assert max(pairs[0].of_one, pairs[0].of_other) > 0.88


def test_honest_answers_to_one_task_are_not_alike():
    """Neither to each other nor to the library, which has such a class, too."""
    texts = [Answer(name, "my_cache", code) for name, code in HONEST.items()]
    assert alike([*texts, *similarity.library()], given=[]) == []


@pytest.mark.parametrize("topic", TOPICS)
def test_the_books_answers_are_not_alike_to_its_library(topic):
    """And what was handed out is like nothing, whoever hands it in unchanged."""
    found = assignment(topic)
    given = [c.source for c in release(found.source).cells if c.cell_type == "code"]
    stubs = [Answer(student, ADDED, "\n".join(given)) for student in ("ada", "bob")]
    assert alike([*stubs, *similarity.library()], given) == []
    own = [
        Answer("ada", mark(c)["grade_id"], c.source)
        for c in found.source.cells
        if c.cell_type == "code" and is_solution(c)
    ]
    pairs = alike([*own, *similarity.library()], given)
    assert {pair.one.task for pair in pairs} <= LIKE_THE_LIBRARY.get(topic, set())


# Tasks of which the book's own answer is near the library's code: a report names honest work there.
LIKE_THE_LIBRARY: dict[str, set[str]] = {}


def test_a_function_of_the_library_is_found():
    ours = list(similarity.library())
    cache = next(text for text in ours if text.task == "kv_cache.KVCache")
    copied = DRESSES["reordered"](cache.code)
    pairs = alike([Answer("ada", "my_cache", copied), *ours], given=[])
    assert (pairs[0].other.author, pairs[0].other.task) == (LIBRARY, "kv_cache.KVCache")


def test_different_tasks_and_short_answers_are_not_compared():
    code = HONEST["arrays"]
    assert alike([Answer("ada", "a", code), Answer("bob", "b", code)], []) == []
    assert alike([Answer("ada", "a", code), Answer("ada", "a", code)], []) == []
    short = "def even(n):\n    return n % 2 == 0\n"
    assert len(short) < MIN_ALIKE
    assert alike([Answer("ada", "a", short), Answer("bob", "a", short)], []) == []


def test_what_was_handed_out_is_left_out_of_account():
    """An answer of which a fifth is the student's own is judged by that fifth."""
    given = HONEST["arrays"]
    one = given + HONEST["layers"]
    other = given + HONEST["dictionary"]
    texts = [Answer("ada", "a", one), Answer("bob", "a", other)]
    assert alike(texts, [given]) == []
    texts[1] = Answer("bob", "a", one)
    pairs = alike(texts, [given])
    assert len(pairs) == 1 and pairs[0].of_one > 0.9


# ── A course ──────────────────────────────────────────────────────────────────────────────────────

TOPIC = "kv_cache"


def hand_in(course: Path, student: str, code: str, added: str = "") -> None:
    notebook = release(assignment(TOPIC).source)
    for cell in notebook.cells:
        if mark(cell).get("grade_id") == "my_cache":
            cell.source = code
    if added:
        notebook.cells.append(new_code_cell(added))
    folder = course / "submitted" / student / TOPIC
    folder.mkdir(parents=True)
    (folder / f"{TOPIC}.ipynb").write_text(nbformat.writes(notebook), encoding="utf-8")


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """A class of honest, copied, hostile and broken work."""
    folder = tmp_path_factory.mktemp("course")
    for name, code in HONEST.items():
        hand_in(folder, name.replace(" ", "-"), code)
    hand_in(folder, "renamed", DRESSES["all of it"](HONEST["arrays"]))
    hand_in(folder, "hidden-in-added", "MyCache = Mine", DRESSES["renamed"](HONEST["layers"]))
    hand_in(folder, "stub", release(assignment(TOPIC).source).cells[0].source)
    hand_in(folder, "<b>script", "def f(:\n  <script>alert(1)</script>" + HONEST["dictionary"])
    for name, text in {
        "brackets": "(" * 10**6,
        "one-line": "x = 1." * 10**5,
        "numbers": "1." * 10**6,
        "magic": "%%perl\n" + "s{" * 10**6,
        "quotes": "'''" * 10**5,
        "steering": "\x1b[31m\u202e" * 10**5,
    }.items():
        hand_in(folder, name, text)
    (folder / "submitted" / "broken" / TOPIC).mkdir(parents=True)
    (folder / "submitted" / "broken" / TOPIC / f"{TOPIC}.ipynb").write_text("{")
    (folder / "submitted" / "late").mkdir()
    (folder / "submitted" / "README").write_text("no student")
    (folder / "submitted" / "ada" / "no_such_topic").mkdir(parents=True)
    return folder


def test_the_report_of_a_course(course):
    """Copies are paired with what they copy, side by side; hostile notebooks are text."""
    path = write_similarity(course)
    text = path.read_text(encoding="utf-8")
    pairs = set(re.findall(r'<a href="#kv_cache-\d+">([^<]*)</a>', text))
    assert pairs == {
        "&lt;b&gt;script and dictionary",
        "arrays and renamed",
        "hidden-in-added and layers",
    }
    assert "a reason to talk, no proof" in text
    assert "broken: the file is no notebook" in text
    assert "<script" not in text and "<b>" not in text and "\u202e" not in text
    assert len(text) < 10**5
    assert [path.name for path in path.parent.iterdir()] == ["similarity.html"]


def test_a_topic_that_takes_too_long_or_fails_costs_only_itself(course, monkeypatch):
    monkeypatch.setattr(similarity, "TOPIC_S", 0.01)
    assert "Not compared: it took longer than 0.01 s" in write_similarity(course).read_text()
    monkeypatch.setattr(similarity, "TOPIC_S", 300)
    monkeypatch.setattr(similarity.sys, "executable", "/bin/false")
    assert "Not compared: the comparison stopped" in write_similarity(course).read_text()


def test_a_page_is_bounded(course):
    answer = {"author": "ada", "task": "a", "code": "x"}
    pair = {"one": answer, "other": answer, "of_one": 1.0, "of_other": 1.0}
    text = similarity.page({"a": {"pairs": [pair] * 435, "unread": []}})
    assert text.count('class="pair"') == similarity.MAX_PAIRS
    assert f"There are {435 - similarity.MAX_PAIRS} further pairs." in text
