"""Texts and chats whose tokens the page and the library must agree on."""

import random

# What cuts words, what is merged, and characters of all kinds.
PARTS = [
    *"'sTſmDK \n\t\r\x00\x04\x1c\x7f\x85\xa0\u1680\u180e\u2003\u2028\u200b\u3000\ufeff\ufffd",
    *"59٣Ⅷ²½aéßſǅ中の한ע🙂-(\u0301\u0378\U00011de3\ue000\U000e0001\U0010ffff",
    *["👩‍👧", "🇩🇪", "'s", "'ſ", "'T", "'ll", "'RE", "'vE", "Don't", " WE'LL", "def", "self."],
    *[
        "\r\n",
        "\n\n",
        "    ",
        " \n",
        " 12",
        "12345",
        "e\u0301",
        "日本語",
        "²½",
        "import os",
        "!?\n",
    ],
    *["\x04\x04", "<|endoftext|>", "<|endoftext|", "<|im_end|>", "<think>", "<think"],
]


def texts(*more: str, n: int = 1000) -> list[str]:
    """Return each of these parts, and of some more, and texts that are mixed of them."""
    draw, parts = random.Random(17), [*PARTS, *more]
    return ["", *parts, *("".join(draw.choices(parts, k=20)) for _ in range(n))]


def chats(marks: list[str], n: int = 200) -> list[tuple[list[dict[str, str]], bool]]:
    """Return conversations that spell marks, and parts of them; and whether they ask for more."""
    draw = random.Random(17)
    halves = [half for mark in marks for half in (mark[: len(mark) // 2], mark[len(mark) // 2 :])]
    # What templates look for, and cut off.
    parts = [*marks, *halves, "Hi", " é", "🙂", "日本語", "def f():", "<think>", "</think>"]
    parts += ["\n", "\n\n", "  ", "\t", "\x1c", "\x85", "\ufeff"]
    given = []
    for _ in range(n):
        turns = draw.choice((["user", "assistant"], ["assistant", "user"])) * 2
        roles = [*draw.choice(([], ["system"])), *turns][: draw.randint(1, 5)]
        if draw.random() < 0.1:
            roles.append("user")  # perhaps twice
        texts = ("".join(draw.choices(parts, k=draw.randrange(6))) for _ in roles)
        messages = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=True)]
        given.append((messages, draw.random() < 0.5))
    return given


ENCODE = """(chats) => chats.map(([messages, prompt]) => {
    try {
        const ids = chat.encode(messages, prompt);
        return [ids, chat.parts(ids)];
    } catch (error) {
        return error.message;
    }
})"""
