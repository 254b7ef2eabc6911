"""One assignment's way through the real hub: `make test-hub`, as root on Linux.

The hub is classroom/jupyterhub_config.py as it stands, with accounts that are made here and
removed again. The tests are the steps of one story, in this order; the first failure ends it.
"""

import contextlib
import ctypes
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

import nbformat
import psutil
import pytest
import requests
import websocket

ROOT = Path(__file__).parents[3]
CLASSROOM = ROOT / "classroom"
COURSE, TOPIC = "first-token", "generate"
SOURCE = ROOT / "assignments" / TOPIC / f"{TOPIC}.ipynb"
# The comment on an account says that it is ours to remove, also after a run that was killed.
COMMENT = "First Token hub test"
ADA, GRACE, TEACHER, OUTSIDER = "ft-ada", "ft-grace", "ft-teacher", "ft-outsider"
STUDENTS = "ft-students"
PATIENCE = 300  # seconds until a slow machine counts as a hub that hangs


def system(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def wait_for(what: str, ready):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := ready():
            return found
        time.sleep(0.3)
    raise TimeoutError(f"waited {PATIENCE} s until {what}")


def free_ports(n: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def open_to_everyone(places: list[Path], hidden: Path) -> None:
    """Let every user reach the places, for this process and its children alone.

    An environment in root's home is closed to students. In a mount namespace of our own, a closed
    folder above a place is covered by an empty one in which that place alone appears.
    """
    clone_newns = 0x20000
    if ctypes.CDLL(None, use_errno=True).unshare(clone_newns):
        raise OSError(ctypes.get_errno(), "no mount namespace: is this process root?")
    system("mount", "--make-rprivate", "/")
    closed: dict[Path, list[Path]] = {}
    for place in places:
        for parent in reversed(place.parents):
            if not parent.stat().st_mode & 0o001:
                closed.setdefault(parent, []).append(place)
                break
    for folder, inside in closed.items():
        kept = []
        for place in inside:
            kept.append(hidden / uuid.uuid4().hex)
            kept[-1].mkdir()
            system("mount", "--rbind", str(place), str(kept[-1]))
        system("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(folder))
        for place, copy in zip(inside, kept, strict=True):
            place.mkdir(parents=True, exist_ok=True)
            system("mount", "--rbind", str(copy), str(place))
            system("umount", "--lazy", str(copy))
            copy.rmdir()
    os.chdir(ROOT)


def remove_accounts() -> None:
    """Remove the test's users and group; refuse to touch accounts that are not its own."""
    for name in (ADA, GRACE, TEACHER, OUTSIDER):
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            continue
        assert account.pw_gecos == COMMENT, f"user {name} exists and is not of this test"
        for process in psutil.process_iter(["uids"]):
            if process.info["uids"] and process.info["uids"].real == account.pw_uid:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        wait_for(
            f"the processes of {name} are gone",
            lambda name=name: subprocess.run(["userdel", name], check=False).returncode == 0,
        )
    subprocess.run(["groupdel", STUDENTS], check=False, capture_output=True)


@pytest.fixture(scope="module")
def place():
    """A folder for homes, exchange and the hub's state, and the accounts; both are removed."""
    remove_accounts()
    folder = Path(tempfile.mkdtemp(prefix="firsttoken-hub-"))
    folder.chmod(0o755)
    try:
        (folder / "mounts").mkdir(mode=0o700)
        open_to_everyone([Path(sys.prefix), Path(sys.base_prefix), ROOT, folder], folder / "mounts")
        system("groupadd", STUDENTS)
        for name in (ADA, GRACE, TEACHER, OUTSIDER):
            group = ["--groups", STUDENTS] if name in (ADA, GRACE) else []
            home = ["--home-dir", str(folder / "home" / name)]
            (folder / "home").mkdir(exist_ok=True)
            shell = ["--shell", "/bin/bash", "--comment", COMMENT, "--user-group"]
            system("useradd", "--create-home", *home, *group, *shell, name)
            (folder / "home" / name).chmod(0o700)
            subprocess.run(["chpasswd"], input=f"{name}:{name}-secret", text=True, check=True)
        yield folder
    finally:
        remove_accounts()
        # rmdir, not rmtree: were anything still mounted there, it would not be ours to remove.
        (folder / "mounts").rmdir()
        shutil.rmtree(folder)


class Hub:
    """The hub's process, with ports of its own."""

    def __init__(self, place: Path):
        port, hub_port, proxy_port = free_ports(3)
        self.url = f"http://127.0.0.1:{port}"
        config = place / "config.py"
        config.write_text(
            f"load_subconfig({str(CLASSROOM / 'jupyterhub_config.py')!r})\n"
            f"c.JupyterHub.hub_port = {hub_port}\n"
            f"c.ConfigurableHTTPProxy.api_url = 'http://127.0.0.1:{proxy_port}'\n"
        )
        environment = os.environ | {
            "FIRSTTOKEN_STATE": str(place / "state"),
            "FIRSTTOKEN_TEACHER": TEACHER,
            "FIRSTTOKEN_STUDENTS": STUDENTS,
            "FIRSTTOKEN_IDLE_SECONDS": "3600",
            "FIRSTTOKEN_PORT": str(port),
            # systemd would start servers outside of this test's view of the file system.
            "FIRSTTOKEN_NO_SYSTEMD": "1",
        }
        self.log = place / "hub.log"
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "-f", str(config)],
                **{"cwd": place, "env": environment, "stdout": log, "stderr": log},
            )
        wait_for("the hub answers", self.answers)

    def answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        try:
            return requests.get(f"{self.url}/hub/api/", timeout=5).ok
        except requests.ConnectionError:
            return False

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        print(self.log.read_text()[-6000:])  # shown when a step failed


class Person:
    """Someone at a browser: logs in, starts their server, uses its pages' own requests."""

    def __init__(self, hub: Hub, name: str):
        self.hub, self.name = hub, name
        self.web = requests.Session()
        self.token = None

    def log_in(self, password: str | None = None) -> requests.Response:
        login = f"{self.hub.url}/hub/login"
        self.web.get(login, timeout=PATIENCE)
        return self.web.post(
            login,
            params={"next": "/hub/home"},
            data={
                "username": self.name,
                "password": password or f"{self.name}-secret",
                "_xsrf": self.web.cookies.get("_xsrf", path="/hub/"),
            },
            timeout=PATIENCE,
        )

    def start_server(self) -> None:
        user = f"{self.hub.url}/hub/api/users/{self.name}"
        xsrf = {"X-XSRFToken": self.web.cookies.get("_xsrf", path="/hub/")}
        tokens = self.web.post(f"{user}/tokens", headers=xsrf, json={}, timeout=PATIENCE)
        self.token = tokens.json()["token"]
        started = requests.post(f"{user}/server", headers=self.authorization(), timeout=PATIENCE)
        assert started.status_code in (201, 202), started.text
        wait_for(f"the server of {self.name} runs", self.has_server)

    def has_server(self) -> bool:
        user = f"{self.hub.url}/hub/api/users/{self.name}"
        answer = requests.get(user, headers=self.authorization(), timeout=PATIENCE).json()
        return answer["servers"].get("", {}).get("ready", False)

    def authorization(self) -> dict[str, str]:
        return {"Authorization": f"token {self.token}"}

    def request(self, method: str, path: str, of: str | None = None, **rest) -> requests.Response:
        return requests.request(
            method,
            f"{self.hub.url}/user/{of or self.name}/{path}",
            **{"headers": self.authorization(), "timeout": PATIENCE, **rest},
        )

    def assignment(self, action: str) -> dict:
        answer = self.request(
            "POST", f"assignments/{action}", data={"course_id": COURSE, "assignment_id": TOPIC}
        )
        assert answer.ok and answer.json()["success"], answer.text
        return answer.json()

    def formgrader(self, action: str) -> dict:
        answer = self.request("POST", f"formgrader/api/assignment/{TOPIC}/{action}")
        assert answer.ok, answer.text
        return answer.json()

    def notebook(self) -> nbformat.NotebookNode:
        content = self.request("GET", f"api/contents/{TOPIC}/{TOPIC}.ipynb").json()["content"]
        return nbformat.from_dict(content)

    def save(self, notebook: nbformat.NotebookNode) -> None:
        body = {"type": "notebook", "format": "json", "content": notebook}
        answer = self.request("PUT", f"api/contents/{TOPIC}/{TOPIC}.ipynb", json=body)
        assert answer.ok, answer.text

    def run(self, code: str) -> str:
        """Run code in a kernel of one's own server; return what it printed, or its error."""
        kernel = self.request("POST", "api/kernels", json={"name": "python3"}).json()["id"]
        address = f"{self.hub.url}/user/{self.name}/api/kernels/{kernel}/channels"
        channel = websocket.create_connection(
            address.replace("http", "ws", 1), header=self.authorization(), timeout=PATIENCE
        )
        header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "version": "5.3"}
        header |= {"session": uuid.uuid4().hex, "username": self.name, "date": ""}
        content = {"code": code, "silent": False, "allow_stdin": False}
        request = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        channel.send(json.dumps(request | {"channel": "shell", "buffers": []}))
        printed = ""
        while True:
            message = json.loads(channel.recv())
            if message["parent_header"].get("msg_id") != header["msg_id"]:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                printed += content["text"]
            elif message["msg_type"] == "error":
                printed += f"{content['ename']}: {content['evalue']}"
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                break
        channel.close()
        self.request("DELETE", f"api/kernels/{kernel}")
        return printed.strip()


