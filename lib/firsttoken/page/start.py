"""The map of the book: its chapters, the question that each answers, and what each builds on."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from firsttoken.checks import check_choice


@dataclass(frozen=True)
class Chapter:
    """A chapter of the book; `requires` names the chapters that it builds on directly.

    A chapter that is not written yet has no quizzes and no exercises.
    """

    stem: str
    title: str
    question: str
    part: str
    requires: tuple[str, ...] = ()
    n_quizzes: int = 0
    n_exercises: int = 0

    @property
    def number(self) -> str:
        """The two digits that the book calls it by.

        >>> CHAPTERS["04_kv_cache"].number
        '04'
        """
        return self.stem[:2]

    @property
    def label(self) -> str:
        """Number and title.

        >>> CHAPTERS["04_kv_cache"].label
        '04 The KV cache'
        """
        return f"{self.number} {self.title}"

    @property
    def n_tasks(self) -> int:
        """How many quizzes and exercises a reader can solve; 0 where it is not written yet."""
        return self.n_quizzes + self.n_exercises


PARTS: Mapping[str, str] = MappingProxyType(
    {
        "I": "What inference costs",
        "II": "Shortcuts that change the model, and one that does not",
        "III": "Choosing tokens",
        "IV": "Serving many",
    }
)

# `requires` is the smallest set: what follows from another requirement is not repeated.
CHAPTERS: Mapping[str, Chapter] = MappingProxyType(
    {
        chapter.stem: chapter
        for chapter in (
            Chapter(
                "00_start",
                "Start here",
                "A model is trained once. After how many days of service has running it cost more "
                "than training it?",
                "I",
                n_quizzes=2,
                n_exercises=3,
            ),
            Chapter(
                "01_generate",
                "The token loop",
                "What does a model do between your prompt and its first word, and why does every "
                "later word come so much sooner?",
                "I",
                n_quizzes=3,
                n_exercises=5,
            ),
            Chapter(
                "02_metrics",
                "Metrics",
                "Two services both write 50 tokens per second, yet one of them feels slow: which "
                "numbers tell them apart?",
                "I",
                ("01_generate",),
                n_quizzes=5,
                n_exercises=4,
            ),
            Chapter(
                "03_roofline",
                "The roofline",
                "Does your hardware wait for arithmetic or for memory, and what moves the border "
                "between the two?",
                "I",
                ("01_generate",),
                n_quizzes=4,
                n_exercises=4,
            ),
            Chapter(
                "04_kv_cache",
                "The KV cache",
                "What does a model keep of every token, why, and how many conversations fit on a "
                "card?",
                "I",
                ("01_generate",),
                n_quizzes=3,
                n_exercises=4,
            ),
            Chapter(
                "05_throughput",
                "Throughput against latency",
                "How many tokens per second can a card give, to one reader and to all of them, "
                "and what does a million cost?",
                "I",
                ("02_metrics", "03_roofline", "04_kv_cache"),
                n_quizzes=4,
                n_exercises=4,
            ),
            Chapter(
                "06_attention",
                "Attention variants",
                "How small can the cache become when heads share it, compress it or forget, and "
                "what does the model lose?",
                "II",
                ("03_roofline", "04_kv_cache"),
                n_quizzes=3,
                n_exercises=4,
            ),
            Chapter(
                "07_flash",
                "FlashAttention",
                "The scores of a long prompt take a terabyte in each layer. Attention is exact on "
                "a card of 80 GB all the same: where did the matrix go?",
                "II",
                ("03_roofline", "04_kv_cache"),
                n_quizzes=2,
                n_exercises=4,
            ),
            Chapter(
                "08_recurrent",
                "Beyond attention",
                "Can a model read a long text with a memory that never grows, and what does it "
                "then forget?",
                "II",
                ("06_attention",),
                n_quizzes=3,
                n_exercises=4,
            ),
            Chapter(
                "09_quantization",
                "Quantisation",
                "How few bits can a weight or a cached key have before the text gets worse, and "
                "how much faster is decoding then?",
                "II",
                ("03_roofline", "04_kv_cache"),
                n_quizzes=3,
                n_exercises=4,
            ),
            Chapter(
                "10_pruning",
                "Pruning and distillation",
                "Which parts of a model can be cut out, and how much of the damage can a teacher "
                "repair?",
                "II",
                ("01_generate",),
                n_quizzes=2,
                n_exercises=4,
            ),
            Chapter(
                "11_sampling",
                "Sampling",
                "A model gives every token a probability: how does one of them become the next "
                "word, and how is the text held to a format?",
                "III",
                ("01_generate",),
                n_quizzes=3,
                n_exercises=5,
            ),
            Chapter(
                "12_speculative",
                "Speculative decoding",
                "How does a small model make a large one faster without changing one probability, "
                "and when does it make it slower?",
                "III",
                ("03_roofline", "04_kv_cache", "11_sampling"),
                n_quizzes=3,
                n_exercises=5,
            ),
            Chapter(
                "13_drafts",
                "Better drafts",
                "What must a draft be to write one and a half times as fast, and when should it "
                "stop guessing?",
                "III",
                ("12_speculative",),
                n_quizzes=3,
                n_exercises=4,
            ),
            Chapter(
                "14_batching",
                "Batching",
                "Requests come whenever they like: which runs next, and who pays by waiting?",
                "IV",
                ("05_throughput",),
                n_quizzes=4,
                n_exercises=5,
            ),
            Chapter(
                "15_paging",
                "Paging",
                "Nobody knows how long an answer will be: how much of the cache's memory does "
                "that waste, and how do blocks win it back?",
                "IV",
                ("14_batching",),
                n_quizzes=3,
                n_exercises=5,
            ),
            Chapter(
                "16_parallel",
                "Many devices",
                "One card is too small or too slow: how is a model cut in pieces, and what does "
                "the network cost?",
                "IV",
                ("05_throughput",),
                n_quizzes=3,
                n_exercises=4,
            ),
            Chapter(
                "17_engine",
                "An engine",
                "All techniques run in one engine: what do they save together, and where does each "
                "millisecond go?",
                "IV",
                ("12_speculative", "15_paging"),
                n_quizzes=3,
                n_exercises=4,
            ),
        )
    }
)


def path_to(stem: str) -> tuple[Chapter, ...]:
    """Return the chapters that one needs, in an order to read them in, itself last.

    Raises: ValueError for a stem that is no chapter's.

    >>> [chapter.number for chapter in path_to("05_throughput")]
    ['01', '02', '03', '04', '05']
    """
    check_choice("stem", stem, CHAPTERS)
    needed, waiting = set(), [stem]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += CHAPTERS[name].requires
    return tuple(chapter for name, chapter in CHAPTERS.items() if name in needed)
