"""The house rules that no linter knows: forbidden things, light layers, equal dependency lists."""

import ast
import configparser
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "lib" / "firsttoken"


def library_sources() -> dict[str, str]:
    """Return {module: source} of every module of the library; "a.b" is part b of the package a."""
    modules = {}
    for path in LIBRARY.rglob("*.py"):
        parts = path.relative_to(LIBRARY).with_suffix("").parts
        package = len(parts) > 1 and parts[-1] == "__init__"
        modules[".".join(parts[:-1] if package else parts)] = path.read_text()
    return modules


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
        if isinstance(node, ast.Global):
            complaints.append(f"line {node.lineno}: global {', '.join(node.names)}")
        elif isinstance(node, ast.ImportFrom) and node.module == "sys":
            complaints += [f"line {node.lineno}: sys.path" for a in node.names if a.name == "path"]
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.path":
            complaints.append(f"line {node.lineno}: sys.path")
    return complaints


def python_files() -> list[Path]:
    """Return every Python file of the project."""
    folders = ("lib", "tests", "scripts", "book", "benchmarks", "classroom")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in files if "node_modules" not in path.parts]


def test_the_library_imports_what_it_depends_on():
    """Each package stands in pyproject.toml; the package itself imports nothing by its name."""
    data = pyproject()["project"]
    extras = data["optional-dependencies"]
    texts = data["dependencies"] + extras["torch"] + extras["server"]
    known = {canonicalize_name(Requirement(text).name) for text in texts} | {"ipython"}
    found = {}
    for module, source in library_sources().items():
        nodes = list(ast.walk(ast.parse(source)))
        names = {
            alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
        }
        names |= {node.module or "." for node in nodes if isinstance(node, ast.ImportFrom)}
        packages = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
        found[module] = {canonicalize_name(p) for p in packages} - known - {"firsttoken"}
    assert {module: names for module, names in found.items() if names} == {}
    assert not re.search(r"^(from|import)", library_sources()["__init__"], re.MULTILINE)


def modules_loaded_by(modules: list[str]) -> set[str]:
    """Return the top-level packages that a fresh interpreter holds after importing the modules."""
    code = "import sys\n" + "".join(f"import firsttoken.{name}\n" for name in modules)
    code += "print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("n_layers", "heavy"), [(2, {"numpy", "torch", "matplotlib"}), (3, {"torch", "matplotlib"})]
)
def test_light_layers_load_nothing_heavy(n_layers, heavy):
    """What no reading of imports can see: a heavy package that comes in through another one."""
    house = configparser.ConfigParser()
    house.read(ROOT / ".importlinter")
    layers = house["importlinter:contract:layers"]["layers"].split("\n")
    modules = [name for layer in layers[-n_layers:] for name in layer.split(" : ")]
    assert "units" in modules and "roofline" in modules
    assert modules_loaded_by(modules) & heavy == set()


def test_nothing_forbidden():
    complaints = {
        str(path.relative_to(ROOT)): forbidden_complaints(path.read_text())
        for path in python_files()
    }
    assert {path: found for path, found in complaints.items() if found} == {}
    assert [path for path in python_files() if path.stem in ("utils", "util", "helpers")] == []


def test_forbidden_rule_rejects():
    for source in (
        "import sys\nsys.path.insert(0, 'lib')",
        "if True:\n    !pip install torch",
        "def f():\n    global cache\n    cache = 1",
    ):
        assert len(forbidden_complaints(source)) == 1


def test_every_module_has_its_test_file():
    """In whichever tier; a package has one for all of it, or a folder of its own."""
    modules = {name.partition(".")[0] for name in library_sources()} - {"__init__"}
    tested = {path.stem.removeprefix("test_") for path in (ROOT / "tests").rglob("test_*.py")}
    assert modules - tested - {path.name for path in (ROOT / "tests").iterdir()} == set()


