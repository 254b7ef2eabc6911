"""JupyterHub for one class on one machine: `jupyterhub -f classroom/jupyterhub_config.py` as root.

The machine's own users and file modes decide who may do what: the members of one group are the
students, one user is the teacher. README.md beside this file says how to set the machine up.
"""

import grp
import os
import pwd
import resource
import stat
import sys
from pathlib import Path

from jupyterhub.spawner import LocalProcessSpawner

HERE = Path(__file__).resolve().parent
STATE = Path(os.environ.get("FIRSTTOKEN_STATE", "/srv/firsttoken"))
TEACHER = os.environ.get("FIRSTTOKEN_TEACHER", "teacher")
STUDENTS = os.environ.get("FIRSTTOKEN_STUDENTS", "students")
IDLE_SECONDS = int(os.environ.get("FIRSTTOKEN_IDLE_SECONDS", "3600"))
PORT = int(os.environ.get("FIRSTTOKEN_PORT", "8000"))
COURSE = "first-token"
# Enough for every assignment; numbers of processes are per student.
MEMORY = "2G"
PROCESSES = 256
# /run/systemd/system exists where systemd is in charge; it limits a whole server, not a process.
SYSTEMD = Path("/run/systemd/system").is_dir() and "FIRSTTOKEN_NO_SYSTEMD" not in os.environ

c = get_config()  # noqa: F821


class LimitedSpawner(LocalProcessSpawner):
    """Start a server as its user; its children inherit its limits."""

    def make_preexec_fn(self, name):
        become = super().make_preexec_fn(name)
        limits = self.mem_limit and {
            # Data, not address space: PyTorch maps more address space than it will ever touch.
            resource.RLIMIT_DATA: self.mem_limit,
            resource.RLIMIT_NPROC: PROCESSES,
            resource.RLIMIT_CORE: 0,
        }

        def preexec():
            for which, limit in (limits or {}).items():
                resource.setrlimit(which, (limit, limit))
            os.umask(0o077)
            become()

        return preexec


def owned_folder(path: Path, owner: str, mode: int) -> None:
    """Make a folder, or refuse the one that is there if another user made it."""
    uid = pwd.getpwnam(owner).pw_uid
    if not os.path.lexists(path):
        path.mkdir(parents=True)
        os.chown(path, uid, pwd.getpwnam(owner).pw_gid)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
        sys.exit(f"{path} must be a folder of {owner}; it belongs to uid {found.st_uid}.")
    path.chmod(mode)


for kind, name, find in (("user", TEACHER, pwd.getpwnam), ("group", STUDENTS, grp.getgrnam)):
    try:
        find(name)
    except KeyError:
        sys.exit(f"There is no {kind} {name!r} on this machine; see {HERE / 'README.md'}.")

# The book's folder is open to students; the solutions in it are not.
for name in ("assignments", "tests/submissions", ".git"):
    if (closed := HERE.parent / name).exists():
        closed.chmod(stat.S_IMODE(closed.stat().st_mode) & ~0o007)

# The exchange: nbgrader wants its root to be open to all. Sticky bits keep everyone from renaming
# or removing what is not theirs, and inbound can be written to but not listed by students.
exchange = STATE / "exchange"
owned_folder(STATE, "root", 0o755)
owned_folder(STATE / "hub", "root", 0o700)
owned_folder(exchange, "root", 0o1777)
owned_folder(exchange / COURSE, TEACHER, 0o755)
owned_folder(exchange / COURSE / "outbound", TEACHER, 0o755)
owned_folder(exchange / COURSE / "inbound", TEACHER, 0o3733)
owned_folder(exchange / COURSE / "feedback", TEACHER, 0o711)

# Where it listens: on this machine only. A web server in front of it adds TLS.
c.JupyterHub.bind_url = f"http://127.0.0.1:{PORT}"
c.ConfigurableHTTPProxy.command = [str(HERE / "node_modules/.bin/configurable-http-proxy")]
c.ConfigurableHTTPProxy.pid_file = str(STATE / "hub" / "proxy.pid")
c.JupyterHub.cookie_secret_file = str(STATE / "hub" / "cookie_secret")
c.JupyterHub.db_url = f"sqlite:///{STATE / 'hub' / 'jupyterhub.sqlite'}"

# Who may come in: accounts of this machine, with their own passwords. Nobody is an admin of the
# hub: an admin could enter other people's servers, and the course needs none.
c.JupyterHub.authenticator_class = "pam"
c.PAMAuthenticator.open_sessions = False
c.Authenticator.allowed_users = {TEACHER}
c.LocalAuthenticator.allowed_groups = {STUDENTS}

# What each gets: their own server, as their own user, under limits.
c.JupyterHub.spawner_class = "systemd" if SYSTEMD else LimitedSpawner
c.Spawner.cmd = [sys.executable, "-m", "jupyterhub.singleuser"]
c.Spawner.mem_limit = MEMORY
c.Spawner.cpu_limit = 1.0
c.Spawner.start_timeout = 180
c.Spawner.http_timeout = 120
c.Spawner.default_url = "/lab"
c.SystemdSpawner.isolate_tmp = True
c.SystemdSpawner.disable_user_sudo = True
c.SystemdSpawner.unit_extra_properties = {"TasksMax": str(PROCESSES), "UMask": "0077"}


def lift_limits(spawner) -> None:
    """Give the teacher room: `make grade` sets tighter limits of its own for each submission."""
    if spawner.user.name == TEACHER:
        spawner.mem_limit = spawner.cpu_limit = None


c.Spawner.pre_spawn_hook = lift_limits


def configuration(spawner) -> str:
    """Return the folders of settings: everybody's, and before it the teacher's own."""
    folders = ("teacher", "everyone") if spawner.user.name == TEACHER else ("everyone",)
    return os.pathsep.join(str(HERE / folder) for folder in folders)


c.Spawner.environment = {
    "JUPYTER_CONFIG_PATH": configuration,
    # nbgrader calls a program of this environment by its name.
    "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
    "FIRSTTOKEN_EXCHANGE": str(exchange),
    "FIRSTTOKEN_COURSE": COURSE,
    # One thread each: a class shares the machine's cores.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}

# Servers that nobody uses are stopped; files stay.
c.JupyterHub.services = [
    {
        "name": "idle-culler",
        "command": [
            *(sys.executable, "-m", "jupyterhub_idle_culler"),
            *(f"--timeout={IDLE_SECONDS}", f"--cull-every={max(1, IDLE_SECONDS // 6)}"),
        ],
    }
]
c.JupyterHub.load_roles = [
    {
        "name": "idle-culler",
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
        "services": ["idle-culler"],
    }
]
