"""Runs the scripts of the weekly workflow, with a stand-in for GitHub's command line."""

import os
import subprocess
from pathlib import Path


def run_script(job: dict, folder: Path, open_issue: str, **variables: str) -> list[str]:
    """Run the script of a job in a folder, and return what it asked gh to do.

    `open_issue` is the number of the issue that gh finds open, if any.
    """
    (step,) = [step for step in job["steps"] if "run" in step]
    gh = folder / "bin" / "gh"
    gh.parent.mkdir()
    gh.write_text(
        "#!/usr/bin/env bash\n"
        '[ "$1 $2" != "issue list" ] || { echo "$OPEN"; exit; }\n'
        'echo "$*" >>calls\n'
    )
    gh.chmod(0o755)
    environment = {
        "PATH": f"{gh.parent}{os.pathsep}{os.environ['PATH']}",
        "OPEN": open_issue,
        "RUN": "https://localhost/run/1",
        "TITLE": step["env"]["TITLE"],
    }
    subprocess.run(
        ["bash", "-e", "-c", step["run"]], cwd=folder, env=environment | variables, check=True
    )
    calls = folder / "calls"
    return calls.read_text().splitlines() if calls.exists() else []
