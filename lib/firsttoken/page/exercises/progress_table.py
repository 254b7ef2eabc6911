"""The table of what the reader has solved; the browser counts."""

from firsttoken.page.exercises.page import chapter_link, script_tag, style_tag
from firsttoken.page.start import CHAPTERS


class Progress:
    """How much of each chapter the reader has solved; made by `progress`."""

    def __repr__(self) -> str:
        lines = ["Your browser counts what you solve; JupyterLab and the site show it. There are:"]
        lines += [f"    {chapter.label}: {chapter.n_tasks}" for chapter in CHAPTERS.values()]
        return "\n".join(line for line in lines if not line.endswith(": 0"))

    def _repr_html_(self) -> str:
        # Chapters still to be written have hidden rows: a placement quiz may name them.
        rows = "".join(
            f'<tr data-chapter="{chapter.stem}" '
            + (f'data-total="{chapter.n_tasks}">' if chapter.n_tasks else "hidden>")
            + f'<th scope="row">{chapter.number} {chapter_link(chapter, chapter.title)}</th>'
            '<td><div class="ft-solved"><span class="ft-bar" aria-hidden="true"></span>'
            '<span class="ft-count"></span></div></td></tr>'
            for chapter in CHAPTERS.values()
        )
        return (
            '<div class="ft-exercise ft-progress" data-lm-suppress-shortcuts="true">'
            f"{style_tag('page/exercises/exercises.css', 'page/exercises/progress.css')}"
            '<p class="ft-off">Here your browser counts the quizzes and exercises that you solve. '
            "It needs scripts, and leave to keep data for this page.</p>"
            '<div class="ft-counts" hidden><table><caption>Your progress</caption><thead><tr>'
            '<th scope="col">Chapter</th><th scope="col">Quizzes and exercises solved</th></tr>'
            f"</thead><tbody>{rows}</tbody></table>"
            '<p role="status"></p><p class="ft-place" hidden></p>'
            "<p>Your browser keeps this on your own machine; it is sent nowhere.</p>"
            '<button type="button" class="ft-ask">Forget my progress</button>'
            '<div class="ft-sure" role="group" aria-label="Forget my progress" hidden>'
            "<p>Forget what was solved in every chapter? It cannot be brought back.</p>"
            '<button type="button" class="ft-keep">Keep it</button>'
            '<button type="button" class="ft-forget">Forget it</button></div></div>'
            f"{script_tag('page/exercises/store.js', 'page/exercises/progress.js')}</div>"
        )


def progress() -> Progress:
    """Return a table of what the reader has solved, per chapter, with a button to forget it.

    The reader's browser keeps the count for each address: JupyterLab and the site have their own.
    """
    return Progress()