@pytest.fixture(scope="module")
def hub(place):
    running = Hub(place)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def people(hub, place):
    """Two students and the teacher at their servers; the teacher's course holds the source."""
    found = {name: Person(hub, name) for name in (ADA, GRACE, TEACHER)}
    course = place / "home" / TEACHER / "course"
    (course / "source" / TOPIC).mkdir(parents=True)
    shutil.copy(SOURCE, course / "source" / TOPIC)
    system("chown", "-R", f"{TEACHER}:{TEACHER}", str(course))
    for person in found.values():
        assert person.log_in().url.endswith("/hub/home")
        person.start_server()
    return found


@pytest.mark.parametrize(
    ("name", "password", "reason"),
    [(OUTSIDER, None, "User 'ft-outsider' not allowed"), (ADA, "guessed", "PAM Authentication")],
)
def test_only_the_class_comes_in(hub, name, password, reason):
    assert reason not in hub.log.read_text()
    assert Person(hub, name).log_in(password).status_code == 403
    assert reason in hub.log.read_text()


def test_each_works_as_their_own_user_under_limits(people):
    ada = people[ADA]
    assert ada.run("import getpass, os; print(os.getuid() > 0, getpass.getuser())") == f"True {ADA}"
    assert ada.run("print(len(bytes(1 << 30)) >> 30)") == "1"
    assert ada.run("bytes(3 << 30)").startswith("MemoryError")
    limit = "import resource; print(resource.getrlimit(resource.RLIMIT_NPROC))"
    assert ada.run(limit) == "(256, 256)"
    assert ada.run("import firsttoken.assignments as a; print(a.student_id(''))") == ADA


