"""A chat template for a model that never saw a chat: a toy."""

from collections.abc import Sequence


def render_chat(messages: Sequence[tuple[str, str]]) -> str:
    r"""Return the text that stands for a conversation, up to where the answer begins.

    The shipped model has read Python programs and no conversations, so a chat becomes what it
    knows: comments. Each message is a line `# role: text`, its further lines comments, too; the
    answer begins behind `# assistant:`. Models that were tuned for chats have special tokens
    between messages, which no text can imitate. Here a message can: a toy, for texts that one
    trusts.

    >>> render_chat([("system", "Be brief."), ("user", "Hi!\nWho?")])
    '# system: Be brief.\n# user: Hi!\n# Who?\n# assistant:'
    """
    lines = [f"{role}: {text}" for role, text in messages]
    commented = "\n".join(lines).replace("\n", "\n# ")
    return f"# {commented}\n# assistant:"
