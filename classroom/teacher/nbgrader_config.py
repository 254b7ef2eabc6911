"""nbgrader for the teacher: the course lies in ~/course."""

from pathlib import Path

c = get_config()  # noqa: F821
c.CourseDirectory.root = str(Path("~/course").expanduser())