def test_nobody_looks_into_other_peoples_work(people, place):
    ada = people[ADA]
    closed = [place / "home" / GRACE, place / "home" / TEACHER / "course", place / "state" / "hub"]
    closed += [place / "state" / "exchange" / COURSE / name for name in ("inbound", "feedback")]
    closed += [ROOT / "assignments"]
    for folder in closed:
        assert ada.run(f"import os; os.listdir({str(folder)!r})").startswith("PermissionError")
    assert ada.request("GET", "api/contents", of=GRACE).status_code == 403
    assert people[TEACHER].request("GET", "api/contents", of=ADA).status_code == 403


TALK = """
import json
import time
from pathlib import Path
from ipykernel.connect import get_connection_info
Path({port!r}).write_text(str(json.loads(get_connection_info())["iopub_port"]))
while not Path({stop!r}).exists():
    print("secret")
    time.sleep(0.1)
"""
LISTEN = """
import zmq
socket = zmq.Context().socket(zmq.SUB)
socket.subscribe(b"")
socket.connect("tcp://127.0.0.1:{port}")
print(len([1 for _ in range(30) if socket.poll(100) and socket.recv_multipart()]))
"""


def test_nobody_listens_to_other_peoples_kernels(people, place):
    """Kernels print to ports of the machine; without encryption, every account could read them."""
    port, stop = (place / "home" / ADA / name for name in ("port", "stop"))
    code = TALK.format(port=str(port), stop=str(stop))
    talking = threading.Thread(target=people[ADA].run, args=[code])
    talking.start()
    wait_for("ada's kernel talks", port.exists)
    heard = people[GRACE].run(LISTEN.format(port=port.read_text()))
    stop.touch()
    talking.join()
    assert heard == "0"


def test_formgrader_is_the_teachers_and_runs_nothing(people):
    assert people[ADA].request("GET", "formgrader/api/status").status_code == 404
    teacher = people[TEACHER]
    assert teacher.request("GET", "formgrader/api/status").json() == {"status": True}
    answer = teacher.request("POST", f"formgrader/api/submission/{TOPIC}/{ADA}/autograde").json()
    assert not answer["success"]
    assert "make grade" in answer["error"]


def test_the_teacher_releases_a_version_without_solutions(people):
    teacher = people[TEACHER]
    for action in ("assign", "release"):
        answer = teacher.formgrader(action)
        assert answer["success"], answer
    for student in (people[ADA], people[GRACE]):
        student.assignment("fetch")
        text = nbformat.writes(student.notebook())
        assert "SOLUTION" not in text
        assert "HIDDEN TESTS" not in text


def test_students_solve_and_submit(people):
    source = nbformat.read(SOURCE, as_version=4)
    solutions = {
        cell.metadata.nbgrader.grade_id: cell.source
        for cell in source.cells
        if cell.metadata.get("nbgrader", {}).get("solution")
    }
    notebook = people[ADA].notebook()
    for cell in notebook.cells:
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
        cell.source = solutions.get(grade_id, cell.source)
    people[ADA].save(notebook)
    notebook = people[GRACE].notebook()
    notebook.cells.append(nbformat.v4.new_markdown_cell("<script>alert('from grace')</script>"))
    people[GRACE].save(notebook)
    for student in (people[ADA], people[GRACE]):
        student.assignment("submit")


