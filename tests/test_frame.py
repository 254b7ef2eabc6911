"""The house rules, checked on the source: layers, forbidden things, equal dependency lists.

Each rule is a function from sources to complaints, and has bad examples that it must reject.
"""

import ast
import re
import subprocess
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "lib" / "firsttoken"

# A module may import from its own layer and from those above it in this table.
LAYERS = {
    "facts": "units hardware architectures start",
    "closed forms": "roofline kv_cache throughput",
    "arrays": "metrics attention flash recurrent quantization sampling constrained speculative "
    "paging parallel",
    "machines": "llama llama_torch tokenizer generate evaluation measure pruning batching engine "
    "server sampling_torch speculative_torch parallel_torch",
    "faces": "plots explore exercises",
}
RANK = {module: rank for rank, modules in enumerate(LAYERS.values()) for module in modules.split()}
# What each layer may import from outside the standard library when it is loaded.
OUTSIDE = (
    set(),
    set(),
    {"numpy"},
    {"numpy", "safetensors", "tokenizers", "tqdm"},
    {"numpy", "matplotlib", "seaborn", "ipywidgets", "IPython"},
)
TORCH_MODULES = {"measure", "pruning"}  # and every module named *_torch
# The closed forms run in a browser without NumPy; the one array among them imports it where built.
LAZY_NUMPY = {"kv_cache"}
# Reading a checkpoint must not cost PyTorch's import, so the fast path is imported on request.
LAZY_CIRCLE = {("llama", "llama_torch")}


def library_sources() -> dict[str, str]:
    """Return {module: source} of every module of the library."""
    return {path.stem: path.read_text() for path in LIBRARY.glob("*.py")}


def imports(source: str) -> list[tuple[str, bool]]:
    """Return (dotted name, whether it runs when the module is loaded) of every import."""
    found = []

    def visit(node, at_load):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                found.extend((alias.name, at_load) for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.level:
                found.append(("." * child.level, at_load))
            elif isinstance(child, ast.ImportFrom) and child.module == "firsttoken":
                found.extend((f"firsttoken.{alias.name}", at_load) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                found.append((child.module, at_load))
            in_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            visit(child, at_load and not in_function)

    visit(ast.parse(source), True)
    return found


def layer_complaints(sources: dict[str, str]) -> list[str]:
    """Return what breaks the layer rule or the circle rule."""
    complaints = []
    graph = {}
    for module, source in sources.items():
        if module == "__init__":
            complaints += [f"__init__ imports {name}" for name, _ in imports(source)]
            continue
        if module not in RANK:
            complaints.append(f"{module} is in no layer")
            continue
        allowed = OUTSIDE[RANK[module]]
        if module.endswith("_torch") or module in TORCH_MODULES:
            allowed = allowed | {"torch"}
        graph[module] = set()
        for name, at_load in imports(source):
            package, _, inner = name.partition(".")
            inner = inner.partition(".")[0]
            if package == "":
                complaints.append(f"{module} has a relative import")
            elif package != "firsttoken":
                lazy = not at_load and package == "numpy" and module in LAZY_NUMPY
                if package not in sys.stdlib_module_names and package not in allowed and not lazy:
                    complaints.append(f"{module} imports {package}")
            elif RANK.get(inner, len(RANK)) > RANK[module]:
                complaints.append(f"{module} imports {inner or 'firsttoken'} from above")
            elif at_load or (module, inner) not in LAZY_CIRCLE:
                graph[module].add(inner)
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        complaints.append(f"circle: {' -> '.join(error.args[1])}")
    return complaints


def forbidden_complaints(source: str) -> list[str]:
    """Return the forbidden things in the source of one module, test, script or notebook."""
    complaints = [
        f"line {number}: {line.strip()}"
        for number, line in enumerate(source.splitlines(), 1)
        if re.match(r"\s*(%load_ext|[!%]\s*pip)\b", line)
    ]
    # Magics are no Python; everything else is parsed.
    python = re.sub(r"^(\s*)[%!].*$", r"\1pass", source, flags=re.MULTILINE)
    for node in ast.walk(ast.parse(python)):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            complaints.append(f"line {node.lineno}: star import of {node.module}")
        elif isinstance(node, ast.Global):
            complaints.append(f"line {node.lineno}: global {', '.join(node.names)}")
        elif isinstance(node, ast.ImportFrom) and node.module == "sys":
            complaints += [f"line {node.lineno}: sys.path" for a in node.names if a.name == "path"]
        elif isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            if text == "sys.path" or re.fullmatch(r"(np|numpy)\.random\.seed", text):
                complaints.append(f"line {node.lineno}: {text}")
    return complaints


def python_files() -> list[Path]:
    """Return every Python file of the project."""
    folders = ("lib", "tests", "scripts", "book", "benchmarks", "classroom")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in files if "node_modules" not in path.parts]


def test_layers():
    assert layer_complaints(library_sources()) == []


@pytest.mark.parametrize(
    ("sources", "complaint"),
    [
        ({"helpers": ""}, "helpers is in no layer"),
        ({"__init__": "import firsttoken.units"}, "__init__ imports firsttoken.units"),
        ({"units": "import numpy as np"}, "units imports numpy"),
        ({"roofline": "def f():\n    import numpy"}, "roofline imports numpy"),
        ({"kv_cache": "import numpy as np"}, "kv_cache imports numpy"),
        ({"attention": "from torch import nn"}, "attention imports torch"),
        ({"generate": "def f():\n    import torch"}, "generate imports torch"),
        ({"llama": "import matplotlib.pyplot as plt"}, "llama imports matplotlib"),
        ({"units": "from firsttoken.hardware import A", "hardware": ""}, None),
        ({"units": "from firsttoken import llama"}, "units imports llama from above"),
        (
            {"sampling": "def f():\n    import firsttoken.plots"},
            "sampling imports plots from above",
        ),
        ({"units": "from .hardware import A"}, "units has a relative import"),
        (
            {
                "llama": "def f():\n    from firsttoken.llama_torch import T",
                "llama_torch": "import torch",
            },
            None,
        ),
    ],
)
def test_layer_rule_rejects(sources, complaint):
    assert layer_complaints(sources) == ([complaint] if complaint else [])


def test_circle_rule_rejects():
    circle = {
        "units": "import firsttoken.hardware",
        "hardware": "def f():\n    from firsttoken.units import GB",
    }
    assert layer_complaints(circle) in (
        ["circle: units -> hardware -> units"],
        ["circle: hardware -> units -> hardware"],
    )
    lazy = {
        "llama": "def f():\n    from firsttoken.llama_torch import T",
        "llama_torch": "from firsttoken.llama import read_checkpoint",
    }
    assert layer_complaints(lazy) == []


def modules_loaded_by(modules: list[str]) -> set[str]:
    """Return the top-level packages that a fresh interpreter holds after importing the modules."""
    code = "import sys\n" + "".join(f"import firsttoken.{name}\n" for name in modules)
    code += "print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("highest", "heavy"),
    [("closed forms", {"numpy", "torch", "matplotlib"}), ("arrays", {"torch", "matplotlib"})],
)
def test_light_layers_load_nothing_heavy(highest, heavy):
    """What ast cannot see: a heavy package that comes in through another one."""
    rank = list(LAYERS).index(highest)
    modules = [name for name in library_sources() if RANK.get(name, len(RANK)) <= rank]
    assert modules_loaded_by(modules) & heavy == set()


