"""The house rules, checked on the source: layers, forbidden things, equal dependency lists.

Each rule is a function from sources to complaints, and has bad examples that it must reject.
"""

import ast
import configparser
import json
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

from weekly import run_script

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


def lint_imports(folder: Path) -> subprocess.CompletedProcess:
    """Hold the package in a folder's lib/ against the house rules."""
    shutil.copy(ROOT / ".importlinter", folder)
    code = "from importlinter.cli import lint_imports_command as lint; lint(['--no-cache'])"
    # A copy is read, not the package that is installed.
    environment = os.environ | {"PYTHONPATH": str(folder / "lib"), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.fixture
def house(tmp_path) -> Path:
    """A folder with a copy of the library, to build badly in."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(LIBRARY, tmp_path / "lib" / "firsttoken", ignore=ignored)
    return tmp_path


def test_the_house_stands(house):
    done = lint_imports(house)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


def test_house_rules_reject(house):
    """Bad imports of each kind, also those that hide in a function."""
    for module, line in {
        "units": "import numpy as np",
        "roofline": "def f():\n    import torch",
        "attention": "from torch import nn",
        "generate": "def f():\n    import torch",
        "llama": "import matplotlib.pyplot as plt",
        "sampling": "def f():\n    import firsttoken.plots",
        "hardware": "def f():\n    from firsttoken import throughput",
        "paths": "from firsttoken.units import GB\nfrom .checks import check_count",
        "checks": "def f():\n    from firsttoken.paths import data_path",
    }.items():
        with (house / "lib" / "firsttoken" / f"{module}.py").open("a") as source:
            source.write(f"\n\n{line}\n")
    done = lint_imports(house)
    assert done.returncode != 0
    broken = [
        "firsttoken.sampling is not allowed to import firsttoken.plots",
        "firsttoken.hardware is not allowed to import firsttoken.throughput",
        "firsttoken.units is not allowed to import numpy",
        "firsttoken.roofline is not allowed to import torch",
        "firsttoken.llama is not allowed to import matplotlib",
        "firsttoken.attention -> torch",
        "firsttoken.generate -> torch",
    ]
    assert [rule for rule in broken if rule not in done.stdout] == []
    assert re.search(r"No circles +BROKEN", done.stdout)


def test_house_rules_know_every_module(house):
    (house / "lib" / "firsttoken" / "helpers.py").touch()
    done = lint_imports(house)
    assert done.returncode != 0
    assert "firsttoken.helpers" in done.stdout


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
    ("n_floors", "heavy"), [(2, {"numpy", "torch", "matplotlib"}), (3, {"torch", "matplotlib"})]
)
def test_light_floors_load_nothing_heavy(n_floors, heavy):
    """What no reading of imports can see: a heavy package that comes in through another one."""
    house = configparser.ConfigParser()
    house.read(ROOT / ".importlinter")
    floors = house["importlinter:contract:floors"]["layers"].split("\n")
    modules = [name for floor in floors[-n_floors:] for name in floor.split(" : ")]
    assert "units" in modules and "roofline" in modules
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
    """A package has one file for all of it, or a folder with one for each of its modules."""
    modules = library_sources().keys() - {"__init__"}
    packages = {name.partition(".")[0] for name in modules if "." in name}
    places = [path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")]
    tests = {".".join((*path.parts[:-1], path.stem.removeprefix("test_"))) for path in places}
    without = {name for name in modules - packages if not {name, name.partition(".")[0]} & tests}
    assert without == set()


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


def test_every_requirement_has_an_upper_bound():
    loose = [
        str(requirement)
        for requirement in requirements()
        if not {part.operator for part in requirement.specifier} & {"<", "=="}
    ]
    assert loose == []


def extras(target: str) -> set[str]:
    """Return the extras that the Makefile installs for one of its targets."""
    text = (ROOT / "Makefile").read_text()
    return set(re.search(rf"^EXTRAS_{target} := (.+)$", text, re.MULTILINE)[1].split(","))


def test_make_installs_extras_that_exist():
    targets = re.findall(r"^EXTRAS_(\w+) :=", (ROOT / "Makefile").read_text(), re.MULTILINE)
    known = set(pyproject()["project"]["optional-dependencies"])
    assert set(targets) == {"lab", "test", "book", "pdf", "api", "classroom", "hub"}
    assert [target for target in targets if not extras("lab") <= extras(target) <= known] == []


def test_readers_get_what_the_chapters_import_and_no_tools_of_others():
    """What stands at the top of the import path: the library's own packages, PyTorch, a kernel."""
    data = pyproject()["project"]
    lists = [data["dependencies"]]
    lists += [data["optional-dependencies"][extra] for extra in extras("lab")]
    names = {canonicalize_name(Requirement(text).name) for texts in lists for text in texts}
    code = [
        "".join(cell["source"])
        for path in (ROOT / "notebooks").glob("*.ipynb")
        for cell in json.loads(path.read_text("utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    imported = set(re.findall(r"^ *(?:from|import) (\w+)", "\n".join(code), re.MULTILINE))
    own = {"firsttoken", "IPython"}
    needed = {canonicalize_name(name) for name in imported - own - sys.stdlib_module_names}
    assert "scipy" in needed and needed - names == set()
    assert names & {"nbgrader", "jupyterhub", "pytest", "transformers", "jupyter-book"} == set()


def test_environment_equals_pyproject():
    """conda brings Python, Node.js, make and PyTorch; pip brings what readers need."""
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = (entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    (package,) = (line for line in pip if line.startswith("-e"))
    assert set(re.fullmatch(r"-e \.\[(.+)\]", package)[1].split(",")) == extras("lab")
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    assert environment["dependencies"] == [
        f"python{pyproject()['project']['requires-python']}",
        "nodejs",
        "make",
        f"pytorch-cpu={constraints()['torch']}",
        "pip",
        {"pip": ["-c constraints.txt", package]},
    ]


def make(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Run make as from a fresh shell, whatever the make that runs this test was told."""
    own = {"MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "CONSTRAINTS", "CHAPTER"}
    kept = {name: text for name, text in os.environ.items() if name not in own}
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, env=kept | environment, capture_output=True, text=True
    )


def test_a_wrong_chapter_is_one_clear_line():
    """Before anything is installed, make lab says which chapters there are."""
    done = make("lab", "CHAPTER=99")
    chapters = " ".join(path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb")))
    assert done.returncode != 0
    assert done.stderr.splitlines()[0] == (
        f"First Token: there is no chapter 99. There are: {chapters}"
    )


def test_make_lab_opens_the_chapter_that_is_named():
    paths = sorted((ROOT / "notebooks").glob("*.ipynb"))
    for path, number in [(paths[0], ""), *((p, p.stem.partition("_")[0]) for p in paths)]:
        for spelling in {number, number.removeprefix("0")}:
            done = make("--dry-run", "lab", f"CHAPTER={spelling}")
            assert f"default_url=/lab/tree/notebooks/{path.name} " in done.stdout


@pytest.mark.parametrize(("environment", "pinned"), [({}, True), ({"CONSTRAINTS": ""}, False)])
def test_make_installs_with_or_without_pins(environment, pinned):
    """CONSTRAINTS, empty in the environment as in the weekly run, leaves the pins out."""
    done = make("--dry-run", "--always-make", ".venv/lab", **environment)
    assert done.returncode == 0
    assert ("-c constraints.txt" in done.stdout) is pinned


# What a job may do that runs the project's code, and what one that runs none may do, at most.
READ = {"contents": "read"}
ISSUES = {"issues": "write"}
WRITE = {
    "publish": {"pages": "write", "id-token": "write"},
    "report": ISSUES,
    "report-engines": ISSUES,
}


def workflows() -> dict[str, dict]:
    """Return {file name: parsed workflow}; YAML reads the key `on` as True."""
    return {
        path.name: yaml.safe_load(path.read_text())
        for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    }


def workflow_complaints(workflow: dict) -> list[str]:
    """Return what breaks the rules of every workflow: rights, versions, limits."""
    complaints = []
    if workflow.get("permissions") != READ:
        complaints.append(f"permissions {workflow.get('permissions')}")
    for name, job in workflow["jobs"].items():
        granted = job.get("permissions", READ)
        steps = job["steps"]
        # Code of the project or of its packages and the right to write never meet.
        runs_project = any(step.get("uses", "").startswith("actions/checkout@") for step in steps)
        allowed = READ if runs_project else WRITE.get(name, READ)
        if granted != allowed:
            complaints.append(f"{name} has {granted}")
        if "timeout-minutes" not in job:
            complaints.append(f"{name} has no limit of time")
        for step in steps:
            action = step.get("uses", "actions/none@v1")
            if not re.fullmatch(r"actions/[\w-]+@v\d+", action):
                complaints.append(f"{name} uses {action}")
            if "checkout@" in action and step.get("with") != {"persist-credentials": False}:
                complaints.append(f"{name} leaves its token in the checkout")
            # An expression inside a script would run what a stranger wrote in a title.
            if "${{" in step.get("run", ""):
                complaints.append(f"{name} puts an expression into a script")
    return complaints


def ci_complaints(workflow: dict) -> list[str]:
    """Return what breaks the rules of ci.yml: when, what, and publishing only what is green."""
    complaints, jobs = [], workflow["jobs"]
    if workflow[True] != {"push": {"branches": ["main"]}, "pull_request": None}:
        complaints.append(f"runs on {workflow[True]}")
    if [step["run"] for step in jobs["check"]["steps"] if "run" in step] != [".ci/run"]:
        complaints.append("check does not run exactly .ci/run")
    if not jobs["check"].get("concurrency", {}).get("cancel-in-progress"):
        complaints.append("outdated runs are not cancelled")
    if (jobs["site"].get("needs"), jobs["publish"].get("needs")) != ("check", "site"):
        complaints.append("the site is published before the checks are green")
    if jobs["site"].get("if") != "github.event_name == 'push' && github.ref == 'refs/heads/main'":
        complaints.append("the site is published from elsewhere than main")
    return complaints


def weekly_complaints(workflow: dict) -> list[str]:
    """Return what breaks the rules of weekly.yml: when, no pins, old and new, the same checks."""
    complaints, job = [], workflow["jobs"]["dependencies"]
    if set(workflow[True]) != {"schedule", "workflow_dispatch"}:
        complaints.append(f"runs on {set(workflow[True])}")
    if job.get("env", {}).get("CONSTRAINTS") != "":
        complaints.append("the pins hold")
    tried = {(each["resolution"], each["python"]) for each in job["strategy"]["matrix"]["include"]}
    needed = {("lowest-direct", "3.11"), ("highest", "3.11"), ("highest", "3.13")}
    if job["env"].get("UV_RESOLUTION") != "${{ matrix.resolution }}" or not needed <= tried:
        complaints.append("the oldest or the newest versions are not tried")
    if [step["run"] for step in job["steps"] if "run" in step] != [".ci/run"]:
        complaints.append("dependencies does not run exactly .ci/run")
    return complaints


def test_workflows():
    found = workflows()
    assert set(found) == {"ci.yml", "weekly.yml"}
    assert {name: workflow_complaints(flow) for name, flow in found.items()} == {
        name: [] for name in found
    }
    assert ci_complaints(found["ci.yml"]) == []
    assert weekly_complaints(found["weekly.yml"]) == []


def change(*path, value=None):
    """Return a mutation that sets the place at the end of a path, or removes it."""

    def mutate(tree):
        for key in path[:-1]:
            tree = tree[key]
        if value is None:
            del tree[path[-1]]
        else:
            tree[path[-1]] = value

    return mutate


@pytest.mark.parametrize(
    ("name", "rule", "mutate"),
    [
        ("ci.yml", workflow_complaints, change("permissions")),
        ("ci.yml", workflow_complaints, change("permissions", value="write-all")),
        ("ci.yml", workflow_complaints, change("jobs", "check", "permissions", value={})),
        ("ci.yml", workflow_complaints, change("jobs", "check", "timeout-minutes")),
        (
            "ci.yml",
            workflow_complaints,
            change("jobs", "site", "permissions", value=WRITE["publish"]),
        ),
        (
            "ci.yml",
            workflow_complaints,
            change("jobs", "publish", "permissions", "contents", value="write"),
        ),
        (
            "ci.yml",
            workflow_complaints,
            change("jobs", "check", "steps", 0, "uses", value="actions/checkout@main"),
        ),
        ("ci.yml", workflow_complaints, change("jobs", "check", "steps", 0, "with")),
        (
            "weekly.yml",
            workflow_complaints,
            change("jobs", "report", "steps", 1, "run", value="echo ${{ github.actor }}"),
        ),
        (
            "weekly.yml",
            workflow_complaints,
            change("jobs", "dependencies", "permissions", value=WRITE["report"]),
        ),
        ("ci.yml", ci_complaints, change(True, "pull_request_target", value={})),
        ("ci.yml", ci_complaints, change("jobs", "check", "steps", 2, "run", value="make test")),
        ("ci.yml", ci_complaints, change("jobs", "check", "concurrency")),
        ("ci.yml", ci_complaints, change("jobs", "site", "needs")),
        ("ci.yml", ci_complaints, change("jobs", "site", "if")),
        ("weekly.yml", weekly_complaints, change(True, "schedule")),
        (
            "weekly.yml",
            weekly_complaints,
            change("jobs", "dependencies", "strategy", "matrix", "include", 0),
        ),
        ("weekly.yml", weekly_complaints, change("jobs", "dependencies", "env", "UV_RESOLUTION")),
        ("weekly.yml", weekly_complaints, change(True, "push", value={"branches": ["main"]})),
        ("weekly.yml", weekly_complaints, change("jobs", "dependencies", "env", "CONSTRAINTS")),
        (
            "weekly.yml",
            weekly_complaints,
            change("jobs", "dependencies", "env", "CONSTRAINTS", value="constraints.txt"),
        ),
        (
            "weekly.yml",
            weekly_complaints,
            change("jobs", "dependencies", "steps", 2, "run", value="make test"),
        ),
    ],
)
def test_workflow_rules_reject(name, rule, mutate):
    workflow = workflows()[name]
    mutate(workflow)
    assert rule(workflow) != []


@pytest.mark.parametrize(
    ("result", "open_issue", "versions", "done"),
    [
        ("success", "", "numpy==2.4.6", []),
        ("success", "7", "numpy==2.4.6", ["issue close 7"]),
        ("failure", "", "numpy==2.4.6", ["issue create"]),
        ("failure", "7", "numpy==2.4.6", ["issue comment 7"]),
        ("failure", "", None, ["issue create"]),
    ],
)
def test_the_weekly_report_makes_no_noise(tmp_path, result, open_issue, versions, done):
    """Its script, run with a stand-in for gh that notes what it is asked to do."""
    if versions:
        (tmp_path / "versions-newest-3.14").mkdir()
        (tmp_path / "versions-newest-3.14" / "versions.txt").write_text(versions)
    job = workflows()["weekly.yml"]["jobs"]["report"]
    made = run_script(job, tmp_path, open_issue, RESULT=result)
    assert len(made) == len(done)
    assert all(call.startswith(start) for call, start in zip(made, done, strict=True))
    if result == "failure":
        report = (tmp_path / "report.md").read_text()
        assert "https://localhost/run/1" in report
        assert (versions or "Nothing could be installed.") in report


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
    names = {
        name
        for path in (ROOT / "notebooks").glob("*.ipynb")
        for name in re.findall(r'data_path\(\\"([^"\\]+)\\"\)', path.read_text("utf-8"))
    }
    assert "measured/sampler.json" in names
    data = installed / "firsttoken" / "data"
    assert [name for name in sorted(names) if not (data / name).exists()] == []