def pyproject() -> dict:
    """Return the parsed pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def requirements() -> list[Requirement]:
    """Return every requirement that pyproject.toml names, extras and build included."""
    data = pyproject()
    lists = [data["build-system"]["requires"], data["project"]["dependencies"]]
    lists += data["project"]["optional-dependencies"].values()
    named = [Requirement(text) for texts in lists for text in texts]
    return [each for each in named if each.name != data["project"]["name"]]  # an extra of its own


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


def extras(target: str) -> set[str]:
    """Return the extras that the Makefile installs for one of its targets."""
    text = (ROOT / "Makefile").read_text()
    return set(re.search(rf"^EXTRAS_{target} := (.+)$", text, re.MULTILINE)[1].split(","))


def make(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Run make as from a fresh shell, whatever the make that runs this test was told."""
    own = {"MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "CONSTRAINTS", "CHAPTER"}
    kept = {name: text for name, text in os.environ.items() if name not in own}
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, env=kept | environment, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("failed to copy: No space left on device (os error 28)", "no space left in this folder"),
        ("cause: dns error", "no network: "),
        (
            "error: Failed to initialize cache at `/home/ada/.cache/uv`",
            "your home cannot be written",
        ),
        ("error: a dragon", "uv failed: error: a dragon"),
    ],
)
def test_an_installation_that_stops_is_one_clear_line_and_is_done_anew(tmp_path, said, line):
    """Packages that uv left half copied have their records, and it would take them for whole."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    tools = tmp_path / ".venv" / "bin"
    tools.mkdir(parents=True)
    for name in ("../uv", "activate"):
        (tools / name).touch()
    uv = tools / "uv"
    uv.write_text(f"#!/bin/sh\necho '{said}'; exit 2\n")
    uv.chmod(0o755)
    done = make("-C", str(tmp_path), ".venv/lab")
    assert done.returncode != 0
    assert done.stderr.startswith(f"First Token: {line}"), done.stderr
    assert not (tmp_path / ".venv" / "lab").exists()
    uv.write_text('#!/bin/sh\necho "$@" >>calls\n')
    for target in ("book", "lab", "lab", "test"):  # lab is what was stopped
        assert make("-C", str(tmp_path), f".venv/{target}").returncode == 0
    anew = ["--reinstall" in call for call in (tmp_path / "calls").read_text().splitlines()]
    assert anew == [True, True, False]


def test_a_venv_that_was_stopped_midway_is_begun_anew(tmp_path):
    """The program python is there first, long before pip is whole."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] || [ "$1" = --version ] || echo "$@" >>calls\n')
    python.chmod(0o755)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(python)
    make("-C", str(tmp_path), f"PYTHON={python}", ".venv/bin/activate")
    assert (tmp_path / "calls").read_text() == "-m venv --clear .venv\n"


def test_a_wrong_chapter_is_one_clear_line():
    """Before anything is installed, make lab says which chapters there are."""
    done = make("lab", "CHAPTER=99")
    chapters = " ".join(path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb")))
    assert done.returncode != 0
    assert done.stderr.splitlines()[0] == (
        f"First Token: there is no chapter 99. There are: {chapters}"
    )


def test_a_job_that_runs_the_projects_code_may_not_write():
    """And no script holds an expression, by which it would run what a stranger wrote in a title."""
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"}, path.name
        for name, job in workflow["jobs"].items():
            for step in job["steps"]:
                # GitHub's own actions alone, at a released version.
                used = step.get("uses", "actions/none@v1")
                assert re.fullmatch(r"actions/[\w-]+@v\d+", used), name
                assert "${{" not in step.get("run", ""), name
                if "/checkout@" in used:
                    assert "permissions" not in job, name
                    assert step["with"] == {"persist-credentials": False}, name


def test_wheel_carries_what_the_chapters_read(tmp_path):
    """Where only the package is installed, the model loads and every stored result is there."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*pip, *build, str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    install = ["install", "--no-deps", "--no-index", "--target", str(installed)]
    subprocess.run([*pip, *install, str(wheel)], check=True)
    code = (
        "from firsttoken.models import llama; from firsttoken.models.tokenizer import tokenizer;"
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
    names = {
        name
        for path in (ROOT / "notebooks").glob("*.ipynb")
        for name in re.findall(r'data_path\(\\"([^"\\]+)\\"\)', path.read_text("utf-8"))
    }
    assert "measured/sampler.json" in names
    data = installed / "firsttoken" / "data"
    assert [name for name in sorted(names) if not (data / name).exists()] == []
