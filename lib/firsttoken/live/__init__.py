"""The model in the page: views that run the shipped pair on the reader's own text.

In JupyterLab a view is a widget; on the website the same component runs without a kernel. Both read
the shipped weights and tokenizer themselves, in the browser, and agree with this library. With
`model="smollm2"`, and in `chat`, the book's real model answers. In JupyterLab the kernel runs it;
on a website that carries its file the page does, and readers choose between the models there.
A view is shown by ending a cell with it, and a later cell can go on from what the reader did:

    prompt = live.next_token("def ")
    prompt

    generate(model, prompt.ids, prompt.params)
"""

from firsttoken.live.chat import chat
from firsttoken.live.widgets import View, cache, inside, next_token, speculation, surprise

__all__ = ["View", "cache", "chat", "inside", "next_token", "speculation", "surprise"]