def test_nothing_forbidden():
    complaints = {
        str(path.relative_to(ROOT)): forbidden_complaints(path.read_text())
        for path in python_files()
    }
    assert {path: found for path, found in complaints.items() if found} == {}
    assert [path for path in python_files() if path.stem in ("utils", "util", "helpers")] == []


@pytest.mark.parametrize(
    "source",
    [
        "import sys\nsys.path.insert(0, 'lib')",
        "from sys import path",
        "from firsttoken.units import *",
        "%load_ext autoreload",
        "if True:\n    !pip install torch",
        "%pip install torch",
        "import numpy as np\nnp.random.seed(0)",
        "def f():\n    global cache\n    cache = 1",
    ],
)
def test_forbidden_rule_rejects(source):
    assert len(forbidden_complaints(source)) == 1


def test_every_module_has_its_test_file():
    modules = {name for name in library_sources() if name != "__init__"}
    tests = {path.stem.removeprefix("test_") for path in (ROOT / "tests").rglob("test_*.py")}
    assert modules - tests == set()


def pyproject() -> dict:
    """Return the parsed pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def requirements() -> list[Requirement]:
    """Return every requirement that pyproject.toml names, extras and build included."""
    data = pyproject()
    lists = [data["build-system"]["requires"], data["project"]["dependencies"]]
    lists += data["project"]["optional-dependencies"].values()
    return [Requirement(text) for texts in lists for text in texts]


def constraints() -> dict[str, str]:
    """Return {package: version} of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


def test_constraints_pin_every_requirement():
    pins = constraints()
    loose = [
        str(requirement)
        for requirement in requirements()
        if not requirement.specifier.contains(pins.get(canonicalize_name(requirement.name), "0"))
    ]
    assert loose == []
    assert pins["torch"] == "2.13.0"


def test_every_requirement_has_an_upper_bound():
    loose = [
        str(requirement)
        for requirement in requirements()
        if not {part.operator for part in requirement.specifier} & {"<", "=="}
    ]
    assert loose == []


def test_environment_equals_pyproject():
    """conda brings Python, Node.js, make and PyTorch; pip brings what make installs."""
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    extras = re.search(r"^EXTRAS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert set(extras.split(",")) <= set(pyproject()["project"]["optional-dependencies"])
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    assert environment["dependencies"] == [
        f"python{pyproject()['project']['requires-python']}",
        "nodejs",
        "make",
        f"pytorch-cpu={constraints()['torch']}",
        "pip",
        {"pip": ["-c constraints.txt", f"-e .[{extras}]"]},
    ]


def test_wheel_carries_the_model(tmp_path):
    """Where only the package is installed, a fresh interpreter still loads the shipped model."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*pip, *build, str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    install = ["install", "--no-deps", "--no-index", "--target", str(installed)]
    subprocess.run([*pip, *install, str(wheel)], check=True)
    code = (
        "import firsttoken.llama as llama; from firsttoken.tokenizer import tokenizer;"
        "ids = tokenizer().encode('import os');"
        "assert llama.load_model('draft')([ids]).shape[:2] == (1, len(ids));"
        "assert llama.load_model('target').arch.n_layers > 1;"
        "print(llama.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(installed))
    assert (installed / "firsttoken" / "data" / "heldout.txt").stat().st_size > 0