FORGE = """
from pathlib import Path
folder = Path({inbound!r}) / "{name}+{topic}+{date}+{mark}"
folder.mkdir()
(folder / "timestamp.txt").write_text("{date}")
(folder / "{topic}.ipynb").symlink_to({target!r})
folder.chmod(0o777)
print("made")
"""
LATE = "2099-01-01 00:00:00.000000 UTC"


def test_a_forged_submission_is_not_collected(people, place):
    """Neither under another's name, nor with a date that is none, nor as a link to a solution."""
    teacher, ada, grace = (people[name] for name in (TEACHER, ADA, GRACE))
    course = place / "home" / TEACHER / "course"
    arrived = course / "submitted" / GRACE / TOPIC / SOURCE.name
    inbound = place / "state" / "exchange" / COURSE / "inbound"
    forged = {"inbound": str(inbound), "topic": TOPIC}
    forged["target"] = str(course / "source" / TOPIC / SOURCE.name)

    assert ada.run(FORGE.format(**forged, name=GRACE, date=LATE, mark="name")) == "made"
    assert ada.run(FORGE.format(**forged, name=ADA, date="never", mark="date")) == "made"
    answer = teacher.formgrader("collect")
    assert answer["success"], answer
    assert "is no folder of ft-grace: it belongs to ft-ada" in answer["log"]
    assert "never" in answer["log"]
    assert {path.name for path in (course / "submitted").iterdir()} == {ADA, GRACE}
    assert "from grace" in arrived.read_text()

    assert grace.run(FORGE.format(**forged, name=GRACE, date=LATE, mark="link")) == "made"
    answer = teacher.formgrader("collect")
    assert f"Refused: {SOURCE.name} in" in answer["log"]
    assert arrived.parent.is_dir() and not arrived.exists()

    # The course goes on: what grace really submitted takes the place of the link.
    for refused in (inbound / f"{GRACE}+{TOPIC}+{LATE}+link", arrived.parent):
        shutil.rmtree(refused)
    assert teacher.formgrader("collect")["success"]
    assert "from grace" in arrived.read_text()


def test_each_gets_their_own_feedback_and_no_other(people, place):
    teacher, ada, grace = (people[name] for name in (TEACHER, ADA, GRACE))
    course = place / "home" / TEACHER / "course"
    graded = teacher.run(
        "import subprocess\n"
        f"command = [{sys.executable!r}, {str(CLASSROOM / 'grade.py')!r}, {str(course)!r}]\n"
        "done = subprocess.run(command, capture_output=True, text=True)\n"
        "print(done.stdout, done.stderr, 'status', done.returncode)"
    )
    if "or allow user namespaces" in graded:  # root grades on such a machine, as README.md says
        system(sys.executable, str(CLASSROOM / "grade.py"), str(course))
        system("chown", "-R", f"{TEACHER}:", str(course))
    else:
        assert graded.endswith("status 0"), graded
    answer = teacher.formgrader("release_feedback")
    assert answer["success"], answer
    pages = {}
    for student in (ada, grace):
        student.assignment("fetch_feedback")
        home = place / "home" / student.name / TOPIC / "feedback"
        (pages[student.name],) = (path.read_text() for path in home.rglob("*.html"))
        listed = student.request("GET", f"api/contents/{TOPIC}/feedback").json()["content"]
        assert len(listed) == 1
    assert pages[ADA] != pages[GRACE]
    for page in pages.values():
        assert "HIDDEN TESTS" not in page
    # Another's page has a name that only its owner knows, in a folder that cannot be listed.
    feedback = place / "state" / "exchange" / COURSE / "feedback"
    assert len(list(feedback.iterdir())) == 2
    assert ada.run(f"import os; os.listdir({str(feedback)!r})").startswith("PermissionError")


def test_the_teacher_sees_points_and_no_script_runs(people):
    teacher = people[TEACHER]
    answer = teacher.request("GET", f"formgrader/api/submissions/{TOPIC}").json()
    scores = {found["student"]: found["code_score"] for found in answer}
    assert scores[ADA] == max(found["max_code_score"] for found in answer) > 0
    assert scores[GRACE] == 0
    work = teacher.request("GET", f"formgrader/api/submitted_notebooks/{TOPIC}/{TOPIC}").json()
    (page,) = (
        teacher.request("GET", f"formgrader/submissions/{found['id']}").text
        for found in work
        if found["student"] == GRACE
    )
    assert "from grace" in page
    assert "<script>alert" not in page
