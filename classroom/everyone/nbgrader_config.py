"""nbgrader on the hub: where work is exchanged, and what the teacher's collecting accepts."""

import os
import pwd
import stat
from pathlib import Path

from nbgrader.exchange import ExchangeError
from nbgrader.exchange.default import ExchangeCollect
from nbgrader.utils import parse_utc

# A submission is a small notebook; what is larger is no submission.
MOST_BYTES = 20_000_000


class OwnedCollect(ExchangeCollect):
    """Collect a submission only from the user whose name it bears.

    nbgrader itself warns when a folder's owner is another user and then collects it; it also
    follows links, so that a link to the teacher's own solution would arrive as the solution.
    """

    def _path_to_record(self, path):
        try:
            record = super()._path_to_record(path)
            whose(path, os.lstat(path))
        except (ExchangeError, ValueError) as error:
            self.log.error("Refused: %s", error)
            return {"username": None, "filename": path, "timestamp": parse_utc("2000-01-01")}
        return record

    def init_src(self):
        super().init_src()
        self.src_records = [record for record in self.src_records if record["username"]]

    def do_copy(self, src, dest, log=None):
        """Copy the plain files of the folder's owner, looking at what was opened.

        A check of names before copying could be outrun by changing what a name stands for.
        """
        top = os.open(src, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            owner = whose(src, os.fstat(top))
            for folder, _, names, at in os.fwalk(dir_fd=top):
                target = Path(dest) / folder
                target.mkdir(parents=True, exist_ok=True)
                for name in names:
                    try:
                        (target / name).write_bytes(read_plain(name, at, owner))
                    except (OSError, ValueError) as error:
                        self.log.error("Refused: %s in %s: %s", name, src, error)
        finally:
            os.close(top)


def whose(path: str, found: os.stat_result) -> int:
    """Return the owner of a submission's folder, who must be the user whose name it bears."""
    username = Path(path).name.rsplit("+", 3)[0]
    try:
        owner = pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        owner = f"uid {found.st_uid}"
    if owner != username or not stat.S_ISDIR(found.st_mode):
        raise ValueError(f"{path} is no folder of {username}: it belongs to {owner}")
    return found.st_uid


def read_plain(name: str, folder: int, owner: int) -> bytes:
    """Return the bytes of a plain file of that owner; a link, a pipe or a huge file is refused."""
    opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    with os.fdopen(opened, "rb") as file:
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != owner or found.st_nlink > 1:
            raise ValueError("not a plain file of that user")
        if found.st_size > MOST_BYTES:
            raise ValueError(f"{found.st_size} bytes, at most {MOST_BYTES} are a submission")
        return file.read(MOST_BYTES)


c = get_config()  # noqa: F821
c.CourseDirectory.course_id = os.environ["FIRSTTOKEN_COURSE"]
c.Exchange.root = os.environ["FIRSTTOKEN_EXCHANGE"]
c.ExchangeFactory.collect = OwnedCollect
# Formgrader shows what students wrote inside the teacher's own session: no script of theirs runs.
c.HTMLExporter.sanitize_html = True
