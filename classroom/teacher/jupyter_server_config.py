"""The teacher's server: Formgrader, without its button that runs students' code as the teacher."""

from nbgrader.server_extensions.formgrader import apihandlers
from tornado import web

ANSWER = "Not here: this would run the student's code as you. Use: make grade COURSE=~/course"


def refuse(handler, *arguments):
    """Answer instead of running a submission; the page shows the text beside its button."""
    handler.write({"success": False, "error": ANSWER, "log": ANSWER})


apihandlers.AutogradeHandler.post = web.authenticated(refuse)

c = get_config()  # noqa: F821
c.ServerApp.jpserver_extensions = {"nbgrader.server_extensions.formgrader": True}
